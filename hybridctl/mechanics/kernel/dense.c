/* Small dense matrices: the mass matrix of a tree, symmetric and general equations of contacts.
 *
 * All functions work in place, on matrices of 40 rows and fewer, where a call of LAPACK costs more
 * than the arithmetic. They return 0 if a pivot is not positive, or not above a ratio of the
 * largest; NaN fails every comparison and so does, too.
 */
#include <math.h>

#include "contact_kernel.h"

/* Factorise M = U U' with U upper triangular, which takes the place of the upper half of M.
 *
 * The elimination starts at the last velocity. It then makes no fill-in: U has a zero wherever two
 * velocities move no common body (Featherstone, Rigid Body Dynamics Algorithms, 6.5), and zeros are
 * skipped. Returns whether M is positive definite.
 */
ALONG_ROWS int factorise_mass(double *mass, int n) {
    for (int j = n - 1; j >= 0; j--) {
        double pivot = mass[j * n + j];
        if (!(pivot > 0.0)) return 0;
        double root = sqrt(pivot), inverse = 1.0 / root;
        mass[j * n + j] = root;
        for (int i = 0; i < j; i++) mass[i * n + j] *= inverse;
        for (int i = 0; i < j; i++) {
            double factor = mass[i * n + j];
            if (factor == 0.0) continue;
            for (int l = 0; l <= i; l++) mass[l * n + i] -= factor * mass[l * n + j];
        }
    }
    return 1;
}

/* Replace columns B (n, width) by U^-1 B. */
ALONG_ROWS void solve_mass_root(const double *root, int n, double *columns, int width) {
    for (int j = n - 1; j >= 0; j--) {
        double *pivot_row = columns + j * width, inverse = 1.0 / root[j * n + j];
        for (int l = 0; l < width; l++) pivot_row[l] *= inverse;
        for (int i = 0; i < j; i++) {
            double factor = root[i * n + j], *row = columns + i * width;
            if (factor == 0.0) continue;
            add_row(row, -factor, pivot_row, width);
        }
    }
}

/* Replace columns B (n, width) by U^-T B. */
ALONG_ROWS void solve_mass_root_transposed(const double *root, int n, double *columns, int width) {
    for (int j = 0; j < n; j++) {
        double *pivot_row = columns + j * width, inverse = 1.0 / root[j * n + j];
        for (int l = 0; l < width; l++) pivot_row[l] *= inverse;
        for (int i = j + 1; i < n; i++) {
            double factor = root[j * n + i], *row = columns + i * width;
            if (factor == 0.0) continue;
            add_row(row, -factor, pivot_row, width);
        }
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
