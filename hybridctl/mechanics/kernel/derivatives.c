/* Derivatives of acceleration and guards by z = (q, v, u), from those of the terms at fixed a and f.
 *
 * The differentiated equations have the factors of the equations themselves (modes/derivatives.py):
 *
 *     M a_z - J' E m_z = -D(M a + h - J' f) + S - J' K D(J v),
 *     C a_z = -D(J a + dJ/dt v + 2 s J v + s^2 h),   K = mu f_n / |v_t| (I - s s'),
 *
 * where K turns the friction of contacts that slide in a surface with their velocity.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

/* Residual of redundant constraints, relative to c, with which derivatives are right to about that. */
static const double MAX_CONTRADICTION = 1e-10;
static const double NO_DIRECTION = 1e-12; /* speed that is rounding, m/s: modes/tolerances.py */

/* Return the doubles of scratch memory, with room for m = r. */
int derivative_scratch_size(const struct kernel *p) {
    const int z = 2 * p->nv + p->nu, r = p->row_count, rows = p->all_rows;
    const int shared = shared_scratch_size(p), jamming = jamming_scratch_size(p);
    return p->nx + (2 * r + 1) * z + 4 * p->nv * rows + rows + p->nv * (r + 2) +
           (shared > jamming ? shared : jamming);
}

/* Return what a rate (2,) along the tangents of sliding contact j is across its direction s. */
double turn_across(const struct kernel *p, int j, const double *rate) {
    const double *s = p->unit + 2 * j;
    return s[0] * rate[1] - s[1] * rate[0];
}

/* Add the derivative of the direction of sliding contact j along what is across it, (I - s s') D v_t / |v_t|, to
 * a gradient by (q, v), from those of J v (R, 2 n). It is zero along a line, and for one that starts: the
 * direction of that is the one of its acceleration. */
void add_direction_change(const struct kernel *p, int j, const double *rates, double factor, double *gradient) {
    const struct closed_contact *contact = p->closed + j;
    const int states = 2 * p->nv;
    if (contact->sign != 0.0 || j == p->starting || !(p->speed[j] > NO_DIRECTION)) return;
    const double *s = p->unit + 2 * j, along = factor / p->speed[j]; /* I - s s' = t t' with t = (-s_2, s_1) */
    add_row(gradient, along * s[0], rates + p->rows[contact->first + 1] * states, states);
    add_row(gradient, -along * s[1], rates + p->rows[contact->first] * states, states);
}

/* Add -J' K D(J v) to D f at fixed multipliers times J', by columns of (q, v), for normal forces (k,). */
void add_turning(const struct kernel *p, const double *forces, const double *rates, double *field, int columns) {
    const int n = p->nv;
    for (int j = 0; j < p->closed_count; j++) {
        const struct closed_contact *contact = p->closed + j;
        if (!slides_now(p, j) || contact->sign != 0.0) continue;
        const int first = p->rows[contact->first] * n, second = p->rows[contact->first + 1] * n;
        for (int i = 0; i < n; i++) {
            const double pull[2] = {p->terms.jacobian[first + i], p->terms.jacobian[second + i]};
            const double across = -contact->friction * forces[j] * turn_across(p, j, pull);
            if (across != 0.0) add_direction_change(p, j, rates, across, field + i * columns);
        }
    }
}

/* Write -D(target) of multiplier a by (q, v), (2 nv,). */
static void differentiate_target(const struct kernel *p, const struct point_derivatives *d, int a, double *change) {
    const int n = p->nv, states = 2 * n, own = p->active[a], row = p->rows[own];
    const double s = p->stabilization;
    memcpy(change, d->accelerations + row * states, (size_t)states * sizeof(double));
    if (s == 0.0) return;
    add_row(change, 2.0 * s, d->rates + row * states, states);
    if (own < p->closed_count) add_row(change, s * s, p->terms.jacobian + row * n, n); /* a gap moves by its row */
}

