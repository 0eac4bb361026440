/* Field, guards and sliding times of a contact mode at one point.
 *
 * With M = U U' (dense.c), Y = U^-1 J' and y = U^-1 (S u - h), the constraints C a = target become
 *
 *     G m = target - C M^-1 (S u - h),   G = C M^-1 J' E,   J M^-1 J' = Y' Y,
 *     a = U^-T (y + Y E m),
 *
 * where E makes forces along all rows of the multipliers m: friction of a sliding contact is
 * -mu s per normal force ([RS] (2.38)-(2.41)). See modes/constraint_equations.py.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

/* These three are those of modes/tolerances.py, the fourth is that of modes/slip_directions.py. */
static const double STOPPED = 1e-8;        /* speed at which a contact stops in a surface, m/s */
static const double STANDSTILL = 2e-8;     /* speed up to which a direction may be a guess, m/s */
static const double JAMMED = 1e-6;         /* response ratio at which sliding contacts jam */
static const double LEAST_SPEED_RATIO = 0.1; /* to the fastest contact of the same two bodies */

/* Pivots of G, relative to the largest, at and below which contacts are redundant, or the Python mode
 * is asked, which estimates the condition of G. Distinct contacts have been above. */
static const double LEAST_PIVOT_RATIO = 1e-6;

ALONG_ROWS int has_finite(const double *values, int count) {
    double totals[8] = {0.0}; /* NaN and infinity times zero are NaN, which stays in the sum */
    int i = 0;
    for (; i + 8 <= count; i += 8)
        for (int k = 0; k < 8; k++) totals[k] += 0.0 * values[i + k];
    for (; i < count; i++) totals[0] += 0.0 * values[i];
    for (int k = 1; k < 8; k++) totals[0] += totals[k];
    return totals[0] == 0.0;
}

/* Compute sliding speeds and directions, as find_slip_directions of modes/slip_directions.py does.
 *
 * Returns the number of contacts in a surface whose direction is only a guess: slower than
 * STANDSTILL, and not nearly as fast as a contact of the same two bodies. `slow` is the last one. */
static int find_directions(struct kernel *p, int *slow) {
    int count = 0;
    for (int j = 0; j < p->closed_count; j++) {
        const struct closed_contact *contact = p->closed + j;
        double *unit = p->unit + 2 * j;
        unit[0] = unit[1] = p->speed[j] = 0.0;
        if (!contact->slides) continue;
        if (contact->sign != 0.0) {
            unit[0] = contact->sign;
            continue;
        }
        const double *slip = p->slip + contact->first;
        const double speed = p->speed[j] = sqrt(slip[0] * slip[0] + slip[1] * slip[1]);
        unit[0] = speed > 0.0 ? slip[0] / speed : 1.0;
        unit[1] = speed > 0.0 ? slip[1] / speed : 0.0;
    }
    for (int j = 0; j < p->closed_count; j++) {
        const struct closed_contact *contact = p->closed + j;
        p->direction[2 * j] = -contact->friction * p->unit[2 * j];
        p->direction[2 * j + 1] = -contact->friction * p->unit[2 * j + 1];
        /* "not >" also finds a speed that is NaN. */
        if (!contact->slides || contact->sign != 0.0 || p->speed[j] > STANDSTILL) continue;
        double fastest = 0.0;
        for (int i = 0; i < p->closed_count; i++)
            if (p->closed[i].pair == contact->pair) fastest = fmax(fastest, p->speed[i]);
        if (fastest > STANDSTILL && p->speed[j] > LEAST_SPEED_RATIO * fastest) continue;
        *slow = j;
        count++;
    }
    return count;
}

