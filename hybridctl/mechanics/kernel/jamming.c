/* Derivatives of the response ratio p, which is zero where sliding contacts jam (modes/jamming.py).
 *
 * With G = C M^-1 J' E and G_even = C M^-1 C', p = det G / det G_even. Of redundant contacts it is the ratio of the
 * products of their nonzero singular values, which change by
 *
 *     D p / p = tr(G+ D(G)) - tr(G_even+ D(G_even)).
 */
#include <string.h>

#include "contact_kernel.h"

int jamming_scratch_size(const struct kernel *p) {
    const int r = p->row_count, n = p->nv, k = p->closed_count;
    const int single = k * (4 * r + 2 * k + 2 * n), shared = 3 * r * r + 2 * n * r;
    return 2 * (n + p->all_rows) + (single > shared ? single : shared);
}

/* Write M^-1 J' f (nv, count) for forces f (r, count). */
static void find_motions(const struct kernel *p, const double *f, int count, double *motions) {
    const int n = p->nv, r = p->row_count, width = p->width;
    memset(motions, 0, (size_t)n * count * sizeof(double));
    for (int i = 0; i < n; i++)
        add_rows(motions + i * count, count, 1.0, p->moved + i * width, 1, r, f, count);
    solve_mass_root_transposed(p->terms.mass, n, n, motions, count);
}

static void copy_column(const double *matrix, int rows, int columns, int column, double *into) {
    for (int i = 0; i < rows; i++) into[i] = matrix[i * columns + column];
}

/* Add how the friction of sliding contact j, J_t' (-mu s), turns with its velocity, times y (nv,). */
static void add_turning_pull(const struct kernel *p, const struct point_derivatives *d, int j,
                             const double *y, double factor, double *gradient) {
    const struct closed_contact *contact = p->closed + j;
    const int n = p->nv;
    if (contact->sign != 0.0) return;
    double pulls[2] = {0.0};
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < n; i++)
            pulls[t] += y[i] * p->terms.jacobian[p->rows[contact->first + t] * n + i];
    add_direction_change(p, j, d->rates, -factor * contact->friction * turn_across(p, j, pulls), gradient);
}

/* Add the derivative (q, v) of p = det(1 + E' X) where contacts are independent.
 *
 * G X = C M^-1 D', D the friction of the s sliding contacts per normal force. With G L = E (1 + E' X)^-T,
 * y = M^-1 C' L and z = M^-1 (D' - C' X), columns by columns,
 *
 *     D p / p = sum L . D(C) z + y . D(D' - C' X) - y' D(M) z.
 */
static int differentiate_independent(struct kernel *p, const struct point_derivatives *d, double *scratch,
                               double *change) {
    const int n = p->nv, r = p->row_count, m = p->active_count, k = p->closed_count;
    const int count = count_sliding(p);
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

/* Add tr(G+ D(G)) times `factor` to a gradient by (q, v), G+ = X Q' with columns x of X and q of Q in the rows of
 * `x` and `q` (rank, m). With y = M^-1 C' q and z = M^-1 J' E x it is
 *
 *     sum q . D(C) z + y . D(J' E) x - y' D(M) z,
 *
 * of which E has the friction of sliding contacts or has not. */
static void add_trace(struct kernel *p, const struct point_derivatives *d, const double *x, const double *q,
                      int with_friction, double factor, double *scratch, double *gradient) {
    const int n = p->nv, r = p->row_count, m = p->active_count, rank = p->shared.rank, both = 2 * rank;
    double *f = scratch, *motions = f + 2 * r * r, *y = motions + 2 * n * r;
    double *z = y + n, *pulls = z + n, *along = pulls + p->all_rows;
    memset(f, 0, (size_t)r * both * sizeof(double));
    for (int l = 0; l < rank; l++) {
        for (int i = 0; i < m; i++) {
            f[p->active[i] * both + l] = q[l * m + i];
            f[p->active[i] * both + rank + l] = x[l * m + i];
        }
        for (int j = 0; with_friction && j < p->closed_count; j++)
            for (int e = p->closed[j].first; slides_now(p, j) && e < p->closed[j].last; e++)
                f[e * both + rank + l] = p->direction[2 * j + e - p->closed[j].first] * x[l * m + j];
    }
    find_motions(p, f, both, motions);
    memset(pulls, 0, (size_t)p->all_rows * sizeof(double));
    memset(along, 0, (size_t)p->all_rows * sizeof(double));
    for (int l = 0; l < rank; l++) {
        copy_column(motions, n, both, l, y);
        copy_column(motions, n, both, rank + l, z);
        for (int a = 0; a < r; a++) {
            along[p->rows[a]] = f[a * both + l];
            pulls[p->rows[a]] = f[a * both + rank + l];
        }
        add_tree_gradient(p->tree, z, pulls, y, along, -factor, gradient);
        for (int j = 0; with_friction && j < p->closed_count; j++)
            if (slides_now(p, j)) add_turning_pull(p, d, j, y, factor * x[l * m + j], gradient);
    }
}

/* Add the derivative by (q, v) of p where contacts are redundant, after `share_forces`, whose factors are lost. */
static int differentiate_redundant(struct kernel *p, const struct point_derivatives *d, double *scratch,
                                   double *change) {
    const int r = p->row_count, m = p->active_count;
    struct sharing *shared = &p->shared;
    const int rank = shared->rank;
    double *x = scratch, ratio = 1.0;
    int even_rank = 0;
    for (int l = 0; l < rank; l++) ratio *= shared->s[l * rank + l];
    invert_factor(shared->z, shared->s, m, rank, x);
    add_trace(p, d, x, shared->q, 1, 1.0, scratch + r * r, change);
    p->known = NO_POINT;
    ratio /= factorise_shared(p, 0, &even_rank);
    if (even_rank != rank) return ASK_PYTHON;
    add_trace(p, d, shared->q, shared->q, 0, -1.0, scratch + r * r, change); /* G_even+ = Q Q' */
    for (int c = 0; c < 2 * p->nv; c++) change[c] *= ratio;
    return DONE;
}

/* Write the derivative (z,) of the response ratio p. Returns ASK_PYTHON where a contact starts: how its direction
 * turns is not here. */
int differentiate_ratio(struct kernel *p, const struct point_derivatives *d, double *scratch, double *change) {
    memset(change, 0, (size_t)d->columns * sizeof(double));
    if (count_sliding(p) == 0) return DONE;
    if (!p->tree || p->starting >= 0) return ASK_PYTHON;
    return p->shared.rank ? differentiate_redundant(p, d, scratch, change)
                          : differentiate_independent(p, d, scratch, change);
}
