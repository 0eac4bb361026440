/* The conditions of uniqueness.py, in the order in which that tries them. */
#include "coulomb.h"

#include <math.h>
#include <string.h>

static const double STRICT = 1.0 - 1e-6;    /* uniqueness._STRICT */
static const double REGULARISATION = 1e-10; /* uniqueness._REGULARISATION */
static const double MAX_INVERSE = 1e6;      /* uniqueness._MAX_INVERSE */
static const double UNBOUNDED = 1e30;       /* uniqueness._UNBOUNDED */
static const double RATE_MARGIN = 1e-7;     /* uniqueness._RATE_MARGIN */
enum { SWEEPS = 4, BOUND_UPDATES = 3 };     /* uniqueness._SWEEPS, _BOUND_UPDATES */

/* Compute the least and the largest eigenvalue of a symmetric matrix, which is overwritten.
 *
 * Returns 0 if LAPACK fails. Without rows both are zero.
 */
static int find_extreme_eigenvalues(const struct lapack *lapack, double *matrix, int n,
                                    double *least, double *largest) {
    double values[MAX_ROWS], work[4 * MAX_ROWS];
    int length = 4 * MAX_ROWS, failed;
    *least = *largest = 0.0;
    if (n == 0) return 1;
    lapack->dsyev("N", "U", &n, matrix, &n, values, work, &length, &failed);
    *least = values[0];
    *largest = values[n - 1];
    return failed == 0;
}

/* Compute the largest singular value of a matrix (m, n); 0 if LAPACK fails. */
static int find_norm(const struct lapack *lapack, const double *matrix, int m, int n,
                     double *norm) {
    double product[MAX_ROWS * MAX_ROWS], least, largest;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < m; j++) {
            double sum = 0.0;
            for (int l = 0; l < n; l++) sum += matrix[i * n + l] * matrix[j * n + l];
            product[i * m + j] = sum;
        }
    int done = find_extreme_eigenvalues(lapack, product, m, &least, &largest);
    *norm = sqrt(fmax(largest, 0.0));
    return done;
}

static double frobenius_norm(const double *matrix, int count) {
    double sum = 0.0;
    for (int i = 0; i < count; i++) sum += matrix[i] * matrix[i];
    return sqrt(sum);
}

/* Invert a symmetric matrix + 1e-10; returns 0 if that is not positive definite. */
static int invert_symmetric(const double *matrix, int n, double *inverse) {
    double root[MAX_ROWS * MAX_ROWS];
    for (int j = 0; j < n; j++) {
        double pivot = matrix[j * n + j] + REGULARISATION;
        for (int l = 0; l < j; l++) pivot -= root[j * n + l] * root[j * n + l];
        if (!(pivot > 0.0)) return 0;
        root[j * n + j] = sqrt(pivot);
        for (int i = j + 1; i < n; i++) {
            double entry = matrix[i * n + j];
            for (int l = 0; l < j; l++) entry -= root[i * n + l] * root[j * n + l];
            root[i * n + j] = entry / root[j * n + j];
        }
    }
    for (int c = 0; c < n; c++) {
        double x[MAX_ROWS];
        for (int i = 0; i < n; i++) {
            x[i] = i == c;
            for (int l = c; l < i; l++) x[i] -= root[i * n + l] * x[l];
            x[i] /= root[i * n + i];
        }
        for (int i = n - 1; i >= 0; i--) {
            for (int l = i + 1; l < n; l++) x[i] -= root[l * n + i] * x[l];
            x[i] /= root[i * n + i];
        }
        for (int i = 0; i < n; i++) inverse[i * n + c] = x[i];
    }
    return 1;
}

/* Return whether the condition for one contact holds; the problem has one contact. */
static int proves_one_contact(const struct problem *p) {
    const int n = p->rows, count = p->tangent_count[0], *rows = p->tangents[0];
    const double *g = p->delassus, *b = p->free, mu = p->friction_kinetic[0];
    double coupling[2] = {0.0, 0.0};
    for (int j = 0; j < count; j++) coupling[j] = g[rows[j]];
    if (p->slides[0]) {
        double along = p->sliding[0][0] * coupling[0] + p->sliding[0][1] * coupling[1];
        return g[0] - mu * along > REGULARISATION;
    }
    if (g[0] - mu * hypot(coupling[0], coupling[1]) <= REGULARISATION) return 0;
    if (b[0] >= 0.0 || count < 2 || mu == 0.0) return 1;
    const int x = rows[0], y = rows[1];
    double u = b[x] / -b[0], v = b[y] / -b[0];
    double xx = g[x * n + x] + u * coupling[0], yy = g[y * n + y] + v * coupling[1];
    double xy = g[x * n + y] + 0.5 * (u * coupling[1] + v * coupling[0]);
    return xx > 0.0 && xx * yy - xy * xy > REGULARISATION;
}

