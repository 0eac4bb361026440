/* The stages of one step of Radau IIA of order 5, by simplified Newton iterations.
 *
 * With the stages x + Z_i at the nodes c_i = ((4 - r) / 10, (4 + r) / 10, 1), r = sqrt 6, the
 * collocation A^-1 Z = h f(x + Z) becomes, with A^-1 = T diag(mu, [alpha, -beta; beta, alpha]) T^-1
 * and Z = T W, one real and one complex system of nx unknowns for the increments of W,
 *
 *     (mu / h - J) dW_1 = (T^-1 F)_1 - mu / h W_1, and likewise for W_2 + i W_3:
 *
 * Hairer, Wanner, Solving Ordinary Differential Equations II, IV.8. Iteration, its rate of
 * convergence and its end are those of scipy's Radau, so that steps are the same.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

enum { MAX_ITERATIONS = 6 }; /* scipy's, by which the next step is predicted, too */

static const double T[3][3] = {
    {0.09443876248897524, -0.14125529502095421, 0.03002919410514742},
    {0.25021312296533332, 0.20412935229379994, -0.38294211275726192},
    {1.0, 1.0, 0.0}};
static const double T_INVERSE[3][3] = {
    {4.17871859155190428, 0.32768282076106237, 0.52337644549944951},
    {-4.17871859155190428, -0.32768282076106237, 0.47662355450055044},
    {0.50287263494578682, -2.57192694985560522, 0.59603920482822492}};

/* Return the doubles of scratch memory: W, F, a stage, and the real and complex increments. */
int radau_scratch_size(int nx) { return 10 * nx; }

/* Solve A x = b by LAPACK's factors (n, n) by columns, with pivots counted from zero. */
static void solve_real(const double *factors, const int *pivots, int n, double *b) {
    for (int i = 0; i < n; i++) {
        double kept = b[i];
        b[i] = b[pivots[i]];
        b[pivots[i]] = kept;
    }
    for (int j = 0; j < n; j++)
        for (int i = j + 1; i < n; i++) b[i] -= factors[j * n + i] * b[j];
    for (int j = n - 1; j >= 0; j--) {
        b[j] /= factors[j * n + j];
        for (int i = 0; i < j; i++) b[i] -= factors[j * n + i] * b[j];
    }
}

/* The same for complex numbers, as pairs of real and imaginary part. */
static void solve_complex(const double *factors, const int *pivots, int n, double *b) {
    for (int i = 0; i < n; i++)
        for (int part = 0; part < 2; part++) {
            double kept = b[2 * i + part];
            b[2 * i + part] = b[2 * pivots[i] + part];
            b[2 * pivots[i] + part] = kept;
        }
    for (int j = 0; j < n; j++) {
        const double *column = factors + 2 * j * n, re = b[2 * j], im = b[2 * j + 1];
        for (int i = j + 1; i < n; i++) {
            b[2 * i] -= column[2 * i] * re - column[2 * i + 1] * im;
            b[2 * i + 1] -= column[2 * i] * im + column[2 * i + 1] * re;
        }
    }
    for (int j = n - 1; j >= 0; j--) {
        const double *column = factors + 2 * j * n;
        const double d = column[2 * j], e = column[2 * j + 1], size = d * d + e * e;
        const double re = (b[2 * j] * d + b[2 * j + 1] * e) / size;
        const double im = (b[2 * j + 1] * d - b[2 * j] * e) / size;
        b[2 * j] = re;
        b[2 * j + 1] = im;
        for (int i = 0; i < j; i++) {
            b[2 * i] -= column[2 * i] * re - column[2 * i + 1] * im;
            b[2 * i + 1] -= column[2 * i] * im + column[2 * i + 1] * re;
        }
    }
}

/* Write matrix (3, 3) times rows (3, nx). */
static void transform(const double matrix[3][3], const double *rows, int nx, double *result) {
    for (int i = 0; i < 3; i++)
        for (int l = 0; l < nx; l++)
            result[i * nx + l] = matrix[i][0] * rows[l] + matrix[i][1] * rows[nx + l] +
                                 matrix[i][2] * rows[2 * nx + l];
}

/* Iterate from the guess in `stages->z`, which becomes the solution. Returns DONE or FAILED. */
int solve_radau_stages(const struct field *field, double *scratch, struct radau_stages *s) {
    const int nx = field->kernel->nx;
    const double cube = cbrt(3.0), mu = 3.0 + cube * cube - cube;
    const double alpha = 3.0 + 0.5 * (cube - cube * cube);
    const double beta = -0.5 * (pow(3.0, 5.0 / 6.0) + pow(3.0, 7.0 / 6.0));
    double *w = scratch, *f = w + 3 * nx, *stage = f + 3 * nx, *real = stage + nx,
           *complex = real + nx, last_norm = -1.0;
    s->converged = 0;
    s->rate = NAN; /* unknown before the second iteration, and passes no comparison */
    transform(T_INVERSE, s->z, nx, w);
    for (s->iterations = 1; s->iterations <= MAX_ITERATIONS; s->iterations++) {
        for (int i = 0; i < 3; i++) {
            for (int l = 0; l < nx; l++) stage[l] = s->x[l] + s->z[i * nx + l];
            if (evaluate_field(field, stage, f + i * nx, NULL) != DONE) return FAILED;
        }
        if (!has_finite(f, 3 * nx)) return DONE;
        for (int l = 0; l < nx; l++) {
            double sums[3];
            for (int i = 0; i < 3; i++)
                sums[i] = T_INVERSE[i][0] * f[l] + T_INVERSE[i][1] * f[nx + l] +
                          T_INVERSE[i][2] * f[2 * nx + l];
            const double second = w[nx + l], third = w[2 * nx + l];
            real[l] = sums[0] - mu / s->h * w[l];
            complex[2 * l] = sums[1] - (alpha * second - beta * third) / s->h;
            complex[2 * l + 1] = sums[2] - (alpha * third + beta * second) / s->h;
        }
        solve_real(s->real_factors, s->real_pivots, nx, real);
        solve_complex(s->complex_factors, s->complex_pivots, nx, complex);
        double total = 0.0;
        for (int l = 0; l < nx; l++) {
            const double a = real[l] / s->scale[l], b = complex[2 * l] / s->scale[l],
                         c = complex[2 * l + 1] / s->scale[l];
            total += a * a + b * b + c * c;
        }
        const double norm = sqrt(total / (3 * nx));
        if (last_norm >= 0.0) s->rate = norm / last_norm;
        const double left = s->rate / (1.0 - s->rate) * norm; /* error after this iteration */
        if (s->rate >= 1.0 ||
            pow(s->rate, MAX_ITERATIONS - s->iterations) * left > s->tolerance)
            return DONE; /* it diverges, or will not converge in time */
        for (int l = 0; l < nx; l++) {
            w[l] += real[l];
            w[nx + l] += complex[2 * l];
            w[2 * nx + l] += complex[2 * l + 1];
        }
        transform(T, w, nx, s->z);
        if (norm == 0.0 || left < s->tolerance) {
            s->converged = 1;
            return DONE;
        }
        last_norm = norm;
    }
    s->iterations = MAX_ITERATIONS;
    return DONE;
}
