/* The dimensionless problem of Coulomb's law, Newton's method on it, and the residual of forces. */
#include "coulomb.h"

#include <math.h>
#include <string.h>

static const double CERTIFIED = 1e-9;          /* law.CERTIFIED */
static const double BOUNDARY_TOLERANCE = 1e-9; /* law.BOUNDARY_TOLERANCE */
static const double MIN_RESPONSE = 1e-6;       /* law._MIN_RESPONSE */
static const double SINGULAR = 1e-11;          /* linear_equations.SINGULAR */
static const double CONVERGED = 1e-15;         /* newton._CONVERGED */
static const double STAGNATED = 1e-12;         /* newton._STAGNATED */
enum { MAX_STEPS = 20 };                       /* newton._MAX_STEPS */

static double measure_length(const double *x, int n) {
    double largest = 0.0, sum = 0.0;
    for (int i = 0; i < n; i++)
        if (!(fabs(x[i]) <= largest)) largest = fabs(x[i]);
    if (!(largest > 0.0) || !isfinite(largest)) return largest;
    for (int i = 0; i < n; i++) sum += (x[i] / largest) * (x[i] / largest);
    return largest * sqrt(sum);
}

/* Compute G f + b. */
static void compute_rates(const struct problem *p, const double *forces, double *rates) {
    for (int i = 0; i < p->rows; i++) {
        const double *row = p->delassus + i * p->rows;
        double sum = 0.0;
        for (int j = 0; j < p->rows; j++) sum += row[j] * forces[j];
        rates[i] = sum + p->free[i];
    }
}

/* Make the dimensionless problem, and the units of its forces and rates (rows,). */
void scale_problem(const struct problem *given, struct problem *plain, double *force_units,
                   double *rate_units) {
    const int n = given->rows, k = given->contacts;
    double responses[MAX_CONTACTS], d[MAX_ROWS], largest = 0.0, speed = given->magnitude;
    for (int i = 0; i < k; i++) {
        responses[i] = given->delassus[i * n + i];
        for (int j = 0; j < given->tangent_count[i]; j++) {
            int row = given->tangents[i][j];
            responses[i] = fmax(responses[i], given->delassus[row * n + row]);
        }
        largest = i ? fmax(largest, responses[i]) : responses[i];
    }
    if (largest == 0.0) largest = 1.0; /* nothing responds to forces: any unit will do */
    for (int i = 0; i < k; i++) {
        d[i] = sqrt(largest / fmax(responses[i], MIN_RESPONSE * largest));
        for (int j = 0; j < given->tangent_count[i]; j++) d[given->tangents[i][j]] = d[i];
    }
    for (int i = 0; i < n; i++) speed = fmax(speed, fabs(given->free[i]));
    if (speed == 0.0) speed = 1.0; /* nothing moves: any unit will do */
    *plain = *given;
    plain->magnitude = 1.0;
    for (int i = 0; i < n; i++) {
        force_units[i] = speed / largest * d[i];
        rate_units[i] = speed / d[i];
        plain->free[i] = given->free[i] / rate_units[i];
        for (int j = 0; j < n; j++)
            plain->delassus[i * n + j] = given->delassus[i * n + j] * (d[i] * (d[j] / largest));
    }
}

/* Compute the projection P(p) of newton.project_forces, and its derivative (rows, rows). */
static void project_forces(const struct problem *q, const double *p, double *values,
                           double *slope) {
    const int n = q->rows;
    memset(values, 0, (size_t)n * sizeof(double));
    memset(slope, 0, (size_t)(n * n) * sizeof(double));
    for (int i = 0; i < q->contacts; i++) {
        const int *rows = q->tangents[i], count = q->tangent_count[i];
        const double normal = p[i], mu = q->friction_kinetic[i];
        if (normal <= 0.0) continue;
        values[i] = normal;
        slope[i * n + i] = 1.0;
        if (q->slides[i]) {
            for (int j = 0; j < count; j++) {
                values[rows[j]] = -mu * normal * q->sliding[i][j];
                slope[rows[j] * n + i] = -mu * q->sliding[i][j];
            }
            continue;
        }
        double tangential[2] = {0.0, 0.0};
        for (int j = 0; j < count; j++) tangential[j] = p[rows[j]];
        double length = hypot(tangential[0], tangential[1]);
        if (length <= q->friction_static[i] * normal) {
            for (int j = 0; j < count; j++) {
                values[rows[j]] = tangential[j];
                slope[rows[j] * n + rows[j]] = 1.0;
            }
        } else if (count == 1) {
            double sign = tangential[0] > 0.0 ? 1.0 : tangential[0] < 0.0 ? -1.0 : 0.0;
            values[rows[0]] = mu * normal * sign;
            slope[rows[0] * n + i] = mu * sign;
        } else if (count == 2) {
            if (length == 0.0) length = 1.0; /* no direction: friction is zero there */
            double x = tangential[0] / length, y = tangential[1] / length;
            double turn = mu * normal / length;
            values[rows[0]] = mu * normal * x;
            values[rows[1]] = mu * normal * y;
            slope[rows[0] * n + i] = mu * x;
            slope[rows[1] * n + i] = mu * y;
            slope[rows[0] * n + rows[0]] = turn * y * y;
            slope[rows[1] * n + rows[1]] = turn * x * x;
            slope[rows[0] * n + rows[1]] = slope[rows[1] * n + rows[0]] = -turn * x * y;
        }
    }
}

