/* Derivatives of the forces that redundant contacts share, where all of them stick.
 *
 * Forces m = W G' y with G m = c change by
 *
 *     G+ c' + (1 - G+ G) (W D(G') y + W' W^-1 m),   c' at fixed m,
 *
 * which is differentiate_multipliers of modes/force_distribution.py. With the factors of redundant.c,
 * and b = W^(-1/2) of what is in brackets, it is W^(1/2) (Z (S^-T Q' c' - Z' b) + b). W follows the normal
 * forces of equal weights, whose derivatives are the same with W = 1.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

static const double LEAST_WEIGHT = 1e-6; /* relative to all normal forces: modes/tolerances.py */

int shared_scratch_size(const struct kernel *p) {
    const int r = p->row_count, n = p->nv, z = 2 * n + p->nu;
    return 4 * r * z + r * n + n * n + 6 * r + n + p->all_rows + 2 * r;
}

/* Write t = S^-T Q' c and y = Q S^-1 t: m = W^(1/2) Z t, G' y = W^-1 m. */
static void find_adjoint(const struct kernel *p, const double *right, const double *s, double *t,
                         double *scratch, double *y) {
    const int m = p->active_count, rank = p->shared.rank;
    const double *q = p->shared.q;
    for (int k = 0; k < rank; k++) {
        double total = 0.0;
        for (int i = 0; i < m; i++) total += q[k * m + i] * right[i];
        for (int l = 0; l < k; l++) total -= s[k * rank + l] * t[l];
        t[k] = total / s[k * rank + k];
    }
    memset(y, 0, (size_t)m * sizeof(double));
    for (int k = rank - 1; k >= 0; k--) { /* S w = t, backward: row l of s is column l of S */
        double total = t[k];
        for (int l = k + 1; l < rank; l++) total -= s[l * rank + k] * scratch[l];
        scratch[k] = total / s[k * rank + k];
        add_row(y, scratch[k], q + k * m, m);
    }
}

static void find_multipliers(const struct kernel *p, const double *z, const double *half,
                             const double *t, double *multipliers) {
    const int m = p->active_count;
    memset(multipliers, 0, (size_t)m * sizeof(double));
    for (int k = 0; k < p->shared.rank; k++) add_row(multipliers, t[k], z + k * m, m);
    for (int i = 0; half && i < m; i++) multipliers[i] *= half[i];
}

/* Write D(G') y (m, n) by q, as rows turn with bodies that move by M^-1 J' y. */
static void turn_rows(struct kernel *p, const double *y, double *motion, double *turns) {
    const int n = p->nv, width = p->width;
    for (int i = 0; i < n; i++) {
        motion[i] = 0.0;
        for (int a = 0; a < p->active_count; a++)
            motion[i] += p->moved[i * width + p->active[a]] * y[a];
    }
    solve_mass_root_transposed(p->terms.mass, n, motion, 1);
    find_tree_velocities(p->tree, motion);
    for (int a = 0; a < p->active_count; a++)
        turn_tree_row(p->tree, p->rows[p->active[a]], turns + a * n);
}

/* Write the first `count` rows of Z (S^-T Q' c' - Z' b) + b for c' (m, z) and b, whose first `used` columns
 * are not zero; `inner` is scratch (rank, z). */
ALONG_ROWS static void solve_changes(const struct kernel *p, const double *z, const double *s,
                          const double *wanted, const double *b, int used, int count, double *inner,
                          double *result) {
    const int m = p->active_count, rank = p->shared.rank, columns = 2 * p->nv + p->nu;
    for (int k = 0; k < rank; k++) {
        double *own = inner + k * columns;
        memset(own, 0, (size_t)columns * sizeof(double));
        for (int i = 0; i < m; i++)
            add_row(own, p->shared.q[k * m + i], wanted + i * columns, columns);
        for (int l = 0; l < k; l++) add_row(own, -s[k * rank + l], inner + l * columns, columns);
        const double inverse = 1.0 / s[k * rank + k];
        for (int c = 0; c < columns; c++) own[c] *= inverse;
    }
    for (int k = 0; k < rank; k++)
        for (int i = 0; i < m; i++)
            add_row(inner + k * columns, -z[k * m + i], b + i * columns, used);
    for (int i = 0; i < count; i++) {
        double *own = result + i * columns;
        memcpy(own, b + i * columns, (size_t)used * sizeof(double));
        memset(own + used, 0, (size_t)(columns - used) * sizeof(double));
        for (int k = 0; k < rank; k++) add_row(own, z[k * m + i], inner + k * columns, columns);
    }
}