/* Write c' = -C M^-1 (right-hand side) + D(target) of the multipliers (m, z) at fixed multipliers.
 *
 * `field` has been multiplied by U^-1, so that the first term is a product with Y' (equations.c). `change` is
 * scratch (2 nv,). */
static void set_constraints(const struct kernel *p, const struct point_derivatives *d, double *change, double *m_z) {
    const int n = p->nv, columns = d->columns;
    memset(m_z, 0, (size_t)p->active_count * columns * sizeof(double));
    for (int a = 0; a < p->active_count; a++) {
        double *into = m_z + a * columns;
        add_listed_rows(into, columns, -1.0, p->moved + p->active[a], p->width, p->moving, p->moving_count, d->field,
                        columns);
        differentiate_target(p, d, a, change);
        add_row(into, -1.0, change, 2 * n);
    }
}

/* Write Q' c' (rank, z) of redundant contacts, and Y Q (nv, rank). `changes` is scratch (r, z). */
static void set_coordinates(const struct kernel *p, const struct point_derivatives *d, double *changes,
                            double *motions, double *t) {
    const int n = p->nv, m = p->active_count, rank = p->shared.rank, columns = d->columns;
    const int first = p->tree ? p->tree->first_moving : 0, width = p->tree ? p->tree->moving_width : n;
    double *q = changes; /* (r, rank) */
    memset(q, 0, (size_t)p->row_count * rank * sizeof(double));
    for (int a = 0; a < m; a++)
        for (int k = 0; k < rank; k++) q[p->active[a] * rank + k] = p->shared.q[k * m + a];
    memset(motions, 0, (size_t)n * rank * sizeof(double));
    for (int l = 0; l < p->moving_count; l++) {
        const int i = p->moving[l];
        add_rows(motions + i * rank, rank, 1.0, p->moved + i * p->width, 1, p->row_count, q, rank);
    }
    for (int a = 0; a < m; a++) differentiate_target(p, d, a, changes + a * 2 * n);
    memset(t, 0, (size_t)rank * columns * sizeof(double));
    for (int k = 0; k < rank; k++) {
        double *own = t + k * columns;
        add_listed_rows(own, columns, -1.0, motions + k, rank, p->moving, p->moving_count, d->field, columns);
        for (int c = first; c < 2 * n; c += n) /* by q, then by v */
            add_rows(own + c, width, -1.0, p->shared.q + k * m, 1, m, changes + c, 2 * n);
    }
}

/* Replace m_z (m, z) by f_z = E m_z (r, z), without the turning of directions. Rows keep their order: each moves
 * away from the first, the last one first. */
static void mix_forces(const struct kernel *p, int columns, double *f_z) {
    for (int a = p->active_count - 1; a >= 0; a--)
        if (p->active[a] != a)
            memcpy(f_z + p->active[a] * columns, f_z + a * columns, (size_t)columns * sizeof(double));
    for (int j = 0; j < p->closed_count; j++)
        for (int t = p->closed[j].first; slides_now(p, j) && t < p->closed[j].last; t++)
            for (int c = 0; c < columns; c++)
                f_z[t * columns + c] = p->direction[2 * j + t - p->closed[j].first] *
                                       f_z[j * columns + c];
}

/* Add Y f_z (nv, z), Y = U^-1 J'. */
static void add_forces(const struct kernel *p, int columns, const double *f_z, double *field) {
    for (int l = 0; l < p->moving_count; l++)
        add_rows(field + p->moving[l] * columns, columns, 1.0, p->moved + p->moving[l] * p->width, 1, p->row_count, f_z,
                 columns);
}

/* Add what turns with the direction of a contact that starts, to U^T D a (nv, z) and f_z (r, z).
 *
 * The acceleration across it stays zero (differentiate_starting_contacts of slip_directions.py). */
