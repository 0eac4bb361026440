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

static int count_columns(const struct kernel *p) { return 2 * p->nv + p->nu; }

/* Return the doubles of scratch memory, with room for m = r. */
int derivative_scratch_size(const struct kernel *p) {
    const int z = count_columns(p), r = p->row_count, rows = p->all_rows, k = p->closed_count;
    const int shared = shared_scratch_size(p), jamming = k * (4 * r + 2 * k + 2 * p->nv) + 2 * (p->nv + rows);
    return p->nx + (2 * r + 1) * z + 4 * p->nv * rows + rows + (shared > jamming ? shared : jamming);
}

/* Add -J' K D(J v) to D f at fixed multipliers times J', by columns of (q, v). */
ALONG_ROWS static void add_turning(const struct kernel *p, const struct point_derivatives *d) {
    const int n = p->nv, states = 2 * n, columns = count_columns(p);
    for (int j = 0; j < p->closed_count; j++) {
        const struct closed_contact *contact = p->closed + j;
        /* The direction of one that starts is that of its acceleration. */
        if (!slides_now(p, j) || contact->sign != 0.0 || j == p->starting) continue;
        if (!(p->speed[j] > NO_DIRECTION)) continue;
        const double *s = p->unit + 2 * j;
        const double turning = contact->friction * p->forces[j] / p->speed[j];
        const int first = p->rows[contact->first], second = p->rows[contact->first + 1];
        const double *x = d->rates + first * states, *y = d->rates + second * states;
        for (int i = 0; i < n; i++) {
            /* I - s s' = t t' with t = (-s_2, s_1) */
            const double across = -turning * (s[0] * p->terms.jacobian[second * n + i] -
                                              s[1] * p->terms.jacobian[first * n + i]);
            if (across == 0.0) continue;
            double *into = d->field + i * columns;
            add_row(into, across * s[0], y, states);
            add_row(into, -across * s[1], x, states);
        }
    }
}

/* Write -C M^-1 (right-hand side) - D(target) for the constrained rows, into m_z (m, z).
 *
 * `field` has been multiplied by U^-1, so that the first term is a product with Y' (equations.c). */
ALONG_ROWS static void set_constraints(const struct kernel *p, const struct point_derivatives *d, double *m_z) {
    const int n = p->nv, states = 2 * n, columns = count_columns(p), width = p->width;
    const double s = p->stabilization;
    memset(m_z, 0, (size_t)p->active_count * columns * sizeof(double));
    for (int a = 0; a < p->active_count; a++) {
        const int own = p->active[a], row = p->rows[own];
        double *into = m_z + a * columns;
        for (int i = 0; i < n; i++) {
            const double factor = p->moved[i * width + own], *from = d->field + i * columns;
            if (factor == 0.0) continue;
            add_row(into, -factor, from, columns);
        }
        for (int c = 0; c < states; c++)
            into[c] -= d->accelerations[row * states + c] + 2.0 * s * d->rates[row * states + c];
        for (int c = 0; own < p->closed_count && c < n; c++) /* a gap moves by its row of J */
            into[c] -= s * s * p->terms.jacobian[row * n + c];
    }
}

/* Write f_z = E m_z (r, z), without the turning of directions. */
static void mix_forces(const struct kernel *p, const double *m_z, double *f_z) {
    const int columns = count_columns(p);
    memset(f_z, 0, (size_t)p->row_count * columns * sizeof(double));
    for (int a = 0; a < p->active_count; a++)
        memcpy(f_z + p->active[a] * columns, m_z + a * columns, columns * sizeof(double));
    for (int j = 0; j < p->closed_count; j++)
        for (int t = p->closed[j].first; slides_now(p, j) && t < p->closed[j].last; t++)
            for (int c = 0; c < columns; c++)
                f_z[t * columns + c] = p->direction[2 * j + t - p->closed[j].first] *
                                       m_z[j * columns + c];
}

/* Add Y f_z (nv, z), Y = U^-1 J'. */
ALONG_ROWS static void add_forces(const struct kernel *p, const double *f_z, double *field) {
    const int columns = count_columns(p), width = p->width;
    for (int i = 0; i < p->nv; i++)
        for (int a = 0; a < p->row_count; a++) {
            const double factor = p->moved[i * width + a], *from = f_z + a * columns;
            if (factor == 0.0) continue;
            add_row(field + i * columns, factor, from, columns);
        }
}

/* Add what turns with the direction of a contact that starts, to U^T D a (nv, z) and f_z (r, z).
 *
 * The acceleration across it stays zero (differentiate_starting_contacts of slip_directions.py). */