/* Compute the responses J M^-1 J' and J M^-1 (S u - h) from Y and y, and the targets. */
static void compute_responses(struct kernel *p) {
    const int r = p->row_count, k = p->closed_count, width = p->width;
    const struct terms *terms = &p->terms;
    memset(p->delassus, 0, (size_t)r * r * sizeof(double));
    memset(p->free, 0, (size_t)r * sizeof(double));
    for (int a = 0; a < r; a++) {
        const int first = a & ~3; /* where registers begin */
        double *row = p->delassus + a * r;
        add_listed_rows(row + first, r - first, 1.0, p->moved + a, width, p->moving, p->moving_count,
                        p->moved + first, width);
        for (int b = 0; b < first; b++) row[b] = p->delassus[b * r + a];
    }
    add_listed_rows(p->free, r, 1.0, p->driven, 1, p->moving, p->moving_count, p->moved, width);
    const double s = p->stabilization;
    for (int a = 0; a < r; a++) {
        p->slip[a] = terms->rates[p->rows[a]];
        p->target[a] = -terms->drift[p->rows[a]] - 2.0 * s * p->slip[a];
        if (a < k) p->target[a] -= s * s * terms->gaps[p->closed[a].contact];
    }
    /* The row D f = D N of a constant force N, whatever D is: compute_compliance of modes/dynamics.py. */
    for (int j = 0; p->pressed_count && j < k; j++) {
        const struct closed_contact *contact = p->closed + j;
        if (contact->load == 0.0) continue;
        const double response = p->delassus[contact->first * r + contact->first];
        const double compliance = fmax(1.0, 0.5 * p->pressed_count) * response;
        p->delassus[j * r + j] = compliance;
        p->target[j] += compliance * contact->load;
    }
}

/* Replace right-hand sides B (m, width) by the solution of G X = B, at the point evaluated last.
 *
 * `ratio` is the response ratio p = det G / det C M^-1 C' of modes/jamming.py where contacts can
 * jam, else 1. Returns ASK_PYTHON where G is nearly singular.
 */
int solve_multipliers(struct kernel *p, double *columns, int width, double *ratio) {
    const int r = p->row_count, k = p->closed_count, m = p->active_count;
    double determinant, even_determinant;
    for (int i = 0; i < m; i++) {
        const double *row = p->delassus + p->active[i] * r;
        for (int j = 0; j < m; j++) p->matrix[i * m + j] = row[p->active[j]];
    }
    *ratio = 1.0;
    if (count_sliding(p) == 0) {
        if (!factorise_symmetric(p->matrix, m, LEAST_PIVOT_RATIO, &determinant)) return ASK_PYTHON;
        solve_symmetric(p->matrix, m, columns, width);
        return DONE;
    }
    if (p->can_jam) memcpy(p->even, p->matrix, (size_t)m * m * sizeof(double));
    /* The first k multipliers are the normal forces, which bring friction along. */
    for (int i = 0; i < m; i++) {
        const double *row = p->delassus + p->active[i] * r;
        for (int j = 0; j < k; j++)
            for (int t = p->closed[j].first; slides_now(p, j) && t < p->closed[j].last; t++)
                p->matrix[i * m + j] += row[t] * p->direction[2 * j + t - p->closed[j].first];
    }
    if (!factorise_and_solve(p->matrix, m, LEAST_PIVOT_RATIO, columns, width, &determinant))
        return ASK_PYTHON;
    if (p->can_jam) {
        if (!factorise_symmetric(p->even, m, LEAST_PIVOT_RATIO, &even_determinant))
            return ASK_PYTHON;
        *ratio = determinant / even_determinant;
    }
    return DONE;
}

/* Set the rows of the multipliers in order: those that the mode constrains, and those of `held`. */
static void set_active_rows(struct kernel *p) {
    const int first = p->held < 0 ? p->row_count : p->closed[p->held].first;
    const int last = p->held < 0 ? p->row_count : p->closed[p->held].last;
    int place = 0, next = 0;
    for (; next < p->constrained_count && p->constrained[next] < first; next++)
        p->active[place++] = p->constrained[next];
    for (int t = first; t < last; t++) p->active[place++] = t;
    for (; next < p->constrained_count; next++) p->active[place++] = p->constrained[next];
    p->active_count = place;
}

/* Write E m (r,), forces along all rows, for multipliers m in `solution`. */
void scatter_solution(const struct kernel *p, double *forces) {
    memset(forces, 0, (size_t)p->row_count * sizeof(double));
    for (int i = 0; i < p->active_count; i++) forces[p->active[i]] = p->solution[i];
    for (int j = 0; j < p->closed_count; j++)
        for (int t = p->closed[j].first; slides_now(p, j) && t < p->closed[j].last; t++)
            forces[t] = p->direction[2 * j + t - p->closed[j].first] * p->solution[j];
}