/* Solve a general system by elimination with partial pivoting; right becomes the solution.
 *
 * The matrix is overwritten. Returns whether all pivots are above `SINGULAR` times the largest.
 */
static int solve_general(double *matrix, int n, double *right) {
    double largest = 0.0, least = 1.0;
    for (int j = 0; j < n; j++) {
        int best = j;
        for (int i = j + 1; i < n; i++)
            if (fabs(matrix[i * n + j]) > fabs(matrix[best * n + j])) best = i;
        if (best != j) {
            for (int l = 0; l < n; l++) {
                double kept = matrix[j * n + l];
                matrix[j * n + l] = matrix[best * n + l];
                matrix[best * n + l] = kept;
            }
            double kept = right[j];
            right[j] = right[best];
            right[best] = kept;
        }
        double pivot = matrix[j * n + j], size = fabs(pivot);
        if (!(size > 0.0)) return 0;
        if (size > largest) largest = size;
        if (size < least) least = size;
        for (int i = j + 1; i < n; i++) {
            double factor = matrix[i * n + j] / pivot;
            if (factor == 0.0) continue;
            for (int l = j + 1; l < n; l++) matrix[i * n + l] -= factor * matrix[j * n + l];
            right[i] -= factor * right[j];
        }
    }
    if (!(least > SINGULAR * largest)) return 0;
    for (int i = n - 1; i >= 0; i--) {
        for (int l = i + 1; l < n; l++) right[i] -= matrix[i * n + l] * right[l];
        right[i] /= matrix[i * n + i];
    }
    return 1;
}

/* Compute the solution of linear_equations.solve_least_norm; returns 0 if LAPACK fails. */
static int solve_least_norm(const struct lapack *lapack, const double *matrix, int n,
                            const double *right, const double *norm_factors, double *x) {
    double copy[MAX_ROWS * MAX_ROWS], work[2 * MAX_ROWS + (MAX_ROWS + 1) * 64];
    memcpy(copy, matrix, (size_t)(n * n) * sizeof(double));
    memcpy(x, right, (size_t)n * sizeof(double));
    if (solve_general(copy, n, x)) return 1;
    int pivots[MAX_ROWS] = {0}, one = 1, rank, length = 2 * n + (n + 1) * 64, failed;
    double singular = SINGULAR;
    for (int i = 0; i < n; i++) /* LAPACK stores by columns */
        for (int j = 0; j < n; j++) copy[j * n + i] = matrix[i * n + j] / norm_factors[j];
    memcpy(x, right, (size_t)n * sizeof(double));
    lapack->dgelsy(&n, &n, &one, copy, &n, x, &n, pivots, &singular, &rank, work, &length, &failed);
    for (int i = 0; i < n; i++) x[i] /= norm_factors[i];
    return failed == 0;
}

/* Compute the forces -G^-1 b that hold all rows still; returns 0 where contacts are redundant. */
static int compute_holding_forces(const struct problem *plain, double *forces) {
    const int n = plain->rows;
    double root[MAX_ROWS * MAX_ROWS], largest = 0.0, least = INFINITY;
    for (int j = 0; j < n; j++) {
        double pivot = plain->delassus[j * n + j];
        for (int l = 0; l < j; l++) pivot -= root[j * n + l] * root[j * n + l];
        if (!(pivot > 0.0)) return 0;
        largest = fmax(largest, pivot);
        least = fmin(least, pivot);
        root[j * n + j] = sqrt(pivot);
        for (int i = j + 1; i < n; i++) {
            double entry = plain->delassus[i * n + j];
            for (int l = 0; l < j; l++) entry -= root[i * n + l] * root[j * n + l];
            root[i * n + j] = entry / root[j * n + j];
        }
    }
    if (least <= SINGULAR * largest) return 0;
    for (int i = 0; i < n; i++) {
        forces[i] = -plain->free[i];
        for (int l = 0; l < i; l++) forces[i] -= root[i * n + l] * forces[l];
        forces[i] /= root[i * n + i];
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int l = i + 1; l < n; l++) forces[i] -= root[l * n + i] * forces[l];
        forces[i] /= root[i * n + i];
    }
    return 1;
}

