/* Derivatives of the forces that redundant contacts share.
 *
 * Forces m = W G' y with G m = c change by
 *
 *     G+ c' + (1 - G+ G) (W D(G') y + W' W^-1 m),   c' at fixed m,
 *
 * which is differentiate_multipliers of modes/force_distribution.py. With the factors of redundant.c,
 * and b = W^(-1/2) of what is in brackets, it is W^(1/2) (Z (S^-T Q' c' - Z' b) + b). W follows the normal
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
    const int r = p->row_count, n = p->nv, z = 2 * n + p->nu, rows = p->all_rows;
    return (3 * r + 1) * z + 2 * r * n + 2 * n * n + 4 * n * rows + 7 * r + 2 * n + rows;
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
    solve_mass_root_transposed(p->terms.mass, p->nv, motion, 1);
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

/* Write D(G') y by q for contacts that all stick, into the first n columns of b (m, z): rows turn with bodies
 * that move by M^-1 C' y. */
static void turn_rows(struct kernel *p, const double *y, double *motion, double *b, int columns) {
    find_motion(p, y, motion);
    find_tree_velocities(p->tree, motion);
    for (int a = 0; a < p->active_count; a++)
        turn_tree_row(p->tree, p->rows[p->active[a]], b + a * columns);
}

/* Write D(G') y by (q, v) where some contacts slide, into the first 2 n columns of b (m, z). `motion` (n,),
 * `forces` (R,) and `turns` (r, n) are scratch. */
