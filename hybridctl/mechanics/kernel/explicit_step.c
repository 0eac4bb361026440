/* A whole step of DOP853 with its error, its states and guards at the nodes, and their bounds.
 *
 * Stages, error estimate and dense output are those of hybridctl/hybrid/explicit.py, tableau.py and
 * step.py: Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, II.5 and II.10.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

static const double LOW_WEIGHT = 0.01;       /* of the error estimate of third order, tableau.py */
static const double NOTICEABLE_CHANGE = 0.1; /* in units of the tolerance, explicit.py */

/* Return the doubles of scratch memory that a step needs: all rates, and two stages. */
int explicit_scratch_size(int nx) { return (ALL_STAGES + 2) * nx; }

/* Write x + h sum_j weights[j] rates[j], for the first `count` rates. */
static void combine(const double *x, double h, const double *weights, const double *rates, int count,
                    int nx, double *result) {
    memcpy(result, x, (size_t)nx * sizeof(double));
    for (int j = 0; j < count; j++) {
        const double factor = h * weights[j], *rate = rates + j * nx;
        if (factor == 0.0) continue;
        for (int i = 0; i < nx; i++) result[i] += factor * rate[i];
    }
}

/* Return the error of a step in units of the tolerance, HNW I, II.10 (10.18). */
static double estimate_error(const struct tableau *tableau, const struct explicit_step *step,
                             const double *rates, const double *end, int nx) {
    double main = 0.0, low = 0.0;
    for (int i = 0; i < nx; i++) {
        double scale = step->atol + step->rtol * fmax(fabs(step->x[i]), fabs(end[i]));
        double fifth = 0.0, third = 0.0;
        for (int j = 0; j <= STAGES; j++) {
            fifth += tableau->errors[0][j] * rates[j * nx + i];
            third += tableau->errors[1][j] * rates[j * nx + i];
        }
        main += (fifth / scale) * (fifth / scale);
        low += (third / scale) * (third / scale);
    }
    if (main == 0.0 && low == 0.0) return 0.0; /* 0 / 0 below */
    return fabs(step->h) * main / sqrt((main + LOW_WEIGHT * low) * nx);
}

/* Return the time constant of the fastest decay seen, StageKernel.fastest_decay: the last stage and
 * the end are both at t + h. Infinite where the error of the step did not feel the change. */
static double find_decay(const struct explicit_step *step, const double *rates, const double *stage,
                         const double *end, int nx) {
    double size = 0.0, squares = 0.0, distance = 0.0;
    for (int i = 0; i < nx; i++) {
        double change = rates[STAGES * nx + i] - rates[(STAGES - 1) * nx + i];
        double scaled = step->h * change / (step->atol + step->rtol * fabs(end[i]));
        size += scaled * scaled;
        squares += change * change;
        distance += (end[i] - stage[i]) * (end[i] - stage[i]);
    }
    if (!(nx * NOTICEABLE_CHANGE * NOTICEABLE_CHANGE < size && size < INFINITY)) return INFINITY;
    return squares == INFINITY ? INFINITY : sqrt(distance / squares);
}

/* Write the lower bounds c_0 - |c_1| - 2 sum_{k > 1} |c_k| of guards (8, n), see step.py. */
static void compute_bounds(const struct tableau *tableau, const double *guards, int n,
                           double *bounds) {
    for (int g = 0; g < n; g++) {
        double total = 0.0, first = 0.0, constant = 0.0;
        for (int k = 0; k < NODES; k++) {
            double c = 0.0;
            for (int l = 0; l < NODES; l++) c += tableau->to_series[k][l] * guards[l * n + g];
            if (k == 0) constant = c;
            if (k == 1) first = fabs(c);
            if (k > 0) total += fabs(c);
        }
        bounds[g] = constant + first - 2.0 * total;
    }
}

/* Take a step; the fields of `step` marked "out" are written. Those from `states` to `end_rate`, but
 * for the guards at the end, are written only if the error is below 1: a rejected step ends early.
 * Returns DONE or FAILED. */
int take_explicit_step(const struct field *field, const struct tableau *tableau, double *scratch,
                       struct explicit_step *step) {
    const int nx = field->kernel->nx, n = field->kernel->guard_count;
    double *rates = scratch, *stage = scratch + ALL_STAGES * nx, *end = stage + nx;
    if (step->rate) {
        memcpy(rates, step->rate, (size_t)nx * sizeof(double));
    } else if (evaluate_field(field, step->x, rates, NULL) != DONE) {
        return FAILED;
    }
    for (int i = 1; i <= STAGES; i++) {
        double *at = i == STAGES ? end : stage;
        double *guards = i == STAGES ? step->guards + (NODES - 1) * n : NULL;
        combine(step->x, step->h, tableau->rows[i - 1], rates, i, nx, at);
        if (evaluate_field(field, at, rates + i * nx, guards) != DONE) return FAILED;
    }
    step->error = estimate_error(tableau, step, rates, end, nx);
    if (!(step->error < 1.0)) return DONE;
    step->decay = find_decay(step, rates, stage, end, nx);
    for (int i = STAGES + 1; i < ALL_STAGES; i++) {
        combine(step->x, step->h, tableau->rows[i - 1], rates, i, nx, stage);
        if (evaluate_field(field, stage, rates + i * nx, NULL) != DONE) return FAILED;
    }
    for (int i = 0; i < NODES - 1; i++) {
        double *state = step->states + i * nx, *guards = step->guards + i * n;
        combine(step->x, step->h, tableau->dense[i], rates, ALL_STAGES, nx, state);
        if (i == 0 && step->guards_at_start)
            memcpy(guards, step->guards_at_start, (size_t)n * sizeof(double));
        else if (evaluate_field(field, state, NULL, guards) != DONE)
            return FAILED;
    }
    memcpy(step->states + (NODES - 1) * nx, end, (size_t)nx * sizeof(double));
    memcpy(step->end_rate, rates + STAGES * nx, (size_t)nx * sizeof(double));
    compute_bounds(tableau, step->guards, n, step->bounds);
    return DONE;
}