/* Solve G m = target - C M^-1 (S u - h) for directions, `held` and active rows as they are; write f = E m. */
static int solve_forces(struct kernel *p, double *ratio) {
    p->shared.rank = 0;
    for (int i = 0; i < p->active_count; i++)
        p->solution[i] = p->target[p->active[i]] - p->free[p->active[i]];
    if (solve_multipliers(p, p->solution, 1, ratio) != DONE) return ASK_PYTHON;
    scatter_solution(p, p->forces);
    return DONE;
}

/* The same also where contacts are redundant, with the active rows set; see `share_forces`. */
int solve_any_forces(struct kernel *p, int needs_forces, double *ratio) {
    set_active_rows(p);
    if (!p->is_overloaded && solve_forces(p, ratio) == DONE) return DONE;
    return share_forces(p, needs_forces, ratio);
}

/* Write the acceleration (nv,) of the forces solved last. */
void compute_acceleration(const struct kernel *p, double *acceleration) {
    const int n = p->nv, r = p->row_count;
    memcpy(acceleration, p->driven, (size_t)n * sizeof(double));
    for (int l = 0; l < p->moving_count; l++) {
        const int i = p->moving[l];
        acceleration[i] += multiply(p->moved + i * p->width, p->forces, r);
    }
    solve_mass_root_transposed(p->terms.mass, n, n, acceleration, 1);
}

/* Write the acceleration J a - target (2,) of a contact along its two tangents. */
void compute_slip_acceleration(const struct kernel *p, int contact, double *acceleration) {
    const int r = p->row_count;
    for (int t = 0; t < 2; t++) {
        const int row = p->closed[contact].first + t;
        acceleration[t] = p->free[row] - p->target[row];
        for (int i = 0; i < r; i++) acceleration[t] += p->delassus[row * r + i] * p->forces[i];
    }
}

/* Return the length of a closed contact's values along its tangents; 0 where it has none. */
static double tangential_length(const struct closed_contact *contact, const double *rows) {
    const int count = contact->last - contact->first;
    if (count == 0) return 0.0;
    return count == 1 ? fabs(rows[contact->first])
                      : hypot(rows[contact->first], rows[contact->first + 1]);
}

/* Write the guards (n,), as ContactGuards.values does. */
static void compute_guards(const struct kernel *p, double ratio, double *guards) {
    for (int i = 0; i < p->guard_count; i++) {
        const struct guard *guard = p->guards + i;
        const struct closed_contact *contact = p->closed + guard->place; /* not for CLOSES, JAMS */
        switch (guard->kind) {
        case CLOSES:
            guards[i] = p->terms.gaps[guard->place];
            break;
        case OPENS:
            guards[i] = p->forces[guard->place];
            break;
        case SLIPS:
            guards[i] = guard->static_friction * p->forces[guard->place];
            guards[i] += guard->sign != 0.0 ? guard->sign * p->forces[contact->first]
                                            : -tangential_length(contact, p->forces);
            break;
        case STICKS:
            /* One that is held at a standstill has stopped, whatever is left of its speed. */
            guards[i] = guard->place == p->held ? -STANDSTILL
                        : guard->sign != 0.0 ? guard->sign * p->slip[contact->first]
                                           : tangential_length(contact, p->slip) - STOPPED;
            break;
        default:
            guards[i] = ratio - JAMMED;
        }
    }
    if (p->shared.rank == 0) return;
    /* Shared forces inside their cones are at a border but for rounding, or not at all. */
    double largest = 0.0;
    for (int j = 0; j < p->closed_count; j++) largest = fmax(largest, fabs(p->forces[j]));
    for (int i = 0; i < p->guard_count; i++)
        if ((p->guards[i].kind == OPENS || p->guards[i].kind == SLIPS) &&
            fabs(guards[i]) <= p->shared.near * largest)
            guards[i] = 0.0;
}

/* Compute the times of contacts that slide in a surface, as compute_sliding_times does:
 * |v_t| / (-d|v_t|/dt) until one stops, and 1 / max |K J M^-1 J'|, K = mu f_n / |v_t| (I - s s'). */
