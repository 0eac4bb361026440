/* Small dense matrices: the mass matrix of a tree, symmetric and general equations of contacts.
 *
 * All functions work in place, on matrices of 40 rows and fewer, where a call of LAPACK costs more
 * than the arithmetic. They return 0 if a pivot is not positive, or not above a ratio of the
 * largest; NaN fails every comparison and so does, too.
 */
#include <math.h>

#include <stddef.h>

#include "contact_kernel.h"

enum { MAX_ROWS_AT_ONCE = 64 };

typedef double four __attribute__((vector_size(32), aligned(8), may_alias));

/* Add to `count` groups of four columns of a row, from `first` on, as `add_rows` does; GROUPS is known to the
 * compiler, which keeps the groups in registers. */
#define ADD_GROUPS(GROUPS)                                                                            \
    do {                                                                                              \
        four sums[GROUPS];                                                                            \
        for (int g = 0; g < GROUPS; g++) sums[g] = *(const four *)(into + c + 4 * g);                 \
        for (int l = 0; l < size; l++) {                                                              \
            const four factor = {used[l], used[l], used[l], used[l]};                                 \
            for (int g = 0; g < GROUPS; g++) sums[g] += factor * *(const four *)(rows[l] + c + 4 * g); \
        }                                                                                             \
        for (int g = 0; g < GROUPS; g++) *(four *)(into + c + 4 * g) = sums[g];                       \
        c += 4 * GROUPS;                                                                              \
    } while (0)

/* Add sum_k factors[k] rows[k] to a row, see `add_rows` and `add_listed_rows`. */
static inline __attribute__((always_inline)) void add_some_rows(double *restrict into, int width, double scale,
                                                                const double *factors, int step,
                                                                const int *list, int count,
                                                                const double *from, int stride) {
    const double *rows[MAX_ROWS_AT_ONCE];
    double used[MAX_ROWS_AT_ONCE];
    for (int k = 0; k < count;) {
        int size = 0, c = 0;
        for (; k < count && size < MAX_ROWS_AT_ONCE; k++) {
            const ptrdiff_t place = list ? list[k] : k;
            const double factor = factors[place * step];
            rows[size] = from + place * stride;
            used[size] = scale * factor;
            size += factor != 0.0;
        }
        while (c + 32 <= width) ADD_GROUPS(8);
        if (c + 16 <= width) ADD_GROUPS(4);
        if (c + 8 <= width) ADD_GROUPS(2);
        if (c + 4 <= width) ADD_GROUPS(1);
        for (; c < width; c++) {
            double sum = into[c];
            for (int l = 0; l < size; l++) sum += used[l] * rows[l][c];
            into[c] = sum;
        }
    }
}

/* Add sum_k factors[k] rows[k] to a row of `width` entries, k from the first on.
 *
 * Row k is `from` + k `stride`, and its factor `scale` times that at `factors` + k `step`. Rows with factor
 * zero are left out. A part of `into` stays in registers meanwhile. */
ALONG_ROWS void add_rows(double *restrict into, int width, double scale, const double *factors, int step,
                         int count, const double *from, int stride) {
    add_some_rows(into, width, scale, factors, step, NULL, count, from, stride);
}

/* The same for `count` rows k of a list, in its order. */
ALONG_ROWS void add_listed_rows(double *restrict into, int width, double scale, const double *factors, int step,
                                const int *list, int count, const double *from, int stride) {
    add_some_rows(into, width, scale, factors, step, list, count, from, stride);
}

/* Factorise M = L' L with L lower triangular, which takes the place of the lower half of M; the upper one is lost.
 *
 * The elimination starts at the last velocity. It then makes no fill-in: L has a zero wherever two
 * velocities move no common body (Featherstone, Rigid Body Dynamics Algorithms, 6.5), and zeros are
 * skipped. Returns whether M is positive definite.
 */
ALONG_ROWS int factorise_mass(double *mass, int n) {
    for (int i = n - 1; i >= 0; i--) {
        double *row = mass + i * n;
        const int width = ((i + 4) & ~3) < n ? (i + 4) & ~3 : n; /* i + 1 at least, without a remainder */
        add_some_rows(row, width, -1.0, mass + (n - 1) * n + i, -n, NULL, n - 1 - i, mass + (n - 1) * n, -n);
        if (!(row[i] > 0.0)) return 0;
        row[i] = sqrt(row[i]);
        const double inverse = 1.0 / row[i];
        for (int l = 0; l < i; l++) row[l] *= inverse;
    }
    return 1;
}

/* Replace columns B (n, width) by U^-1 B, U = L'. */
ALONG_ROWS void solve_mass_root(const double *root, int n, double *columns, int width) {
    for (int i = n - 1; i >= 0; i--) {
        double *row = columns + i * width;
        const double inverse = 1.0 / root[i * n + i];
        /* From the last velocity on, as the factorisation went. */
        add_some_rows(row, width, -1.0, root + (n - 1) * n + i, -n, NULL, n - 1 - i,
                      columns + (n - 1) * width, -width);
        for (int l = 0; l < width; l++) row[l] *= inverse;
    }
}

/* The same where many rows of B are zero: list those of U^-1 B that are not, the last one first, and return their
 * number. */
