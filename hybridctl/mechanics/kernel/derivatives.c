/* Derivatives of the acceleration by z = (q, v, u), from those of the terms at fixed a and f.
 *
 * The differentiated equations have the factors of the equations themselves (modes/derivatives.py):
 *
 *     M a_z - J' E m_z = -D(M a + h - J' f) + S - J' K D(J v),
 *     C a_z = -D(J a + dJ/dt v + 2 s J v + s^2 h),   K = mu f_n / |v_t| (I - s s'),
 *
 * where K turns the friction of contacts that slide in a surface with their velocity.
 */
#include <string.h>

#include "contact_kernel.h"

/* Residual of redundant constraints, relative to c, with which derivatives are right to about that. */
static const double MAX_CONTRADICTION = 1e-10;
static const double NO_DIRECTION = 1e-12; /* speed that is rounding, m/s: modes/tolerances.py */

static int count_columns(const struct kernel *p) { return 2 * p->nv + p->nu; }

/* Return the doubles of scratch memory: a rate, m_z (m, z), f_z (r, z), and one row (z,).
 *
 * There is room for m = r. */
int derivative_scratch_size(const struct kernel *p) {
    return p->nx + (2 * p->row_count + 1) * count_columns(p);
}

/* Add -J' K D(J v) to D f at fixed multipliers times J', by columns of (q, v). */
static void add_turning(const struct kernel *p, const struct point_derivatives *d) {
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
            for (int c = 0; c < states; c++) into[c] += across * (s[0] * y[c] - s[1] * x[c]);
        }
    }
}

/* Write -C M^-1 (right-hand side) - D(target) for the constrained rows, into m_z (m, z).
 *
 * `field` has been multiplied by U^-1, so that the first term is a product with Y' (equations.c). */
static void set_constraints(const struct kernel *p, const struct point_derivatives *d, double *m_z) {
    const int n = p->nv, states = 2 * n, columns = count_columns(p), width = p->row_count + 1;
    const double s = p->stabilization;
    memset(m_z, 0, (size_t)p->active_count * columns * sizeof(double));
    for (int a = 0; a < p->active_count; a++) {
        const int own = p->active[a], row = p->rows[own];
        double *into = m_z + a * columns;
        for (int i = 0; i < n; i++) {
            const double factor = p->moved[i * width + own], *from = d->field + i * columns;
            if (factor == 0.0) continue;
            for (int c = 0; c < columns; c++) into[c] -= factor * from[c];
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

/* Add what turns with the direction of a contact that starts, to U^T D a (nv, z).
 *
 * The acceleration across it stays zero (differentiate_starting_contacts of slip_directions.py). */
static int add_starting(struct kernel *p, const struct point_derivatives *d, double *across) {
    const int n = p->nv, states = 2 * n, columns = count_columns(p), width = p->row_count + 1;
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
    return DONE;
}

/* Differentiate the acceleration at coordinates x (nx,) and input u (nu,): DONE or ASK_PYTHON. */
int differentiate_point(struct kernel *p, const double *x, const double *u, double *scratch,
                        struct point_derivatives *d) {
    const int n = p->nv, columns = count_columns(p), width = p->row_count + 1;
    double *rate = scratch, *m_z = rate + p->nx, *f_z = m_z + p->row_count * columns, ratio;
    if (evaluate_point(p, x, u, rate, NULL, NULL) != DONE) return ASK_PYTHON;
    add_turning(p, d);
    solve_mass_root(p->terms.mass, n, d->field, columns);
    if (p->closed_count) {
        set_constraints(p, d, m_z);
        /* Of redundant contacts that all stick any forces make the same acceleration; where some
         * slide, weights and their derivatives change it, and a residual does where there is one. */
        if (p->shared.rank &&
            (count_sliding(p) || !(p->shared.contradiction <= MAX_CONTRADICTION)))
            return ASK_PYTHON;
        if (p->shared.rank)
            solve_least_norm(p, m_z, columns);
        else if (solve_multipliers(p, m_z, columns, &ratio) != DONE)
            return ASK_PYTHON;
        mix_forces(p, m_z, f_z);
        for (int i = 0; i < n; i++)
            for (int a = 0; a < p->row_count; a++) {
                const double factor = p->moved[i * width + a], *from = f_z + a * columns;
                if (factor == 0.0) continue;
                for (int c = 0; c < columns; c++) d->field[i * columns + c] += factor * from[c];
            }
    }
    if (p->starting >= 0 && add_starting(p, d, f_z + p->row_count * columns) != DONE)
        return ASK_PYTHON;
    solve_mass_root_transposed(p->terms.mass, n, d->field, columns);
    return has_finite(d->field, n * columns) ? DONE : ASK_PYTHON;
}