/* Return whether the condition of contraction holds.
 *
 * `unknowns` has the normal rows, then the tangent rows whose friction is free in its cone, and
 * `owners` the contact of each of these rows.
 */
static int proves_contraction(const struct lapack *lapack, const struct problem *p,
                              const int *unknowns, const int *owners, int size, int slides) {
    const int k = p->contacts, n = p->rows, count = size - k;
    double matrix[MAX_ROWS * MAX_ROWS], even[MAX_ROWS * MAX_ROWS], inverse[MAX_ROWS * MAX_ROWS];
    double tangential[MAX_ROWS * MAX_ROWS], normal[MAX_CONTACTS * MAX_CONTACTS];
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            double entry = p->delassus[unknowns[i] * n + unknowns[j]];
            if (j < k && p->slides[j])
                for (int l = 0; l < p->tangent_count[j]; l++)
                    entry -= p->friction_kinetic[j] * p->sliding[j][l] *
                             p->delassus[unknowns[i] * n + p->tangents[j][l]];
            matrix[i * size + j] = entry;
        }
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            even[i * size + j] = 0.5 * (matrix[i * size + j] + matrix[j * size + i]);
    if (!invert_symmetric(slides ? even : matrix, size, inverse)) return 0;
    if (!count) return 1;
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const double *a = matrix + (k + i) * size, *c = matrix + (k + j) * size;
            double entry = a[k + j];
            if (slides) { /* A_t H^-1 A_t' */
                entry = 0.0;
                for (int l = 0; l < size; l++)
                    for (int o = 0; o < size; o++) entry += a[l] * inverse[l * size + o] * c[o];
            }
            tangential[i * count + j] =
                p->friction_kinetic[owners[i]] * entry * p->friction_kinetic[owners[j]];
        }
    int chosen[MAX_CONTACTS], many = 0; /* contacts with free friction, each once */
    for (int i = 0; i < count; i++)
        if (!many || chosen[many - 1] != owners[i]) chosen[many++] = owners[i];
    for (int i = 0; i < many; i++)
        for (int j = 0; j < many; j++) normal[i * many + j] = inverse[chosen[i] * size + chosen[j]];
    const double limit = (slides ? 1.0 : 4.0) * STRICT;
    double first = frobenius_norm(tangential, count * count);
    double second = frobenius_norm(normal, many * many), least;
    if (second <= MAX_INVERSE && first * second < limit) return 1;
    if (!find_extreme_eigenvalues(lapack, tangential, count, &least, &first) ||
        !find_extreme_eigenvalues(lapack, normal, many, &least, &second))
        return 0;
    return second <= MAX_INVERSE && first * second < limit;
}