static int add_starting(struct kernel *p, const struct point_derivatives *d, double *across,
                        double *f_z) {
    const int n = p->nv, states = 2 * n, columns = d->columns, width = p->width;
    const int first = p->closed[p->starting].first;
    const double *unit = p->unit + 2 * p->starting, s = p->stabilization;
    double slope;
    if (differentiate_angle(p, p->starting, p->change, &slope) != DONE) return ASK_PYTHON;
    memset(across, 0, (size_t)columns * sizeof(double));
    for (int t = 0; t < 2; t++) {
        const double weight = t ? unit[0] : -unit[1];
        const int row = p->rows[first + t];
        for (int i = 0; i < n; i++) {
            const double factor = weight * p->moved[i * width + first + t];
            for (int c = 0; c < columns; c++) across[c] += factor * d->field[i * columns + c];
        }
        for (int c = 0; c < states; c++)
            across[c] += weight * (d->accelerations[row * states + c] +
                                   2.0 * s * d->rates[row * states + c]);
    }
    for (int i = 0; i < n; i++) {
        double turned = 0.0;
        for (int a = 0; a < p->row_count; a++) turned += p->moved[i * width + a] * p->change[a];
        turned /= slope;
        for (int c = 0; c < columns; c++) d->field[i * columns + c] -= turned * across[c];
    }
    for (int a = 0; a < p->row_count; a++) {
        const double turned = p->change[a] / slope;
        for (int c = 0; c < columns; c++) f_z[a * columns + c] -= turned * across[c];
    }
    return DONE;
}

/* Write the derivatives (n, z) of the guards, of which the forces' are f_z (r, z); as
 * ContactGuards.jacobian. Returns ASK_PYTHON where a contact has near-zero velocity and is not held. */
static int differentiate_guards(struct kernel *p, const struct point_derivatives *d, const double *f_z,
                                double *scratch) {
    const int n = p->nv, states = 2 * n, columns = d->columns;
    for (int i = 0; i < p->guard_count; i++) {
        const struct guard *guard = p->guards + i;
        const struct closed_contact *contact = p->closed + guard->place; /* not for CLOSES, JAMS */
        double *row = d->guards + i * columns;
        memset(row, 0, (size_t)columns * sizeof(double));
        switch (guard->kind) {
        case CLOSES:
            memcpy(row, p->terms.jacobian + guard->place * n, (size_t)n * sizeof(double));
            break;
        case OPENS:
            memcpy(row, f_z + guard->place * columns, (size_t)columns * sizeof(double));
            break;
        case SLIPS: {
            const double *friction = p->forces + contact->first;
            const int count = contact->last - contact->first;
            add_row(row, guard->static_friction, f_z + guard->place * columns, columns);
            if (guard->sign != 0.0) {
                add_row(row, guard->sign, f_z + contact->first * columns, columns);
                break;
            }
            const double length = count == 2 ? sqrt(friction[0] * friction[0] +
                                                    friction[1] * friction[1]) : fabs(friction[0]);
            for (int t = 0; count && length > 0.0 && t < count; t++)
                add_row(row, -friction[t] / length, f_z + (contact->first + t) * columns, columns);
            break;
        }
        case STICKS:
            if (guard->sign != 0.0) {
                add_row(row, guard->sign, d->rates + p->rows[contact->first] * states, states);
            } else if (guard->place != p->held) {
                if (p->slow == guard->place) return ASK_PYTHON;
                for (int t = 0; t < 2; t++)
                    add_row(row, p->unit[2 * guard->place + t],
                            d->rates + p->rows[contact->first + t] * states, states);
            }
            break;
        default:
            if (differentiate_ratio(p, d, scratch, row) != DONE) return ASK_PYTHON;
        }
    }
    return has_finite(d->guards, p->guard_count * columns) ? DONE : ASK_PYTHON;
}

/* Whether the scratch memory is of this point, with forces as they are shared if that matters: for guards, and where
 * redundant contacts slide. */
static int is_known(const struct kernel *p, const double *x, const double *u, int with_guards) {
    const int is_solved = p->known == FORCES || (p->known == ACCELERATION &&
                                                 (!p->shared.rank || (!with_guards && !count_sliding(p))));
    return is_solved && !memcmp(p->known_x, x, (size_t)p->nx * sizeof(double)) &&
           !memcmp(p->known_u, u, (size_t)p->nu * sizeof(double));
}