static void turn_mixed_rows(struct kernel *p, const double *y, struct changed_terms *terms, double *motion,
                            double *forces, double *turns, double *b, int columns) {
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
        double *into = b + i * columns;
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

/* Write the first `count` rows of Z (S^-T t - Z' b) + b for t (rank, z), which is overwritten, and b (m, z), whose
 * first `used` columns are not zero. */
static void solve_changes(const struct kernel *p, const double *z, const double *s, double *t,
                          const double *b, int used, int count, double *result) {
    const int m = p->active_count, rank = p->shared.rank, columns = 2 * p->nv + p->nu;
    for (int k = 0; k < rank; k++) {
        double *own = t + k * columns;
        add_rows(own, columns, -1.0, s + k * rank, 1, k, t, columns);
        const double inverse = 1.0 / s[k * rank + k];
        for (int c = 0; c < columns; c++) own[c] *= inverse;
    }
    for (int k = 0; k < rank; k++) add_rows(t + k * columns, used, -1.0, z + k * m, 1, m, b, columns);
    for (int i = 0; i < count; i++) {
        double *own = result + i * columns;
        memcpy(own, b + i * columns, (size_t)used * sizeof(double));
        memset(own + used, 0, (size_t)(columns - used) * sizeof(double));
        add_rows(own, columns, 1.0, z + i, m, rank, t, columns);
    }
}

/* Subtract Q' (rank, z) of what c' changes by where multipliers `change` (m,) are added, and the acceleration
 * that they make: C M^-1 D(J' E change), and where contacts slide D(J) a - C M^-1 D(M) a, too. `turns` (m, 2 n),
 * `forces` (R,) and `motion` (n,) are scratch. */
static void subtract_change(struct kernel *p, const double *change, const double *motions,
                            struct changed_terms *terms, double *motion, double *forces, double *turns,
                            double *t) {
    const int n = p->nv, m = p->active_count, k = p->closed_count, rank = p->shared.rank;
    const int states = 2 * n, columns = states + p->nu;
    memset(forces, 0, (size_t)p->all_rows * sizeof(double));
    for (int i = 0; i < m; i++) forces[p->rows[p->active[i]]] = change[i];
    if (!count_sliding(p)) { /* (U^-T Y Q)' D(J' f): fewer columns than those of D(J' f) */
        differentiate_pull(p->tree, forces, terms->equations);
        memcpy(turns, motions, (size_t)n * rank * sizeof(double));
        solve_mass_root_transposed(p->terms.mass, n, turns, rank);
        for (int l = 0; l < rank; l++)
            add_rows(t + l * columns, n, -1.0, turns + l, rank, n, terms->equations, n);
        return;
    }
    for (int j = 0; j < k; j++)
        for (int e = p->closed[j].first; slides_now(p, j) && e < p->closed[j].last; e++)
            forces[p->rows[e]] = p->direction[2 * j + e - p->closed[j].first] * change[j];
    for (int i = 0; i < n; i++) {
        motion[i] = 0.0;
        for (int a = 0; a < p->row_count; a++)
            motion[i] += p->moved[i * p->width + a] * forces[p->rows[a]];
    }
    solve_mass_root_transposed(p->terms.mass, n, motion, 1);
    change_terms(p, motion, forces, states, terms);
    for (int i = 0; i < n; i++) memset(terms->equations + i * states + n, 0, (size_t)n * sizeof(double));
    add_turning(p, change, terms->rates, terms->equations, states);
    for (int i = 0; i < m; i++)
        memcpy(turns + i * n, terms->accelerations + p->rows[p->active[i]] * states,
               (size_t)n * sizeof(double));
    solve_mass_root(p->terms.mass, n, terms->equations, states);
    for (int l = 0; l < rank; l++) {
        double *own = t + l * columns;
        add_rows(own, states, -1.0, motions + l, rank, n, terms->equations, states);
        add_rows(own, n, -1.0, p->shared.q + l * m, 1, m, turns, n);
    }
}

/* Write the derivatives of the multipliers: DONE, or ASK_PYTHON where they are at the border of a cone, or how rows
 * turn is not known. */
int differentiate_shared(struct kernel *p, const struct shared_changes *changes, double *scratch) {
    struct sharing *shared = &p->shared;
    struct tree *tree = p->tree;
    const int m = p->active_count, k = p->closed_count, n = p->nv, rank = shared->rank;
    const int columns = 2 * n + p->nu, r = p->row_count, slides = count_sliding(p);
    const int states = slides ? 2 * n : n; /* columns by which rows turn */
    if (!tree || p->held >= 0 || p->starting >= 0 || shared->is_at_border) return ASK_PYTHON;
    if (!slides && rank != tree->load_rank) return ASK_PYTHON;
    double *t = changes->coordinates, *found = changes->multipliers;
    double *b = scratch, *even_t = b + r * columns;
    double *even_z = even_t + r * columns, *least_z = even_z + r * columns, *turns = least_z + columns;
    double *right = turns + 2 * r * n, *coordinates = right + r, *y = coordinates + r, *even = y + r;
    double *other = even + r, *work = other + r, *motion = work + r;
    const double *half = shared->half;
    double *forces = motion + n, *rest = forces + p->all_rows;
    struct changed_terms terms = {changes->rates, rest, rest + 2 * n * n, rest + 2 * n * (n + p->all_rows)};
    for (int i = 0; i < m; i++) right[i] = p->target[p->active[i]] - p->free[p->active[i]];
    find_adjoint(p, right, shared->s, coordinates, work, y);
    find_multipliers(p, shared->z, NULL, coordinates, even);
    if (!shared->is_weighted && m > k) return ASK_PYTHON; /* without a load by which friction is shared */
    if (slides) turn_mixed_rows(p, y, &terms, motion, forces, turns, b, columns);
    else turn_rows(p, y, motion, b, columns);
    if (!shared->is_weighted) {
        solve_changes(p, shared->z, shared->s, t, b, states, m, found);
        return DONE;
    }
    memcpy(even_t, t, (size_t)rank * columns * sizeof(double));
    for (int i = 0; i < m; i++) other[i] = even[i] - p->forces[p->active[i]];
    subtract_change(p, other, changes->motions, &terms, motion, forces, turns, even_t);
    solve_changes(p, shared->z, shared->s, even_t, b, states, k, even_z);

    find_adjoint(p, right, shared->root, coordinates, work, y);
    find_multipliers(p, shared->weighted, half, coordinates, other);
    if (slides) turn_mixed_rows(p, y, &terms, motion, forces, turns, b, columns);
    else turn_rows(p, y, motion, b, columns);
    double squares = 0.0;
    for (int j = 0; j < k; j++) squares += even[j] * even[j];
    const double least = LEAST_WEIGHT * sqrt(squares);
    memset(least_z, 0, (size_t)columns * sizeof(double)); /* D(least) (z,) */
    for (int j = 0; j < k; j++)
        add_row(least_z, LEAST_WEIGHT * LEAST_WEIGHT / least * even[j], even_z + j * columns, columns);
    for (int i = 0, owner = 0; i < m; i++) {
        double *into = b + i * columns;
        for (int c = 0; c < states; c++) into[c] *= half[i];
        memset(into + states, 0, (size_t)(columns - states) * sizeof(double));
        if (i < k) continue;
        while (p->active[i] >= p->closed[owner].last) owner++;
        /* w = least (1 + log(1 + e^(x - 1))), x = normal force / least, and W^-1/2 W' W^-1 m */
        const double x = even[owner] / least - 1.0, slope = 1.0 / (1.0 + exp(-x));
        const double by_least = 1.0 + fmax(x, 0.0) + log1p(exp(-fabs(x))) - slope * (x + 1.0);
        const double factor = other[i] / (half[i] * half[i] * half[i]);
        add_row(into, factor * slope, even_z + owner * columns, columns);
        add_row(into, factor * by_least, least_z, columns);
    }
    solve_changes(p, shared->weighted, shared->root, t, b, columns, m, found);
    for (int i = 0; i < m; i++)
        for (int c = 0; c < columns; c++) found[i * columns + c] *= half[i];
    return DONE;
}
