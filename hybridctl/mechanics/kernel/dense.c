/* Small dense matrices: the mass matrix of a tree, symmetric and general equations of contacts.
 *
 * All functions work in place, on matrices of 40 rows and fewer, where a call of LAPACK costs more
 * than the arithmetic. They return 0 if a pivot is not positive, or not above a ratio of the
 * largest; NaN fails every comparison and so does, too.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "contact_kernel.h"

enum { MAX_ROWS_AT_ONCE = 64 };

/* Four numbers in a register of processors that HAS_WIDE_REGISTERS is true of. Compilers keep them in memory where
 * there is none, which takes several times as long as pairs. */
typedef double four __attribute__((vector_size(32), aligned(8), may_alias));
#define FOUR_TIMES(x) {x, x, x, x}
#define TWICE(x) {x, x}

/* Add sum_l used[l] rows[l] to COUNT registers of a row, from column c on; COUNT is known to the compiler, which keeps
 * them in registers. */
#define ADD_REGISTERS(COUNT, TYPE, REPEAT)                                                                    \
    do {                                                                                                      \
        enum { LANES = sizeof(TYPE) / sizeof(double) };                                                       \
        TYPE sums[COUNT];                                                                                     \
        for (int g = 0; g < COUNT; g++) sums[g] = *(const TYPE *)(into + c + LANES * g);                      \
        for (int l = 0; l < size; l++) {                                                                      \
            const TYPE factor = REPEAT(used[l]);                                                              \
            for (int g = 0; g < COUNT; g++) sums[g] += factor * *(const TYPE *)(rows[l] + c + LANES * g);     \
        }                                                                                                     \
        for (int g = 0; g < COUNT; g++) *(TYPE *)(into + c + LANES * g) = sums[g];                            \
        c += LANES * COUNT;                                                                                   \
    } while (0)

/* The same to all columns but a remainder of less than a register. The last ones are taken at once: the fewer sums
 * there are, the longer they wait for each other. */
#define ADD_ALL_REGISTERS(TYPE, REPEAT)                                          \
    do {                                                                         \
        enum { ALL_LANES = sizeof(TYPE) / sizeof(double) };                      \
        while (c + 8 * ALL_LANES <= width) ADD_REGISTERS(8, TYPE, REPEAT);       \
        switch ((width - c) / ALL_LANES) {                                       \
        case 7: ADD_REGISTERS(7, TYPE, REPEAT); break;                           \
        case 6: ADD_REGISTERS(6, TYPE, REPEAT); break;                           \
        case 5: ADD_REGISTERS(5, TYPE, REPEAT); break;                           \
        case 4: ADD_REGISTERS(4, TYPE, REPEAT); break;                           \
        case 3: ADD_REGISTERS(3, TYPE, REPEAT); break;                           \
        case 2: ADD_REGISTERS(2, TYPE, REPEAT); break;                           \
        case 1: ADD_REGISTERS(1, TYPE, REPEAT); break;                           \
        default: break;                                                          \
        }                                                                        \
    } while (0)

/* Add sum_l used[l] rows[l] to a row of `width` entries. */
static inline __attribute__((always_inline)) void add_used_rows(double *restrict into, int width, const double *used,
                                                                const double *const *rows, int size) {
    int c = 0;
    if (HAS_WIDE_REGISTERS) ADD_ALL_REGISTERS(four, FOUR_TIMES);
    if (c + 2 <= width) ADD_ALL_REGISTERS(two, TWICE);
    if (c == width) return;
    double sum = into[c]; /* the last one of an odd number */
    for (int l = 0; l < size; l++) sum += used[l] * rows[l][c];
    into[c] = sum;
}

/* The same as x != 0.0, also of NaN, in fewer instructions: whether a bit other than the sign is set. */
static inline int is_not_zero(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits << 1 != 0;
}

/* Add sum_k factors[k] rows[k] to a row of `width` entries, k from the first on.
 *
 * Row k is `from` + k `stride`, and its factor `scale` times that at `factors` + k `step`. Rows with factor
 * zero are left out. A part of `into` stays in registers meanwhile. */
ALONG_ROWS void add_rows(double *restrict into, int width, double scale, const double *factors, int step,
                         int count, const double *from, int stride) {
    const double *rows[MAX_ROWS_AT_ONCE];
    double used[MAX_ROWS_AT_ONCE];
    while (count > 0) {
        const int last = count < MAX_ROWS_AT_ONCE ? count : MAX_ROWS_AT_ONCE;
        int size = 0;
        for (int k = 0; k < last; k++, factors += step, from += stride) {
            rows[size] = from;
            used[size] = scale * *factors;
            size += is_not_zero(*factors);
        }
        count -= last;
        add_used_rows(into, width, used, rows, size);
    }
}

/* The same for `count` rows k of a list, in its order. */
ALONG_ROWS void add_listed_rows(double *restrict into, int width, double scale, const double *factors, int step,
                                const int *list, int count, const double *from, int stride) {
    const double *rows[MAX_ROWS_AT_ONCE];
    double used[MAX_ROWS_AT_ONCE];
    while (count > 0) {
        const int last = count < MAX_ROWS_AT_ONCE ? count : MAX_ROWS_AT_ONCE;
        int size = 0;
        for (int l = 0; l < last; l++) {
            const ptrdiff_t k = list[l];
            rows[size] = from + k * stride;
            used[size] = scale * factors[k * step];
            size += is_not_zero(factors[k * step]);
        }
        list += last;
        count -= last;
        add_used_rows(into, width, used, rows, size);
    }
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
        add_rows(row, width, -1.0, mass + (n - 1) * n + i, -n, n - 1 - i, mass + (n - 1) * n, -n);
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
        add_rows(row, width, -1.0, root + (n - 1) * n + i, -n, n - 1 - i, columns + (n - 1) * width, -width);
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
        add_listed_rows(row, width, -1.0, root + i, n, list, count, columns, width);
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

/* Replace columns B (count, width) by the first rows of U^-T B, which depend on those of B alone. */
ALONG_ROWS void solve_mass_root_transposed(const double *root, int n, int count, double *columns, int width) {
    for (int j = 0; j < count; j++) {
        double *row = columns + j * width;
        const double inverse = 1.0 / root[j * n + j];
        if (width == 1) row[0] -= multiply(root + j * n, columns, j);
        else add_rows(row, width, -1.0, root + j * n, 1, j, columns, width);
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