ALONG_ROWS int solve_sparse_mass_root(const double *root, int n, double *columns, int width, int *list) {
    int count = 0;
    for (int i = n - 1; i >= 0; i--) {
        double *row = columns + i * width, inverse = 1.0 / root[i * n + i];
        int has_entries = 0;
        add_some_rows(row, width, -1.0, root + i, n, list, count, columns, width);
        for (int l = 0; l < width; l++) {
            has_entries |= row[l] != 0.0; /* NaN is not zero */
            row[l] *= inverse;
        }
        list[count] = i;
        count += has_entries;
    }
    return count;
}

/* Replace a column (n,) by U^-1 times it. */
ALONG_ROWS void solve_mass_root_column(const double *root, int n, double *column) {
    for (int i = n - 1; i >= 0; i--) {
        column[i] /= root[i * n + i];
        add_row(column, -column[i], root + i * n, i);
    }
}

/* Replace columns B (n, width) by U^-T B. */
ALONG_ROWS void solve_mass_root_transposed(const double *root, int n, double *columns, int width) {
    for (int j = 0; j < n; j++) {
        double *row = columns + j * width;
        const double inverse = 1.0 / root[j * n + j];
        if (width == 1) row[0] -= multiply(root + j * n, columns, j);
        else add_some_rows(row, width, -1.0, root + j * n, 1, NULL, j, columns, width);
        for (int l = 0; l < width; l++) row[l] *= inverse;
    }
}

/* Factorise a symmetric matrix by Cholesky, L in its lower half, and compute its determinant.
 *
 * Returns whether all pivots are above `least_ratio` times the largest one.
 */
int factorise_symmetric(double *matrix, int n, double least_ratio, double *determinant) {
    double largest = 0.0, least = INFINITY, product = 1.0;
    for (int j = 0; j < n; j++) {
        double *row = matrix + j * n, pivot = row[j];
        for (int l = 0; l < j; l++) pivot -= row[l] * row[l];
        if (!(pivot > 0.0)) return 0;
        if (pivot > largest) largest = pivot;
        if (pivot < least) least = pivot;
        product *= pivot;
        row[j] = sqrt(pivot);
        double inverse = 1.0 / row[j];
        for (int i = j + 1; i < n; i++) {
            double *other = matrix + i * n, entry = other[j];
            for (int l = 0; l < j; l++) entry -= other[l] * row[l];
            other[j] = entry * inverse;
        }
    }
    *determinant = product;
    return n == 0 || least > least_ratio * largest;
}

/* Replace columns B (n, width) by the solution of L L' X = B. */
ALONG_ROWS void solve_symmetric(const double *root, int n, double *columns, int width) {
    for (int i = 0; i < n; i++) {
        double *row = columns + i * width, inverse = 1.0 / root[i * n + i];
        for (int l = 0; l < i; l++)
            add_row(row, -root[i * n + l], columns + l * width, width);
        for (int c = 0; c < width; c++) row[c] *= inverse;
    }
    for (int i = n - 1; i >= 0; i--) {
        double *row = columns + i * width, inverse = 1.0 / root[i * n + i];
        for (int c = 0; c < width; c++) row[c] *= inverse;
        for (int l = 0; l < i; l++)
            add_row(columns + l * width, -root[i * n + l], row, width);
    }
}

static void exchange(double *first, double *second, int count) {
    for (int l = 0; l < count; l++) {
        double kept = first[l];
        first[l] = second[l];
        second[l] = kept;
    }
}

/* Solve a general system by elimination with partial pivoting, and compute its determinant.
 *
 * The matrix is overwritten, columns B (n, width) are replaced by the solution. Returns whether all
 * pivots are above `least_ratio` times the largest one in size.
 */
ALONG_ROWS int factorise_and_solve(double *matrix, int n, double least_ratio, double *columns, int width,
                        double *determinant) {
    double largest = 0.0, least = INFINITY, product = 1.0;
    for (int j = 0; j < n; j++) {
        double *row = matrix + j * n, *right = columns + j * width;
        int best = j;
        for (int i = j + 1; i < n; i++)
            if (fabs(matrix[i * n + j]) > fabs(matrix[best * n + j])) best = i;
        if (best != j) {
            exchange(row, matrix + best * n, n);
            exchange(right, columns + best * width, width);
            product = -product;
        }
        double pivot = row[j], size = fabs(pivot);
        if (!(size > 0.0)) return 0;
        if (size > largest) largest = size;
        if (size < least) least = size;
        product *= pivot;
        for (int i = j + 1; i < n; i++) {
            double factor = matrix[i * n + j] / pivot;
            if (factor == 0.0) continue;
            add_row(matrix + i * n + j + 1, -factor, row + j + 1, n - j - 1);
            add_row(columns + i * width, -factor, right, width);
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        double *right = columns + i * width, inverse = 1.0 / matrix[i * n + i];
        for (int l = i + 1; l < n; l++)
            add_row(right, -matrix[i * n + l], columns + l * width, width);
        for (int c = 0; c < width; c++) right[c] *= inverse;
    }
    *determinant = product;
    return n == 0 || least > least_ratio * largest;
}
