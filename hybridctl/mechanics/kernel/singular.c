/* Factorisations of singular matrices G (m, m) of some rank, into Q and B (m, rank) with Q' G = B'.
 *
 * The columns of Q are in the range of G, so that Q' c are the coordinates of a right-hand side and G m = c means
 * B' m = Q' c. Vectors of m entries are stored as rows, triangular matrices by columns.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

/* Columns of G, or its diagonal, relative to the largest: above the first, and at most the second, the rank is
 * certain. The limit of the Python mode, 1e-10 (contact_law/linear_equations.py), is between the two. */
static const double LEAST_COLUMN = 1e-6;
static const double ROUNDING = 1e-11;
static const double STAYED = 0.1; /* square of a vector after it is made orthogonal: then to 3 of its roundings */
enum { MAX_AT_ONCE = 64 };

static inline void subtract(double *a, double factor, const double *b, int n) {
    add_row(a, -factor, b, n);
}

static inline void add_squares(double *restrict into, const double *restrict from, int count) {
    for (int c = 0; c < count; c++) into[c] += from[c] * from[c];
}

/* Factorise G (m, m) into Q (m, rank), with a row for each vector, and B (m, rank), likewise, by
 * Gram-Schmidt with pivots. G is overwritten. Returns the rank, -1 where it is not certain. */
ALONG_ROWS int factorise_columns(double *g, int m, double *q, double *b, double *sizes) {
    double largest = 0.0;
    memset(b, 0, (size_t)m * m * sizeof(double)); /* a row for each vector of Q */
    for (int k = 0; k < m; k++) {
        int best = -1;
        double most = 0.0;
        memset(sizes, 0, (size_t)m * sizeof(double));
        for (int i = 0; i < m; i++)
            add_squares(sizes, g + i * m, m);
        for (int j = 0; j < m; j++) {
            if (!(sizes[j] < INFINITY)) return -1;
            if (sizes[j] > most) {
                most = sizes[j];
                best = j;
            }
        }
        if (k == 0) largest = sqrt(most);
        if (best < 0 || sqrt(most) <= ROUNDING * largest) return k;
        double *unit = q + k * m, *along = b + k * m;
        for (int i = 0; i < m; i++) unit[i] = g[i * m + best];
        for (int i = 0; i < k; i++) { /* once more, against rounding */
            const double left = multiply(q + i * m, unit, m);
            subtract(unit, left, q + i * m, m);
            b[i * m + best] += left;
        }
        const double size = sqrt(multiply(unit, unit, m));
        if (!(size > LEAST_COLUMN * largest)) return -1;
        for (int i = 0; i < m; i++) unit[i] /= size;
        for (int i = 0; i < m; i++) add_row(along, unit[i], g + i * m, m);
        along[best] = size;
        for (int i = 0; i < m; i++) {
            add_row(g + i * m, -unit[i], along, m);
            g[i * m + best] = 0.0; /* it is used */
        }
    }
    return m;
}

/* Factorise G (m, m), symmetric and without negative eigenvalues, into L L' by Cholesky with pivots: row k of `b`
 * (rank, m) is column k of L. Returns the rank, -1 where it is not certain. `left` is scratch (m,). */
int factorise_semidefinite(const double *g, int m, double *b, double *left) {
    double largest = 0.0;
    for (int i = 0; i < m; i++) left[i] = g[i * m + i];
    for (int k = 0; k < m; k++) {
        int best = 0;
        for (int i = 0; i < m; i++) {
            if (!(left[i] < INFINITY)) return -1;
            if (left[i] > left[best]) best = i;
        }
        if (k == 0) largest = left[best];
        if (left[best] <= ROUNDING * largest) return k;
        if (!(left[best] > LEAST_COLUMN * largest)) return -1;
        const double root = sqrt(left[best]);
        double *column = b + k * m;
        memcpy(column, g + best * m, (size_t)m * sizeof(double));
        add_rows(column, m, -1.0, b + best, m, k, b, m);
        for (int i = 0; i < m; i++) {
            column[i] /= root;
            left[i] -= column[i] * column[i];
        }
        left[best] = 0.0; /* it is used */
    }
    return m;
}

/* Write X = Z S^-T (m, rank), with a row for each vector. */
void invert_factor(const double *z, const double *s, int m, int rank, double *x) {
    for (int k = rank - 1; k >= 0; k--) {
        double *own = x + k * m;
        memcpy(own, z + k * m, (size_t)m * sizeof(double));
        add_rows(own, m, -1.0, s + (k + 1) * rank + k, rank, rank - 1 - k, x + (k + 1) * m, m);
        for (int i = 0; i < m; i++) own[i] /= s[k * rank + k];
    }
}

/* Factorise W^(1/2) B = Z S: Z (m, rank) with a row for each vector, S (rank, rank) by columns.
 *
 * `half` is the root of the weights (m,), NULL for one. Returns the product of S's diagonal. */
ALONG_ROWS double factorise_weighted(const double *b, const double *half, int m, int rank, double *z,
                                     double *s) {
    double product = 1.0;
    memset(s, 0, (size_t)rank * rank * sizeof(double));
    for (int k = 0; k < rank; k++) {
        double *vector = z + k * m;
        for (int i = 0; i < m; i++) vector[i] = half ? half[i] * b[k * m + i] : b[k * m + i];
        const double before = multiply(vector, vector, m);
        double after = before;
        /* Gram-Schmidt, once more where it has taken so much away that rounding counts. */
        for (int again = 0; again < 2 && (!again || !(after > STAYED * before)); again++) {
            double *own = s + k * rank, along[MAX_AT_ONCE];
            for (int first = 0; first < k; first += MAX_AT_ONCE) {
                const int count = k - first < MAX_AT_ONCE ? k - first : MAX_AT_ONCE;
                for (int i = 0; i < count; i++) {
                    along[i] = multiply(z + (first + i) * m, vector, m);
                    own[first + i] += along[i];
                }
                add_rows(vector, m, -1.0, along, 1, count, z + first * m, m);
            }
            after = multiply(vector, vector, m);
        }
        const double size = s[k * rank + k] = sqrt(after);
        for (int i = 0; i < m; i++) vector[i] /= size;
        product *= size;
    }
    return product;
}

/* Write m (m,) of least norm for coordinates y = Q' c (rank,), which are overwritten. */
void find_least(const double *z, const double *s, const double *half, int m, int rank,
                       double *y, double *result) {
    memset(result, 0, (size_t)m * sizeof(double));
    for (int k = 0; k < rank; k++) { /* S' t = y, forward */
        y[k] = (y[k] - multiply(s + k * rank, y, k)) / s[k * rank + k];
        subtract(result, -y[k], z + k * m, m);
    }
    for (int i = 0; half && i < m; i++) result[i] *= half[i];
}

