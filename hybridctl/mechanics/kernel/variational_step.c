/* A step of DOP853 with its transition matrix, as modes/variational_step.py takes it.
 *
 * Along the stages x_i of the state, the equation of perturbations in tangent coordinates has
 *
 *     L_i = A(x_i) M_i,   M_i = 1 + h sum_j a_ij L_j,   A = (T(v)  1 ; D_q a  D_v a),
 *
 * with the transport T of the coordinates, and Phi = 1 + h sum_i b_i L_i. Neither of the error estimates
 * has a weight for the rate at the end, which is not evaluated.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

static const double LOW_WEIGHT = 0.01; /* of the error estimate of third order, tableau.py */

/* Return the doubles of scratch memory: rates, products of all stages, a stage, D a, and of derivatives. */
int variational_scratch_size(const struct kernel *p) {
    const int n = p->nv, states = 2 * n;
    return (STAGES + 2) * p->nx + (STAGES + 3) * states * states + n * states +
           derivative_scratch_size(p);
}

/* Write A M (2 nv, 2 nv) for D a (nv, 2 nv), the velocities v (nv,), and M, which may be the unit matrix. */
static void multiply_slope(const struct kernel *p, const double *v, const double *field, const double *matrix,
                           int is_unit, double *product) {
    const int n = p->nv, states = 2 * n;
    const struct tree *t = p->tree;
    memcpy(product, matrix + n * states, (size_t)n * states * sizeof(double));
    for (int e = 0; e < t->turn_count; e++) {
        const struct turn_entry *entry = t->turns + e;
        add_row(product + entry->row * states, entry->factor * v[entry->velocity], matrix + entry->column * states,
                states);
    }
    if (is_unit) {
        memcpy(product + n * states, field, (size_t)n * states * sizeof(double));
        return;
    }
    memset(product + n * states, 0, (size_t)n * states * sizeof(double));
    for (int i = 0; i < n; i++)
        add_rows(product + (n + i) * states, states, 1.0, field + i * states, 1, states, matrix, states);
}

/* Return the error of `count` entries with rates (STAGES, count), in units of the tolerance, HNW I, II.10 (10.18);
 * `fifth` and `third` are scratch (count,). NaN where an entry is not finite. */
static double find_error(const struct tableau *tableau, const struct variational_step *step, const double *start,
                         const double *end, const double *rates, int count, double *fifth, double *third) {
    double main = 0.0, low = 0.0;
    if (!has_finite(end, count)) return NAN;
    memset(fifth, 0, (size_t)count * sizeof(double));
    memset(third, 0, (size_t)count * sizeof(double));
    add_rows(fifth, count, 1.0, tableau->errors[0], 1, STAGES, rates, count);
    add_rows(third, count, 1.0, tableau->errors[1], 1, STAGES, rates, count);
    for (int i = 0; i < count; i++) {
        const double before = fabs(start[i]), after = fabs(end[i]);
        const double inverse = 1.0 / (step->atol + step->rtol * (before > after ? before : after));
        main += (fifth[i] * inverse) * (fifth[i] * inverse);
        low += (third[i] * inverse) * (third[i] * inverse);
    }
    if (main == 0.0 && low == 0.0) return 0.0; /* 0 / 0 below */
    return fabs(step->h) * main / sqrt((main + LOW_WEIGHT * low) * count);
}

/* Take a step; the fields of `step` marked "out" are written. Returns DONE, or ASK_PYTHON where the kernel does
 * not cover a stage. */
int take_variational_step(struct kernel *p, const double *u, const struct tableau *tableau, double *scratch,
                          struct variational_step *step) {
    const int nx = p->nx, n = p->nv, states = 2 * n, size = states * states;
    double *rates = scratch, *stage = rates + STAGES * nx, *slopes = stage + 2 * nx;
    double *unit = slopes + STAGES * size, *work = unit + size, *field = work + 2 * size;
    double *derivative = field + n * states, *matrix = step->matrix;
    struct sliding_times times = {INFINITY, INFINITY};
    struct point_derivatives d = {.field = field, .columns = states};
    memset(unit, 0, (size_t)size * sizeof(double));
    for (int i = 0; i < states; i++) unit[i * states + i] = 1.0;
    memcpy(stage, step->x, (size_t)nx * sizeof(double));
    memcpy(matrix, unit, (size_t)size * sizeof(double));
    step->is_too_long = 0;
    step->error = NAN;
    for (int i = 0; i < STAGES; i++) {
        if (!has_finite(stage, nx)) return DONE; /* a stage that has run away */
        /* Redundant contacts need to share forces only where some slide, as then the times ask for it. */
        if (evaluate_point(p, stage, u, rates + i * nx, NULL, p->sliding_count ? &times : NULL) != DONE)
            return ASK_PYTHON;
        if (i == 0 && fabs(step->h) > fmin(fmin(step->longest, step->stop_part * times.stop), times.turn)) {
            step->is_too_long = 1;
            return DONE;
        }
        if (differentiate_point(p, stage, u, derivative, &d) != DONE) return ASK_PYTHON;
        multiply_slope(p, stage + p->nq, field, matrix, i == 0, slopes + i * size);
        memcpy(stage, step->x, (size_t)nx * sizeof(double));
        add_rows(stage, nx, step->h, tableau->rows[i], 1, i + 1, rates, nx);
        memcpy(matrix, unit, (size_t)size * sizeof(double));
        add_rows(matrix, size, step->h, tableau->rows[i], 1, i + 1, slopes, size);
    }
    memcpy(step->state, stage, (size_t)nx * sizeof(double));
    const double own = find_error(tableau, step, step->x, stage, rates, nx, work, work + nx);
    const double other = find_error(tableau, step, unit, matrix, slopes, size, work, work + size);
    step->error = own > other || own != own ? own : other; /* NaN of either */
    return DONE;
}