/* Replace c' (m, z) by the derivatives of the multipliers: DONE, or ASK_PYTHON where they are at the
 * border of a cone, or how rows turn is not known. All contacts stick. */
ALONG_ROWS int differentiate_shared(struct kernel *p, double *wanted, double *scratch) {
    struct sharing *shared = &p->shared;
    struct tree *tree = p->tree;
    const int m = p->active_count, k = p->closed_count, n = p->nv, rank = shared->rank;
    const int columns = 2 * n + p->nu, r = p->row_count, width = p->width;
    if (!tree || p->held >= 0 || rank != tree->load_rank || shared->is_at_border) return ASK_PYTHON;
    double *even_wanted = scratch, *b = even_wanted + r * columns, *inner = b + r * columns;
    double *even_z = inner + r * columns, *turns = even_z + r * columns, *pulled = turns + r * n;
    double *right = pulled + n * n, *t = right + r, *y = t + r, *even = y + r, *other = even + r;
    double *half = other + r, *motion = half + r, *forces = motion + n, *work = forces + p->all_rows;
    for (int i = 0; i < m; i++) right[i] = p->target[p->active[i]] - p->free[p->active[i]];
    find_adjoint(p, right, shared->s, t, work, y);
    find_multipliers(p, shared->z, NULL, t, even);
    memcpy(p->solution, even, (size_t)m * sizeof(double));
    const int is_weighted = find_weights(p, half);
    turn_rows(p, y, motion, turns);
    for (int i = 0; i < m; i++) {
        memset(b + i * columns, 0, (size_t)columns * sizeof(double));
        memcpy(b + i * columns, turns + i * n, (size_t)n * sizeof(double));
    }
    if (!is_weighted) {
        if (m > k) return ASK_PYTHON; /* without a load by which friction is shared */
        solve_changes(p, shared->z, shared->s, wanted, b, n, m, inner, even_z);
        memcpy(wanted, even_z, (size_t)m * columns * sizeof(double));
        return DONE;
    }
    /* c' of equal weights: C M^-1 D(J' f) is that of other forces. */
    memset(forces, 0, (size_t)p->all_rows * sizeof(double));
    for (int i = 0; i < m; i++)
        forces[p->rows[p->active[i]]] = even[i] - p->forces[p->active[i]];
    differentiate_pull(tree, forces, pulled);
    solve_mass_root(p->terms.mass, n, pulled, n);
    memcpy(even_wanted, wanted, (size_t)m * columns * sizeof(double));
    for (int a = 0; a < m; a++)
        for (int i = 0; i < n; i++) {
            const double factor = p->moved[i * width + p->active[a]];
            if (factor != 0.0) add_row(even_wanted + a * columns, -factor, pulled + i * n, n);
        }
    solve_changes(p, shared->z, shared->s, even_wanted, b, n, k, inner, even_z);

    factorise_weighted(shared->b, half, m, rank, shared->weighted, shared->root);
    find_adjoint(p, right, shared->root, t, work, y);
    find_multipliers(p, shared->weighted, half, t, other);
    turn_rows(p, y, motion, turns);
    double squares = 0.0;
    for (int j = 0; j < k; j++) squares += even[j] * even[j];
    const double least = LEAST_WEIGHT * sqrt(squares);
    double *least_z = even_wanted; /* D(least) (z,) */
    memset(least_z, 0, (size_t)columns * sizeof(double));
    for (int j = 0; j < k; j++)
        add_row(least_z, LEAST_WEIGHT * LEAST_WEIGHT / least * even[j], even_z + j * columns, columns);
    for (int i = 0, owner = 0; i < m; i++) {
        double *into = b + i * columns;
        memset(into, 0, (size_t)columns * sizeof(double));
        add_row(into, half[i], turns + i * n, n);
        if (i < k) continue;
        while (p->active[i] >= p->closed[owner].last) owner++;
        /* w = least (1 + log(1 + e^(x - 1))), x = normal force / least, and W^-1/2 W' W^-1 m */
        const double x = even[owner] / least - 1.0, slope = 1.0 / (1.0 + exp(-x));
        const double by_least = 1.0 + fmax(x, 0.0) + log1p(exp(-fabs(x))) - slope * (x + 1.0);
        const double factor = other[i] / (half[i] * half[i] * half[i]);
        add_row(into, factor * slope, even_z + owner * columns, columns);
        add_row(into, factor * by_least, least_z, columns);
    }
    solve_changes(p, shared->weighted, shared->root, wanted, b, columns, m, inner, even_z);
    for (int i = 0; i < m; i++)
        for (int c = 0; c < columns; c++) wanted[i * columns + c] = half[i] * even_z[i * columns + c];
    return DONE;
}