/* Compute the forces of least residual that Newton's method meets, as newton.solve_by_newton.
 *
 * States are free, and of several forces those nearest to zero are taken. `forces` has the first
 * iterate. Returns the number of steps, or -1 if LAPACK fails.
 */
static int solve_by_newton(const struct lapack *lapack, const struct problem *plain,
                           const double *norm_factors, double *forces, double *best) {
    const int n = plain->rows;
    double least = INFINITY, p[MAX_ROWS], residual[MAX_ROWS];
    double slope[MAX_ROWS * MAX_ROWS], matrix[MAX_ROWS * MAX_ROWS];
    memcpy(best, forces, (size_t)n * sizeof(double));
    for (int step = 0; step <= MAX_STEPS; step++) {
        compute_rates(plain, forces, p);
        for (int i = 0; i < n; i++) p[i] = forces[i] - p[i];
        project_forces(plain, p, residual, slope);
        for (int i = 0; i < n; i++) residual[i] -= forces[i];
        double size = measure_length(residual, n);
        if (!isfinite(size)) return step;
        int decreased = size < least;
        if (decreased) {
            memcpy(best, forces, (size_t)n * sizeof(double));
            least = size;
        }
        if (size <= CONVERGED * (1.0 + measure_length(forces, n)) || step == MAX_STEPS) return step;
        if (!decreased && least <= STAGNATED) return step;
        for (int i = 0; i < n; i++) { /* 1 - P' + P' G, and the right side */
            double *row = matrix + i * n;
            for (int j = 0; j < n; j++) row[j] = (i == j) - slope[i * n + j];
            for (int l = 0; l < n; l++) {
                double factor = slope[i * n + l];
                if (factor == 0.0) continue;
                for (int j = 0; j < n; j++) row[j] += factor * plain->delassus[l * n + j];
            }
            for (int j = 0; j < n; j++) residual[i] += row[j] * forces[j];
        }
        if (!solve_least_norm(lapack, matrix, n, residual, norm_factors, forces)) return -1;
    }
    return MAX_STEPS;
}

/* Return the state that force and rate of a contact show, as law._classify_contact. */
static enum state classify_contact(const struct problem *p, int i, const double *force,
                                   const double *rate) {
    const int count = p->tangent_count[i];
    if (rate[0] - force[0] > BOUNDARY_TOLERANCE) return OPEN;
    if (count == 0) return CLOSED;
    if (!p->slides[i] && hypot(rate[1], rate[2]) <= BOUNDARY_TOLERANCE) return STICK;
    if (count == 2) return SLIP;
    return (p->slides[i] ? p->sliding[i][0] : rate[1]) > 0.0 ? SLIP_PLUS : SLIP_MINUS;
}

/* Take force and rate of contact i, normal ones first; without tangents the others are zero. */
static void take_contact(const struct problem *p, int i, const double *rows, double *own) {
    own[0] = rows[i];
    own[1] = own[2] = 0.0;
    for (int j = 0; j < p->tangent_count[i]; j++) own[1 + j] = rows[p->tangents[i][j]];
}