/* Return whether all contacts slide in every solution, and so nearly in one way that there is one. */
static int proves_sliding(const struct lapack *lapack, const struct problem *p) {
    const int k = p->contacts, n = p->rows, t = n - k;
    double block[MAX_ROWS * MAX_ROWS], by_friction[MAX_ROWS * MAX_ROWS] = {0}, unused;
    double stiffness, coupling, sliding_stiffness, drag, response;
    for (int i = 0; i < k; i++)
        for (int j = 0; j < k; j++) block[i * k + j] = p->delassus[i * n + j];
    if (!find_extreme_eigenvalues(lapack, block, k, &stiffness, &unused)) return 0;
    if (stiffness <= REGULARISATION) return 0;
    for (int i = 0; i < k; i++) /* columns of the tangents, times friction */
        for (int j = 0; j < p->tangent_count[i]; j++) {
            int row = p->tangents[i][j];
            for (int l = 0; l < n; l++)
                by_friction[l * t + row - k] = p->delassus[l * n + row] * p->friction_kinetic[i];
        }
    if (!find_norm(lapack, by_friction, k, t, &coupling)) return 0;
    stiffness -= coupling;
    if (stiffness <= REGULARISATION) return 0;
    double along[MAX_CONTACTS][2] = {{0}}, speeds[MAX_CONTACTS], reaches[MAX_CONTACTS];
    int free_count = 0;
    for (int i = 0; i < k; i++) {
        const int *rows = p->tangents[i], count = p->tangent_count[i];
        if (p->slides[i]) {
            memcpy(along[i], p->sliding[i], sizeof along[i]);
        } else if (count && p->friction_kinetic[i] > 0.0) {
            double velocity[2] = {0.0, 0.0}, normals = 0.0, tangents = 0.0;
            for (int j = 0; j < count; j++) {
                velocity[j] = p->free[rows[j]];
                for (int l = 0; l < k; l++)
                    normals += p->delassus[rows[j] * n + l] * p->delassus[rows[j] * n + l];
                for (int l = 0; l < t; l++)
                    tangents += by_friction[rows[j] * t + l] * by_friction[rows[j] * t + l];
            }
            double speed = hypot(velocity[0], velocity[1]);
            if (speed == 0.0) speed = REGULARISATION;
            along[i][0] = velocity[0] / speed;
            along[i][1] = velocity[1] / speed;
            speeds[free_count] = speed;
            reaches[free_count++] = sqrt(normals) + sqrt(tangents);
        }
    }
    for (int i = 0; i < k; i++)
        for (int j = 0; j < k; j++) {
            double entry = p->delassus[i * n + j];
            for (int l = 0; l < p->tangent_count[j]; l++)
                entry -= by_friction[i * t + p->tangents[j][l] - k] * along[j][l];
            block[i * k + j] = entry;
        }
    double even[MAX_CONTACTS * MAX_CONTACTS];
    for (int i = 0; i < k; i++)
        for (int j = 0; j < k; j++) even[i * k + j] = block[i * k + j] + block[j * k + i];
    if (!find_extreme_eigenvalues(lapack, even, k, &sliding_stiffness, &unused)) return 0;
    sliding_stiffness *= 0.5;
    if (!find_norm(lapack, by_friction + k * t, t, t, &drag)) return 0;
    for (int i = 0; i < t; i++)
        for (int j = 0; j < k; j++) block[i * k + j] = p->delassus[(k + i) * n + j];
    if (!find_norm(lapack, block, t, k, &response)) return 0;
    response += drag;
    double approach = 0.0;
    for (int i = 0; i < k; i++)
        if (p->free[i] < 0.0) approach = hypot(approach, p->free[i]);
    for (int update = 0; update < BOUND_UPDATES; update++) {
        double force = approach / stiffness, slowest = INFINITY, sine = 0.0;
        for (int i = 0; i < free_count; i++) {
            slowest = fmin(slowest, speeds[i] - reaches[i] * force);
            sine = fmax(sine, reaches[i] * force / speeds[i]);
        }
        if (!(slowest > 0.0)) return 0;
        double chord = sqrt(2.0 - 2.0 * sqrt(1.0 - sine * sine));
        stiffness = fmax(stiffness, sliding_stiffness - coupling * chord);
        double turn = force / slowest;
        if (coupling * response * turn < STRICT * stiffness * (1.0 - drag * turn)) return 1;
    }
    return 0;
}

/* Return whether a condition holds with all contacts of a problem. */
static int satisfies_condition(const struct lapack *lapack, const struct problem *p) {
    const int k = p->contacts;
    int unknowns[MAX_ROWS], owners[MAX_ROWS], size = k, slides = 0;
    for (int i = 0; i < k; i++) {
        unknowns[i] = i;
        slides |= p->slides[i] && p->friction_kinetic[i] > 0.0;
    }
    for (int i = 0; i < k; i++) {
        if (!p->tangent_count[i] || p->slides[i] || !(p->friction_static[i] > 0.0)) continue;
        if (p->friction_static[i] > p->friction_kinetic[i]) return 0;
        for (int j = 0; j < p->tangent_count[i]; j++) {
            owners[size - k] = i;
            unknowns[size++] = p->tangents[i][j];
        }
    }
    if (k == 1 && proves_one_contact(p)) return 1;
    if (size == k && !slides) return 1; /* frictionless: a convex programme */
    return proves_contraction(lapack, p, unknowns, owners, size, slides) ||
           proves_sliding(lapack, p);
}