static int add_starting(struct kernel *p, const struct point_derivatives *d, double *across,
                        double *f_z) {
    const int n = p->nv, states = 2 * n, columns = count_columns(p), width = p->width;
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

/* Write M^-1 J' f (nv, count) for forces f (r, count). */
static void find_motions(const struct kernel *p, const double *f, int count, double *motions) {
    const int n = p->nv, r = p->row_count, width = p->width;
    memset(motions, 0, (size_t)n * count * sizeof(double));
    for (int i = 0; i < n; i++)
        for (int a = 0; a < r; a++) {
            const double factor = p->moved[i * width + a];
            if (factor != 0.0) add_row(motions + i * count, factor, f + a * count, count);
        }
    solve_mass_root_transposed(p->terms.mass, n, motions, count);
}

static void copy_column(const double *matrix, int rows, int columns, int column, double *into) {
    for (int i = 0; i < rows; i++) into[i] = matrix[i * columns + column];
}

/* Add how the friction of sliding contact j, J_t' (-mu s), turns with its velocity, times y (nv,). */
static void add_turning_pull(const struct kernel *p, const struct point_derivatives *d, int j,
                             const double *y, double factor, double *gradient) {
    const struct closed_contact *contact = p->closed + j;
    const int n = p->nv, states = 2 * n;
    if (contact->sign != 0.0 || j == p->starting || !(p->speed[j] > NO_DIRECTION)) return;
    const double *s = p->unit + 2 * j;
    const int first = p->rows[contact->first], second = p->rows[contact->first + 1];
    double across = 0.0;
    for (int i = 0; i < n; i++)
        across += y[i] * (s[0] * p->terms.jacobian[second * n + i] -
                          s[1] * p->terms.jacobian[first * n + i]);
    across *= -factor * contact->friction / p->speed[j];
    add_row(gradient, across * s[0], d->rates + second * states, states);
    add_row(gradient, -across * s[1], d->rates + first * states, states);
}

/* Write the derivative (z,) of the response ratio p = det(1 + E' X), see modes/jamming.py.
 *
 * G X = C M^-1 D', D the friction of the s sliding contacts per normal force. With G L = E (1 + E' X)^-T,
 * y = M^-1 C' L and z = M^-1 (D' - C' X), columns by columns,
 *
 *     D p / p = sum L . D(C) z + y . D(D' - C' X) - y' D(M) z.
 *
 * Returns ASK_PYTHON where contacts are redundant, or one starts: how its direction turns is not here. */
static int differentiate_ratio(struct kernel *p, const struct point_derivatives *d, double *scratch,
                               double *change) {
    const int n = p->nv, r = p->row_count, m = p->active_count, k = p->closed_count;
    memset(change, 0, (size_t)count_columns(p) * sizeof(double));
    const int count = count_sliding(p);
    if (count == 0) return DONE;
    if (!p->tree || p->shared.rank || p->starting >= 0) return ASK_PYTHON;
    double *x = scratch, *l = x + k * r, *t = l + k * r, *inverse = t + k * k;
    double *z = inverse + k * k, *y = z + n, *f = y + n, *motions = f + 2 * r * k;
    double *pulls = motions + 2 * n * k, *along = pulls + p->all_rows;
    double ratio, determinant;
    int owners = 0; /* of sliding contacts, in order */
    for (int j = 0; j < k; j++) {
        if (!slides_now(p, j)) continue;
        for (int i = 0; i < m; i++) {
            const double *row = p->delassus + p->active[i] * r;
            double total = 0.0;
            for (int e = p->closed[j].first; e < p->closed[j].last; e++)
                total += row[e] * p->direction[2 * j + e - p->closed[j].first];
            x[i * count + owners] = total;
        }
        owners++;
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < m; j++) p->even[i * m + j] = p->delassus[p->active[i] * r + p->active[j]];
    if (!factorise_symmetric(p->even, m, 0.0, &determinant)) return ASK_PYTHON;
    solve_symmetric(p->even, m, x, count);
    for (int j = 0, own = 0; j < k; j++) { /* (1 + E' X)' */
        if (!slides_now(p, j)) continue;
        for (int i = 0; i < count; i++) t[i * count + own] = x[j * count + i] + (own == i);
        own++;
    }
    memset(inverse, 0, (size_t)count * count * sizeof(double));
    for (int i = 0; i < count; i++) inverse[i * count + i] = 1.0;
    if (!factorise_and_solve(t, count, 0.0, inverse, count, &ratio)) return ASK_PYTHON;
    memset(l, 0, (size_t)m * count * sizeof(double));
    for (int j = 0, own = 0; j < k; j++)
        if (slides_now(p, j)) memcpy(l + j * count, inverse + count * own++, count * sizeof(double));
    solve_symmetric(p->even, m, l, count);
    /* Forces of L, and D' - C' X, columns by columns. */
    const int both = 2 * count;
    memset(f, 0, (size_t)r * both * sizeof(double));
    for (int i = 0; i < m; i++)
        for (int own = 0; own < count; own++) {
            f[p->active[i] * both + own] = l[i * count + own];
            f[p->active[i] * both + count + own] = -x[i * count + own];
        }
    for (int j = 0, own = count; j < k; j++) {
        if (!slides_now(p, j)) continue;
        for (int e = p->closed[j].first; e < p->closed[j].last; e++)
            f[e * both + own] += p->direction[2 * j + e - p->closed[j].first];
        own++;
    }
    find_motions(p, f, both, motions);
    memset(pulls, 0, (size_t)p->all_rows * sizeof(double));
    memset(along, 0, (size_t)p->all_rows * sizeof(double));
    for (int j = 0, own = 0; j < k; j++) {
        if (!slides_now(p, j)) continue;
        copy_column(motions, n, both, own, y);
        copy_column(motions, n, both, count + own, z);
        for (int a = 0; a < r; a++) {
            along[p->rows[a]] = f[a * both + own];
            pulls[p->rows[a]] = f[a * both + count + own];
        }
        add_tree_gradient(p->tree, z, pulls, y, along, -ratio, change);
        add_turning_pull(p, d, j, y, ratio, change);
        own++;
    }
    return DONE;
}

/* Write the derivatives (n, z) of the guards, of which the forces' are f_z (r, z); as
 * ContactGuards.jacobian. Returns ASK_PYTHON where a contact has near-zero velocity and is not held. */
static int differentiate_guards(struct kernel *p, const struct point_derivatives *d, const double *f_z,
                                double *scratch) {
    const int n = p->nv, states = 2 * n, columns = count_columns(p);
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

/* Whether the scratch memory is of this point, with forces as they are shared. */
static int is_known(const struct kernel *p, const double *x, const double *u) {
    return p->known == FORCES && !memcmp(p->known_x, x, (size_t)p->nx * sizeof(double)) &&
           !memcmp(p->known_u, u, (size_t)p->nu * sizeof(double));
}

/* Differentiate the terms at the point evaluated last. */
static void differentiate_terms(struct kernel *p, double *forces, double *acceleration,
                                struct point_derivatives *d) {
    struct tree *tree = p->tree;
    const int n = p->nv, columns = count_columns(p);
    memset(forces, 0, (size_t)p->all_rows * sizeof(double));
    for (int a = 0; a < p->row_count; a++) forces[p->rows[a]] = p->forces[a];
    compute_acceleration(p, acceleration);
    const struct tree_motion motion = {p->terms.x + p->nq, acceleration, forces};
    place_tree(tree, d->poses, d->columns);
    differentiate_tree(tree, &motion, p->rows, p->row_count, d->field, columns, d->accelerations,
                       d->rates);
    for (int i = 0; i < n; i++)
        memcpy(d->field + i * columns + 2 * n, tree->actuation + i * p->nu,
               (size_t)p->nu * sizeof(double));
}

/* Differentiate acceleration and guards at coordinates x (nx,) and input u (nu,): DONE or ASK_PYTHON. */
int differentiate_point(struct kernel *p, const double *x, const double *u, double *scratch,
                        struct point_derivatives *d) {
    const int n = p->nv, columns = count_columns(p);
    double *rate = scratch, *m_z = rate + p->nx, *f_z = m_z + p->row_count * columns;
    double *across = f_z + p->row_count * columns, *work = across + columns, ratio;
    struct sliding_times times; /* asked for so that forces are shared */
    d->has_guards = 0;
    if (!is_known(p, x, u) && evaluate_point(p, x, u, rate, NULL, &times) != DONE) return ASK_PYTHON;
    if (d->poses) {
        d->accelerations = work;
        d->rates = d->accelerations + 2 * n * p->all_rows;
        double *forces = d->rates + 2 * n * p->all_rows;
        work = forces + p->all_rows;
        differentiate_terms(p, forces, rate, d);
    }
    int has_forces = d->guards != NULL;
    add_turning(p, d);
    solve_mass_root(p->terms.mass, n, d->field, columns);
    if (p->closed_count) {
        set_constraints(p, d, m_z);
        /* Of redundant contacts that all stick any forces make the same acceleration; where some
         * slide, weights and their derivatives change it, and a residual does where there is one. */
        if (p->shared.rank &&
            (count_sliding(p) || !(p->shared.contradiction <= MAX_CONTRADICTION)))
            return ASK_PYTHON;
        if (p->shared.rank) {
            has_forces = has_forces && differentiate_shared(p, m_z, work) == DONE;
            if (!has_forces) solve_least_norm(p, m_z, columns);
        } else if (solve_multipliers(p, m_z, columns, &ratio) != DONE) {
            return ASK_PYTHON;
        }
        mix_forces(p, m_z, f_z);
        add_forces(p, f_z, d->field);
    }
    if (p->starting >= 0 && add_starting(p, d, across, f_z) != DONE) return ASK_PYTHON;
    solve_mass_root_transposed(p->terms.mass, n, d->field, columns);
    if (!has_finite(d->field, n * columns)) return ASK_PYTHON;
    d->has_guards = has_forces && differentiate_guards(p, d, f_z, work) == DONE;
    return DONE;
}