/* Fill a solution with the forces that it proposes, as law.evaluate_forces with free states. */
static void evaluate_forces(const struct problem *p, struct solution *s) {
    double force[3], rate[3], force_violation = 0.0;
    compute_rates(p, s->forces, s->rates);
    for (int i = 0; i < p->contacts; i++) {
        const int *rows = p->tangents[i], count = p->tangent_count[i];
        take_contact(p, i, s->forces, force);
        take_contact(p, i, s->rates, rate);
        enum state state = s->states[i] = classify_contact(p, i, force, rate);
        double *direction = s->directions[i];
        s->has_direction[i] = 0;
        direction[0] = direction[1] = 0.0;
        if (-BOUNDARY_TOLERANCE <= force[0] && force[0] < 0.0) force[0] = s->forces[i] = 0.0;
        if (state == OPEN) {
            s->forces[i] = 0.0;
            for (int j = 0; j < count; j++) s->forces[rows[j]] = 0.0;
        } else if (state != STICK && count) {
            s->has_direction[i] = 1;
            if (p->slides[i]) {
                memcpy(direction, p->sliding[i], sizeof p->sliding[i]);
            } else if (state != SLIP) {
                direction[0] = state == SLIP_PLUS ? 1.0 : -1.0;
            } else { /* w_t and -f_t both point along s */
                double x = rate[1] - force[1], y = rate[2] - force[2], length = hypot(x, y);
                direction[0] = length > 0.0 ? x / length : 1.0;
                direction[1] = length > 0.0 ? y / length : 0.0;
            }
            for (int j = 0; j < count; j++)
                s->forces[rows[j]] = -p->friction_kinetic[i] * force[0] * direction[j];
        }
    }
    compute_rates(p, s->forces, s->rates);
    s->rate_residual = 0.0;
    for (int i = 0; i < p->contacts; i++) {
        take_contact(p, i, s->forces, force);
        take_contact(p, i, s->rates, rate);
        const double *direction = s->directions[i];
        double force_slack = force[0], rate_slack = INFINITY;
        if (s->states[i] == OPEN) {
            force_slack = INFINITY;
            rate_slack = rate[0];
        } else {
            s->rate_residual = fmax(s->rate_residual, fabs(rate[0]));
        }
        if (s->states[i] == STICK) {
            s->rate_residual = fmax(s->rate_residual, hypot(rate[1], rate[2]));
            force_slack = fmin(force_slack,
                               p->friction_static[i] * force[0] - hypot(force[1], force[2]));
        } else if (s->has_direction[i] && !p->slides[i]) {
            rate_slack = direction[0] * rate[1] + direction[1] * rate[2];
            double across = hypot(rate[1] - rate_slack * direction[0],
                                  rate[2] - rate_slack * direction[1]);
            s->rate_residual = fmax(s->rate_residual, across);
        }
        force_violation = fmax(force_violation, -force_slack);
        s->rate_residual = fmax(s->rate_residual, -rate_slack);
        s->on_border[i] = fmin(force_slack, rate_slack) <= BOUNDARY_TOLERANCE;
    }
    for (int i = 0; i < p->rows; i++) /* fmax passes over NaN */
        if (!isfinite(s->forces[i])) s->rate_residual = INFINITY;
    s->residual = fmax(s->rate_residual, force_violation);
}

/* Search a solution of a dimensionless problem by Newton's method from the forces that hold all
 * contacts still, or from zero. Returns the number of steps, or -1 if its residual is not
 * certified. */
int search_solution(const struct lapack *lapack, const struct problem *plain,
                    const double *norm_factors, struct solution *found) {
    double forces[MAX_ROWS];
    if (!compute_holding_forces(plain, forces)) memset(forces, 0, sizeof forces);
    int steps = solve_by_newton(lapack, plain, norm_factors, forces, found->forces);
    if (steps < 0) return -1;
    evaluate_forces(plain, found);
    return found->residual <= CERTIFIED ? steps : -1;
}

/* Newton steps up to which a solution that is not proven unique is returned, if no contact is on a
 * boundary: of 80,000 random problems 17 had another solution in Python, which rounding chose
 * there, too; all had more sets of states than are tried. On a boundary rounding chooses the states
 * in which forces of redundant contacts are of least norm. */
enum { MAX_REPEATABLE_STEPS = 8 };

/* Solve a problem in its units. Returns 1 if the solution is proven unique, 0 if it is not, or -1
 * if none is found or rounding may decide which one is. */
int settle_problem(const struct lapack *lapack, const struct problem *given,
                   struct solution *found) {
    struct problem plain;
    double forces[MAX_ROWS], rates[MAX_ROWS], factors[MAX_ROWS], largest = 0.0;
    scale_problem(given, &plain, forces, rates);
    for (int i = 0; i < given->rows; i++) largest = fmax(largest, forces[i]);
    for (int i = 0; i < given->rows; i++) factors[i] = forces[i] / largest;
    const int steps = search_solution(lapack, &plain, factors, found);
    if (steps < 0) return -1;
    const int is_unique = is_provably_unique(lapack, &plain);
    if (!is_unique) {
        if (steps > MAX_REPEATABLE_STEPS) return -1;
        for (int i = 0; i < given->contacts; i++)
            if (found->on_border[i]) return -1;
    }
    for (int i = 0; i < given->rows; i++) {
        found->forces[i] *= forces[i];
        found->rates[i] *= rates[i];
    }
    return is_unique;
}
