/* Derivatives of the forces that redundant contacts share.
 *
 * Forces m = W G' y with G m = c change by
 *
 *     G+ c' + (1 - G+ G) (W D(G') y + W' W^-1 m),   c' at fixed m,
 *
 * which is differentiate_multipliers of modes/force_distribution.py. With the factors of redundant.c, t = Q' c',
 * and b = W^(-1/2) of what is in brackets, it is W^(1/2) (Z S^-T t + (1 - Z Z') b). W follows the normal
 * forces of equal weights, whose derivatives are the same with W = 1.
 *
 * Of contacts that all stick, G = C M^-1 C', and all of D(G') y but the turn of the rows C is in the range of G',
 * which 1 - G+ G takes away. Where some slide, G' = E' J M^-1 C' turns with z = M^-1 C' y by
 *
 *     D(G') y = D(E') J z + E' (D(J) z - J M^-1 (D(M) z - D(C') y)).
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

static const double LEAST_WEIGHT = 1e-6; /* relative to all normal forces: modes/tolerances.py */

int shared_scratch_size(const struct kernel *p) {
    const int r = p->row_count, n = p->nv, rows = p->all_rows;
    return 10 * r * n + 5 * r * r + 2 * n * n + 4 * n * rows + 7 * r + n + rows;
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

/* Write M^-1 J' f (nv,) for forces along the active rows (m,). */
static void find_motion(const struct kernel *p, const double *y, double *motion) {
    memset(motion, 0, (size_t)p->nv * sizeof(double));
    for (int l = 0; l < p->moving_count; l++) {
        const int i = p->moving[l];
        for (int a = 0; a < p->active_count; a++)
            motion[i] += p->moved[i * p->width + p->active[a]] * y[a];
    }
    solve_mass_root_transposed(p->terms.mass, p->nv, p->nv, motion, 1);
}

/* Derivatives of what a change of motion and forces is in the equations. */
struct changed_terms {
    const double *rates;   /* in: of J v by (q, v) (R, 2 n) */
    double *equations;     /* -D(M a - J' f) (n, n), with room for (n, 2 n) */
    double *accelerations; /* D(J) a, the first n columns of (R, 2 n) */
    double *unused;        /* (R, 2 n) */
};

/* Write the derivatives by q for motion a (n,) and forces (R,), in `width` columns of the equations. */
static void change_terms(struct kernel *p, const double *a, const double *forces, int width,
                         struct changed_terms *out) {
    const struct tree_motion motion = {NULL, a, forces};
    differentiate_tree(p->tree, &motion, p->rows, p->row_count, out->equations, width, out->accelerations,
                       out->unused);
}

/* Write D(G') y by q for contacts that all stick, into the first columns of b, whose rows are `stride` apart: rows
 * turn with bodies that move by M^-1 C' y. */
static void turn_rows(struct kernel *p, const double *y, double *motion, double *b, int stride) {
    find_motion(p, y, motion);
    find_tree_velocities(p->tree, motion);
    for (int a = 0; a < p->active_count; a++)
        turn_tree_row(p->tree, p->rows[p->active[a]], b + a * stride);
}

/* Write D(G') y by (q, v) where some contacts slide, into the first 2 n columns of b, likewise. `motion` (n,),
 * `forces` (R,) and `turns` (r, n) are scratch. */
static void turn_mixed_rows(struct kernel *p, const double *y, struct changed_terms *terms, double *motion,
                            double *forces, double *turns, double *b, int stride) {
    const int n = p->nv, r = p->row_count, m = p->active_count, states = 2 * n;
    find_motion(p, y, motion);
    memset(forces, 0, (size_t)p->all_rows * sizeof(double));
    for (int a = 0; a < m; a++) forces[p->rows[p->active[a]]] = y[a];
    change_terms(p, motion, forces, n, terms);
    solve_mass_root(p->terms.mass, n, terms->equations, n);
    for (int a = 0; a < r; a++) {
        double *own = turns + a * n;
        memcpy(own, terms->accelerations + p->rows[a] * states, (size_t)n * sizeof(double));
        add_listed_rows(own, n, 1.0, p->moved + a, p->width, p->moving, p->moving_count, terms->equations, n);
    }
    for (int i = 0; i < m; i++) {
        double *into = b + i * stride;
        memset(into, 0, (size_t)states * sizeof(double));
        memcpy(into, turns + p->active[i] * n, (size_t)n * sizeof(double));
        if (i >= p->closed_count || !slides_now(p, i)) continue;
        const struct closed_contact *contact = p->closed + i;
        const int count = contact->last - contact->first;
        add_rows(into, n, 1.0, p->direction + 2 * i, 1, count, turns + contact->first * n, n);
        double turned[2] = {0.0};
        for (int t = 0; t < count; t++) /* J z along its tangents */
            for (int a = 0; a < m; a++)
                turned[t] += p->delassus[(contact->first + t) * r + p->active[a]] * y[a];
        add_direction_change(p, i, terms->rates, -contact->friction * turn_across(p, i, turned), into);
    }
}

/* Replace the first `count` rows of B (m, width) by those of (1 - Z Z') B. `along` is scratch (rank, width). */
static void remove_range(const struct kernel *p, const double *z, int count, int width, double *along, double *b) {
    const int m = p->active_count, rank = p->shared.rank;
    memset(along, 0, (size_t)rank * width * sizeof(double));
    for (int k = 0; k < rank; k++) add_rows(along + k * width, width, -1.0, z + k * m, 1, m, b, width);
    for (int i = 0; i < count; i++) add_rows(b + i * width, width, 1.0, z + i, m, rank, along, width);
}

/* Write -Q' (rank, width) of what c' changes by where multipliers `change` (m,) are added, and the acceleration
 * that they make: C M^-1 D(J' E change), and where contacts slide D(J) a - C M^-1 D(M) a, too. The columns are those
 * of `differentiate_shared`. `turns` (m, 2 n), `forces` (R,) and `motion` (n,) are scratch. */
static void differentiate_change(struct kernel *p, const double *change, const double *motions,
                                 struct changed_terms *terms, double *motion, double *forces, double *turns,
                                 double *t) {
    const int n = p->nv, m = p->active_count, k = p->closed_count, rank = p->shared.rank, states = 2 * n;
    memset(forces, 0, (size_t)p->all_rows * sizeof(double));
    for (int i = 0; i < m; i++) forces[p->rows[p->active[i]]] = change[i];
    if (!count_sliding(p)) { /* (U^-T Y Q)' D(J' f): fewer columns than those of D(J' f) */
        const int first = p->tree->first_moving, width = p->tree->moving_width, end = first + width;
        differentiate_pull(p->tree, forces, terms->equations);
        memcpy(turns, motions, (size_t)end * rank * sizeof(double));
        solve_mass_root_transposed(p->terms.mass, n, end, turns, rank);
        memset(t, 0, (size_t)rank * width * sizeof(double));
        for (int l = 0; l < rank; l++)
            add_rows(t + l * width, width, -1.0, turns + first * rank + l, rank, width, terms->equations, width);
        return;
    }
    for (int j = 0; j < k; j++)
        for (int e = p->closed[j].first; slides_now(p, j) && e < p->closed[j].last; e++)
            forces[p->rows[e]] = p->direction[2 * j + e - p->closed[j].first] * change[j];
    memset(motion, 0, (size_t)n * sizeof(double));
    for (int l = 0; l < p->moving_count; l++) {
        const int i = p->moving[l];
        for (int a = 0; a < p->row_count; a++) motion[i] += p->moved[i * p->width + a] * forces[p->rows[a]];
    }
    solve_mass_root_transposed(p->terms.mass, n, n, motion, 1);
    change_terms(p, motion, forces, states, terms);
    for (int i = 0; i < n; i++) memset(terms->equations + i * states + n, 0, (size_t)n * sizeof(double));
    add_turning(p, change, terms->rates, terms->equations, states);
    for (int i = 0; i < m; i++)
        memcpy(turns + i * n, terms->accelerations + p->rows[p->active[i]] * states,
               (size_t)n * sizeof(double));
    solve_mass_root(p->terms.mass, n, terms->equations, states);
    memset(t, 0, (size_t)rank * states * sizeof(double));
    for (int l = 0; l < rank; l++) {
        double *own = t + l * states;
        add_listed_rows(own, states, -1.0, motions + l, rank, p->moving, p->moving_count, terms->equations, states);
        add_rows(own, n, -1.0, p->shared.q + l * m, 1, m, turns, n);
    }
}

/* Write how the weights follow the normal forces, as A (m, k) of W^-1/2 W' W^-1 m = A D(normal forces), into the
 * last k columns of rows of b `stride` apart, for the normal forces `even` (k,) of equal weights and W^-1/2 m. */
static void differentiate_weights(const struct kernel *p, const double *even, const double *m_half, double *b,
                                  int stride) {
    const int m = p->active_count, k = p->closed_count;
    const double *half = p->shared.half, least = LEAST_WEIGHT * sqrt(multiply(even, even, k));
    for (int i = 0, owner = 0; i < m; i++) {
        double *own = b + i * stride + stride - k;
        memset(own, 0, (size_t)k * sizeof(double));
        if (i < k) continue;
        while (p->active[i] >= p->closed[owner].last) owner++;
        /* w = least (1 + log(1 + e^(x - 1))), x = normal force / least, and `least` follows all normal forces */
        const double x = even[owner] / least - 1.0, slope = 1.0 / (1.0 + exp(-x));
        const double by_least = 1.0 + fmax(x, 0.0) + log1p(exp(-fabs(x))) - slope * (x + 1.0);
        const double factor = m_half[i] / (half[i] * half[i] * half[i]);
        add_row(own, factor * by_least * LEAST_WEIGHT * LEAST_WEIGHT / least, even, k);
        own[owner] += factor * slope;
    }
}

/* Write the derivatives of the multipliers: DONE, or ASK_PYTHON where they are at the border of a cone, or how rows
 * turn is not known.
 *
 * Rows turn by `width` columns only, from `first` on: those of the velocities that move closed contacts, or where
 * some slide (q, v). Beside the columns of b for these stands A of `differentiate_weights`. With equal weights m
 * changes by X t + E, X = Z S^-T, and with those of friction by
 *
 *     W^(1/2) ((X_W + R X) t + (1 - Z Z') W^(1/2) D(G') y + R E),   R = (1 - Z Z') A. */
int differentiate_shared(struct kernel *p, const struct shared_changes *changes, double *scratch) {
    struct sharing *shared = &p->shared;
    struct tree *tree = p->tree;
    const int m = p->active_count, k = p->closed_count, n = p->nv, rank = shared->rank;
    const int r = p->row_count, slides = count_sliding(p), columns = changes->columns;
    if (!tree || p->held >= 0 || p->starting >= 0 || shared->is_at_border) return ASK_PYTHON;
    if (!slides && rank != tree->load_rank) return ASK_PYTHON;
    if (!shared->is_weighted && m > k) return ASK_PYTHON; /* without a load by which friction is shared */
    const int first = slides ? 0 : tree->first_moving, width = slides ? 2 * n : tree->moving_width;
    const int stride = width + k;
    double *even_z = scratch, *b = even_z + 2 * r * n, *along = b + r * (2 * n + r);
    double *change = along + r * (2 * n + r), *inverse = change + 2 * r * n, *even_factors = inverse + r * r;
    double *factors = even_factors + r * r, *turns = factors + r * r;
    double *right = turns + 2 * r * n, *coordinates = right + r, *y = coordinates + r, *even = y + r;
    double *other = even + r, *work = other + r, *motion = work + r;
    const double *half = shared->half;
    double *forces = motion + n, *rest = forces + p->all_rows;
    struct changed_terms terms = {changes->rates, rest, rest + 2 * n * n, rest + 2 * n * (n + p->all_rows)};
    for (int i = 0; i < m; i++) right[i] = p->target[p->active[i]] - p->free[p->active[i]];
    find_adjoint(p, right, shared->s, coordinates, work, y);
    find_multipliers(p, shared->z, NULL, coordinates, even);
    if (slides) turn_mixed_rows(p, y, &terms, motion, forces, turns, even_z, width);
    else turn_rows(p, y, motion, even_z, width);
    remove_range(p, shared->z, k, width, along, even_z);
    invert_factor(shared->z, shared->s, m, rank, inverse);
    for (int i = 0; i < k; i++)
        for (int l = 0; l < rank; l++) even_factors[i * rank + l] = inverse[l * m + i];
    memset(changes->multipliers, 0, (size_t)m * columns * sizeof(double));
    if (!shared->is_weighted) { /* of normal forces alone, m = k */
        for (int i = 0; i < m; i++) {
            double *own = changes->multipliers + i * columns;
            add_rows(own, columns, 1.0, even_factors + i * rank, 1, rank, changes->coordinates, columns);
            add_row(own + first, 1.0, even_z + i * width, width);
        }
        return DONE;
    }
    for (int i = 0; i < m; i++) other[i] = even[i] - p->forces[p->active[i]];
    differentiate_change(p, other, changes->motions, &terms, motion, forces, turns, change);
    for (int i = 0; i < k; i++)
        add_rows(even_z + i * width, width, 1.0, even_factors + i * rank, 1, rank, change, width);

    find_adjoint(p, right, shared->root, coordinates, work, y);
    find_multipliers(p, shared->weighted, half, coordinates, other);
    if (slides) turn_mixed_rows(p, y, &terms, motion, forces, turns, b, stride);
    else turn_rows(p, y, motion, b, stride);
    for (int i = 0; i < m; i++)
        for (int c = 0; c < width; c++) b[i * stride + c] *= half[i];
    differentiate_weights(p, even, other, b, stride);
    remove_range(p, shared->weighted, m, stride, along, b);
    invert_factor(shared->weighted, shared->root, m, rank, inverse);
    for (int i = 0; i < m; i++) {
        double *own = changes->multipliers + i * columns, *rows = b + i * stride;
        for (int l = 0; l < rank; l++) factors[l] = inverse[l * m + i];
        add_rows(factors, rank, 1.0, rows + width, 1, k, even_factors, rank);
        add_rows(rows, width, 1.0, rows + width, 1, k, even_z, width);
        add_rows(own, columns, half[i], factors, 1, rank, changes->coordinates, columns);
        add_row(own + first, half[i], rows, width);
    }
    return DONE;
}