/* Differentiate the terms at the point evaluated last. */
static void differentiate_terms(struct kernel *p, double *forces, double *acceleration,
                                struct point_derivatives *d) {
    struct tree *tree = p->tree;
    const int n = p->nv, columns = d->columns;
    memset(forces, 0, (size_t)p->all_rows * sizeof(double));
    for (int a = 0; a < p->row_count; a++) forces[p->rows[a]] = p->forces[a];
    compute_acceleration(p, acceleration);
    const struct tree_motion motion = {p->terms.x + p->nq, acceleration, forces};
    place_joints(tree, p->terms.x);
    place_tree(tree);
    differentiate_tree(tree, &motion, p->rows, p->row_count, d->field, columns, d->accelerations,
                       d->rates);
    for (int i = 0; columns > 2 * n && i < n; i++)
        memcpy(d->field + i * columns + 2 * n, tree->actuation + i * p->nu, (size_t)p->nu * sizeof(double));
}

/* Differentiate acceleration and guards at coordinates x (nx,) and input u (nu,): DONE or ASK_PYTHON. */
int differentiate_point(struct kernel *p, const double *x, const double *u, double *scratch,
                        struct point_derivatives *d) {
    const int n = p->nv, columns = d->columns;
    double *rate = scratch, *f_z = rate + p->nx, *t = f_z + p->row_count * columns;
    double *across = t + p->row_count * columns, *work = across + columns, ratio;
    struct sliding_times times; /* asked for so that forces are shared */
    d->has_guards = 0;
    if (!is_known(p, x, u, d->guards != NULL) && evaluate_point(p, x, u, rate, NULL, &times) != DONE) return ASK_PYTHON;
    if (p->tree) {
        d->accelerations = work;
        d->rates = d->accelerations + 2 * n * p->all_rows;
        double *forces = d->rates + 2 * n * p->all_rows;
        work = forces + p->all_rows;
        differentiate_terms(p, forces, rate, d);
    }
    int has_forces = d->guards != NULL;
    add_turning(p, p->forces, d->rates, d->field, columns);
    solve_mass_root(p->terms.mass, n, d->field, columns);
    if (p->closed_count) {
        const int slides = count_sliding(p) > 0;
        if (p->shared.rank) {
            double *motions = work;
            work += n * p->shared.rank;
            if (!(p->shared.contradiction <= MAX_CONTRADICTION)) return ASK_PYTHON;
            set_coordinates(p, d, f_z, motions, t);
            /* Of contacts that all stick any forces with these coordinates make the same acceleration,
             * Y Q t; where some slide, weights and their derivatives change it. */
            for (int l = 0; !slides && l < p->moving_count; l++)
                add_rows(d->field + p->moving[l] * columns, columns, 1.0, motions + p->moving[l] * p->shared.rank, 1,
                         p->shared.rank, t, columns);
            const struct shared_changes changes = {d->rates, motions, t, f_z, columns};
            has_forces = (slides || has_forces) && differentiate_shared(p, &changes, work) == DONE;
            if (slides && !has_forces) return ASK_PYTHON;
        } else {
            set_constraints(p, d, work, f_z); /* m_z */
            if (solve_multipliers(p, f_z, columns, &ratio) != DONE) return ASK_PYTHON;
        }
        mix_forces(p, columns, f_z);
        if (slides || !p->shared.rank) add_forces(p, columns, f_z, d->field);
    }
    if (p->starting >= 0 && add_starting(p, d, across, f_z) != DONE) return ASK_PYTHON;
    solve_mass_root_transposed(p->terms.mass, n, n, d->field, columns);
    if (!has_finite(d->field, n * columns)) return ASK_PYTHON;
    d->has_guards = d->guards && has_forces && differentiate_guards(p, d, f_z, work) == DONE;
    return DONE;
}
