/* Forces of redundant contacts, where those of least weighted norm are inside the friction cones.
 *
 * G is singular then, G = Q B' with orthonormal columns Q (m, rank) and B (m, rank). Of all m with
 * G m = c those with the least sum of m_i^2 / w_i are
 *
 *     m = W^(1/2) Z S^-T Q' c,   W^(1/2) B = Z S,
 *
 * with Z orthonormal and S upper triangular. As in modes/force_distribution.py they are solved twice:
 * with equal weights, then with weights of friction by the normal forces found. Where these leave
 * the cones, or the rank is not certain, the Python mode is asked.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

/* Columns of G relative to the largest: above the first, and at most the second, the rank is certain.
 * The limit of the Python mode, 1e-10 (contact_law/linear_equations.py), is between the two. */
static const double LEAST_COLUMN = 1e-6;
static const double ROUNDING = 1e-11;
static const double LEAST_WEIGHT = 1e-6; /* relative to all normal forces: modes/tolerances.py */

static double multiply(const double *a, const double *b, int n) {
    double total = 0.0;
    for (int i = 0; i < n; i++) total += a[i] * b[i];
    return total;
}

static void subtract(double *a, double factor, const double *b, int n) {
    for (int i = 0; i < n; i++) a[i] -= factor * b[i];
}

/* Factorise columns (m, m), each stored as a row, into Q (m, rank), stored likewise, and B (m, rank)
 * by Gram-Schmidt with pivots. Returns the rank, -1 where it is not certain. */
static int factorise_columns(double *columns, int m, double *q, double *b) {
    double largest = 0.0;
    memset(b, 0, (size_t)m * m * sizeof(double)); /* a row for each vector of Q */
    for (int k = 0; k < m; k++) {
        int best = -1;
        double most = 0.0;
        for (int j = 0; j < m; j++) {
            const double size = multiply(columns + j * m, columns + j * m, m);
            if (!(size < INFINITY)) return -1;
            if (size > most) {
                most = size;
                best = j;
            }
        }
        if (k == 0) largest = sqrt(most);
        if (best < 0 || sqrt(most) <= ROUNDING * largest) return k;
        double *column = columns + best * m, *unit = q + k * m;
        for (int i = 0; i < k; i++) { /* once more, against rounding */
            const double left = multiply(q + i * m, column, m);
            subtract(column, left, q + i * m, m);
            b[i * m + best] += left;
        }
        const double size = sqrt(multiply(column, column, m));
        if (!(size > LEAST_COLUMN * largest)) return -1;
        for (int i = 0; i < m; i++) unit[i] = column[i] / size;
        for (int j = 0; j < m; j++) {
            const double along = multiply(unit, columns + j * m, m);
            b[k * m + j] = along;
            subtract(columns + j * m, along, unit, m);
        }
        memset(column, 0, (size_t)m * sizeof(double)); /* it is used */
    }
    return m;
}

/* Factorise W^(1/2) B = Z S: Z (m, rank) with a row for each vector, S (rank, rank) by columns.
 *
 * `half` is the root of the weights (m,), NULL for one. Returns the product of S's diagonal. */
static double factorise_weighted(const double *b, const double *half, int m, int rank, double *z,
                                 double *s) {
    double product = 1.0;
    memset(s, 0, (size_t)rank * rank * sizeof(double));
    for (int k = 0; k < rank; k++) {
        double *vector = z + k * m;
        for (int i = 0; i < m; i++) vector[i] = half ? half[i] * b[k * m + i] : b[k * m + i];
        for (int again = 0; again < 2; again++)
            for (int i = 0; i < k; i++) {
                const double along = multiply(z + i * m, vector, m);
                subtract(vector, along, z + i * m, m);
                s[k * rank + i] += along;
            }
        const double size = s[k * rank + k] = sqrt(multiply(vector, vector, m));
        for (int i = 0; i < m; i++) vector[i] /= size;
        product *= size;
    }
    return product;
}

/* Write m (m,) of least norm for coordinates y = Q' c (rank,), which are overwritten. */
static void find_least(const double *z, const double *s, const double *half, int m, int rank,
                       double *y, double *result) {
    memset(result, 0, (size_t)m * sizeof(double));
    for (int k = 0; k < rank; k++) { /* S' t = y, forward */
        y[k] = (y[k] - multiply(s + k * rank, y, k)) / s[k * rank + k];
        subtract(result, -y[k], z + k * m, m);
    }
    for (int i = 0; half && i < m; i++) result[i] *= half[i];
}

/* Factorise the active part of G, with sliding friction or without it: the product of its nonzero
 * singular values, NaN where the rank is not certain. */