static void compute_times(const struct kernel *p, struct sliding_times *times) {
    const int r = p->row_count;
    double fastest = 0.0;
    times->stop = INFINITY;
    for (int j = 0; j < p->closed_count; j++) {
        const struct closed_contact *contact = p->closed + j;
        if (!slides_now(p, j) || contact->sign != 0.0) continue;
        const double *s = p->unit + 2 * j, speed = p->speed[j];
        const double *first = p->delassus + contact->first * r, *second = first + r;
        double change[2];
        compute_slip_acceleration(p, j, change);
        double slowing = -(s[0] * change[0] + s[1] * change[1]);
        if (slowing > 0.0) times->stop = fmin(times->stop, fmax(speed, STOPPED) / slowing);
        double turning = contact->friction * p->forces[j] / fmax(speed, STANDSTILL);
        for (int i = 0; i < r; i++) {
            /* I - s s' = s_p s_p' with s_p = (-s_2, s_1): its largest row is that of max |s_p| */
            double across = turning * (s[0] * second[i] - s[1] * first[i]);
            fastest = fmax(fastest, fabs(across) * fmax(fabs(s[0]), fabs(s[1])));
        }
    }
    times->turn = fastest > 0.0 ? 1.0 / fastest : INFINITY;
}

/* Evaluate the mode at coordinates x (nx,), of any norm, and input u (nu,).
 *
 * Writes the rate (nx,) of the coordinates, the guards (n,) and the sliding times, each unless it is
 * NULL. If the last two are, `forces` may be any that make the acceleration. Returns DONE or
 * ASK_PYTHON; then results are not complete.
 */
int evaluate_point(struct kernel *p, const double *x, const double *u, double *rate,
                   double *guards, struct sliding_times *times) {
    const int n = p->nv, r = p->row_count, width = p->width;
    struct terms *terms = &p->terms;
    p->known = NO_POINT;
    memcpy(terms->x, x, (size_t)p->nx * sizeof(double));
    memcpy(terms->u, u, (size_t)p->nu * sizeof(double));
    memcpy(p->known_x, x, (size_t)p->nx * sizeof(double));
    memcpy(p->known_u, u, (size_t)p->nu * sizeof(double));
    terms->mass[0] = NAN; /* of a function that writes nothing */
    terms->call(terms->data);
    if (!factorise_mass(terms->mass, n)) return ASK_PYTHON;
    for (int i = 0; i < n; i++) {
        double *row = p->moved + i * width;
        for (int a = 0; a < r; a++) row[a] = terms->jacobian[p->rows[a] * n + i];
        for (int a = r; a < width; a++) row[a] = 0.0;
    }
    p->moving_count = solve_sparse_mass_root(terms->mass, n, p->moved, width, p->moving);
    memcpy(p->driven, terms->drive, (size_t)n * sizeof(double));
    solve_mass_root_column(terms->mass, n, p->driven);
    double ratio = 1.0;
    p->held = p->slow = p->starting = -1;
    p->shared.rank = 0;
    if (p->closed_count) {
        compute_responses(p);
        const int count = find_directions(p, &p->slow);
        if (count > 1) return ASK_PYTHON; /* together they are Coulomb's law (standstill.py) */
        const int status = count ? solve_slow_contact(p, p->slow, &ratio)
                                 : solve_any_forces(p, guards || times, &ratio);
        if (status != DONE) return ASK_PYTHON;
    }
    if (rate) {
        memcpy(rate, terms->q_rate, (size_t)p->nq * sizeof(double));
        compute_acceleration(p, rate + p->nq);
        if (!has_finite(rate, p->nx)) return ASK_PYTHON;
    }
    if (guards) {
        compute_guards(p, ratio, guards);
        if (!has_finite(guards, p->guard_count)) return ASK_PYTHON;
    }
    if (times) compute_times(p, times);
    p->known = guards || times ? FORCES : ACCELERATION;
    return DONE;
}

int evaluate_field(const struct field *field, const double *x, double *rate, double *guards) {
    struct kernel *p = field->kernel;
    if (!has_finite(x, p->nx)) {
        /* A stage that has run away: the step is rejected by an error of NaN. */
        for (int i = 0; rate && i < p->nx; i++) rate[i] = NAN;
        for (int i = 0; guards && i < p->guard_count; i++) guards[i] = NAN;
        return DONE;
    }
    if (evaluate_point(p, x, field->u, rate, guards, NULL) == DONE) return DONE;
    return field->in_python(field->context, x, field->u, rate, guards);
}