/* Find the contacts whose normal force is zero in every solution, as bound_normal_forces does. */
static void find_open_contacts(const struct problem *p, int *is_open) {
    const int k = p->contacts, n = p->rows;
    double smallest[MAX_CONTACTS * MAX_CONTACTS], largest[MAX_CONTACTS * MAX_CONTACTS];
    double own[MAX_CONTACTS], firm[MAX_CONTACTS], least[MAX_CONTACTS], greatest[MAX_CONTACTS];
    int bounded[MAX_CONTACTS];
    for (int i = 0; i < k; i++)
        for (int j = 0; j < k; j++) {
            double middle = p->delassus[i * n + j], reach = 0.0;
            for (int l = 0; l < p->tangent_count[j]; l++) {
                double entry = p->delassus[i * n + p->tangents[j][l]];
                if (p->slides[j]) middle -= p->friction_kinetic[j] * entry * p->sliding[j][l];
                else reach = hypot(reach, entry);
            }
            reach *= p->friction_static[j];
            smallest[i * k + j] = middle - reach;
            largest[i * k + j] = middle + reach;
        }
    for (int i = 0; i < k; i++) {
        own[i] = fmax(largest[i * k + i], REGULARISATION);
        bounded[i] = smallest[i * k + i] > REGULARISATION;
        firm[i] = bounded[i] ? smallest[i * k + i] : 1.0;
        smallest[i * k + i] = largest[i * k + i] = 0.0;
        least[i] = 0.0;
        greatest[i] = UNBOUNDED;
    }
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double next_least[MAX_CONTACTS], next_greatest[MAX_CONTACTS];
        for (int i = 0; i < k; i++) {
            double lowest = 0.0, highest = 0.0, approach = -p->free[i];
            for (int j = 0; j < k; j++) {
                double a = smallest[i * k + j], c = largest[i * k + j];
                lowest += a < 0.0 ? a * greatest[j] : a * least[j];
                highest += c > 0.0 ? c * greatest[j] : c * least[j];
            }
            double most = fmax(approach - lowest + RATE_MARGIN, 0.0) / firm[i];
            next_greatest[i] = bounded[i] ? fmin(greatest[i], most) : greatest[i];
            next_least[i] = fmax(least[i], fmax(approach - highest - RATE_MARGIN, 0.0) / own[i]);
        }
        memcpy(least, next_least, sizeof least);
        memcpy(greatest, next_greatest, sizeof greatest);
    }
    for (int i = 0; i < k; i++) is_open[i] = greatest[i] == 0.0;
}

/* Make the problem of the contacts that are not open, as CoulombProblem.restrict. */
static void restrict_problem(const struct problem *p, const int *is_open, struct problem *part) {
    int rows[MAX_ROWS], k = 0;
    for (int i = 0; i < p->contacts; i++) k += !is_open[i];
    part->contacts = k;
    part->rows = k;
    part->magnitude = p->magnitude;
    for (int i = 0, own = 0; i < p->contacts; i++) {
        if (is_open[i]) continue;
        rows[own] = i;
        part->tangent_count[own] = p->tangent_count[i];
        part->slides[own] = p->slides[i];
        part->friction_static[own] = p->friction_static[i];
        part->friction_kinetic[own] = p->friction_kinetic[i];
        memcpy(part->sliding[own], p->sliding[i], sizeof p->sliding[i]);
        for (int j = 0; j < p->tangent_count[i]; j++) {
            part->tangents[own][j] = part->rows;
            rows[part->rows++] = p->tangents[i][j];
        }
        own++;
    }
    for (int i = 0; i < part->rows; i++) {
        part->free[i] = p->free[rows[i]];
        for (int j = 0; j < part->rows; j++)
            part->delassus[i * part->rows + j] = p->delassus[rows[i] * p->rows + rows[j]];
    }
}

/* Return whether a condition proves that a dimensionless problem has one solution at most. */
int is_provably_unique(const struct lapack *lapack, const struct problem *plain) {
    if (satisfies_condition(lapack, plain)) return 1;
    int is_open[MAX_CONTACTS], open_count = 0;
    find_open_contacts(plain, is_open);
    for (int i = 0; i < plain->contacts; i++) open_count += is_open[i];
    if (!open_count) return 0;
    struct problem part;
    restrict_problem(plain, is_open, &part);
    return satisfies_condition(lapack, &part);
}