static double factorise_shared(struct kernel *p, int with_friction, int *rank) {
    const int r = p->row_count, m = p->active_count;
    struct sharing *shared = &p->shared;
    for (int i = 0; i < m; i++) {
        const double *row = p->delassus + p->active[i] * r;
        for (int j = 0; j < m; j++) p->matrix[j * m + i] = row[p->active[j]];
        for (int j = 0; with_friction && j < p->closed_count; j++)
            for (int t = p->closed[j].first; slides_now(p, j) && t < p->closed[j].last; t++)
                p->matrix[j * m + i] += row[t] * p->direction[2 * j + t - p->closed[j].first];
    }
    *rank = factorise_columns(p->matrix, m, shared->q, shared->b);
    if (*rank < 1) return NAN;
    return factorise_weighted(shared->b, NULL, m, *rank, shared->z, shared->s);
}

/* Write the roots of the weights (m,) of the multipliers; 0 where there are none but one. */
static int find_weights(struct kernel *p, double *half) {
    const int k = p->closed_count, m = p->active_count;
    const double least = LEAST_WEIGHT * sqrt(multiply(p->solution, p->solution, k));
    if (m == k || !(least > 0.0)) return 0; /* no friction of a contact that sticks, or no load */
    for (int i = 0; i < k; i++) half[i] = 1.0;
    for (int i = k, owner = 0; i < m; i++) {
        while (p->active[i] >= p->closed[owner].last) owner++; /* tangents are in order */
        const double x = p->solution[owner] / least - 1.0;
        half[i] = sqrt(least * (1.0 + fmax(x, 0.0) + log1p(exp(-fabs(x)))));
    }
    return 1;
}

/* Whether contacts push, and those that stick hold within static friction, but for rounding. */
static int is_inside_cones(const struct kernel *p) {
    double largest = 0.0;
    for (int j = 0; j < p->closed_count; j++) largest = fmax(largest, fabs(p->solution[j]));
    const double size = ON_CONE * largest;
    for (int j = 0, place = p->closed_count; j < p->closed_count; j++) {
        const struct closed_contact *contact = p->closed + j;
        if (!(p->solution[j] >= -size)) return 0;
        const int count = slides_now(p, j) ? 0 : contact->last - contact->first;
        if (count == 0) continue;
        const double *friction = p->solution + place;
        const double length = count == 1 ? fabs(friction[0]) : hypot(friction[0], friction[1]);
        if (!(contact->static_friction * p->solution[j] - length >= -size)) return 0;
        place += count;
    }
    return 1;
}

/* Solve the forces of redundant contacts with directions as they are; write f = E m.
 *
 * If only the acceleration is asked for, contacts that all stick need no weights: it does not depend
 * on them. Returns DONE or ASK_PYTHON. */
int share_forces(struct kernel *p, int needs_forces, double *ratio) {
    struct sharing *shared = &p->shared;
    const int m = p->active_count;
    const int slides = p->sliding_count > 0;
    double even = 1.0;
    int rank = 0, even_rank = 0;
    if (p->held >= 0 || p->starting >= 0) return ASK_PYTHON; /* standstill.c has no cones */
    if (slides && p->can_jam) even = factorise_shared(p, 0, &even_rank);
    const double product = factorise_shared(p, slides, &rank);
    /* Contacts that are independent after all have a determinant with a sign. Where friction has
     * taken away one more motion, they jam. */
    if (!(product > 0.0) || rank == m || (slides && p->can_jam && rank != even_rank)) return ASK_PYTHON;
    shared->rank = rank;
    *ratio = slides && p->can_jam ? product / even : 1.0;
    for (int i = 0; i < m; i++)
        shared->right[i] = p->target[p->active[i]] - p->free[p->active[i]];
    for (int k = 0; k < rank; k++) shared->y[k] = multiply(shared->q + k * m, shared->right, m);
    memcpy(shared->copy, shared->y, (size_t)rank * sizeof(double));
    find_least(shared->z, shared->s, NULL, m, rank, shared->y, p->solution);
    if (slides || needs_forces) {
        if (find_weights(p, shared->half)) {
            factorise_weighted(shared->b, shared->half, m, rank, shared->weighted, shared->root);
            find_least(shared->weighted, shared->root, shared->half, m, rank, shared->copy,
                       p->solution);
        }
        if (!is_inside_cones(p)) return ASK_PYTHON;
    }
    scatter_solution(p, p->forces);
    return DONE;
}

/* Replace right-hand sides B (m, width) by solutions of least norm, after `share_forces`. */
void solve_least_norm(struct kernel *p, double *columns, int width) {
    struct sharing *shared = &p->shared;
    const int m = p->active_count, rank = shared->rank;
    for (int c = 0; c < width; c++) {
        for (int i = 0; i < m; i++) shared->right[i] = columns[i * width + c];
        for (int k = 0; k < rank; k++) shared->y[k] = multiply(shared->q + k * m, shared->right, m);
        find_least(shared->z, shared->s, NULL, m, rank, shared->y, shared->copy);
        for (int i = 0; i < m; i++) columns[i * width + c] = shared->copy[i];
    }
}
