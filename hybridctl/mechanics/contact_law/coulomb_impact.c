/* One impact: its law from the terms of motion, and the velocity after it.
 *
 * It follows impact._solve_in_python. That has G = J M^-1 J^T by M^-1 J^T; here it is Y^T Y with
 * Y = L^-1 J^T and M = L L^T, which is half the work. Results are equal to rounding.
 */
#include "coulomb.h"

#include <math.h>
#include <string.h>

/* Factorise M = L L^T, with the reciprocals of the diagonal of L on that of `root`; returns 0 where
 * M is not positive definite or not finite. */
static int factorise_mass(const double *mass, int n, double *root) {
    for (int j = 0; j < n; j++) {
        double pivot = mass[j * n + j];
        for (int l = 0; l < j; l++) pivot -= root[j * n + l] * root[j * n + l];
        if (!(pivot > 0.0) || !isfinite(pivot)) return 0;
        const double reciprocal = 1.0 / sqrt(pivot);
        root[j * n + j] = reciprocal;
        for (int i = j + 1; i < n; i++) {
            double entry = mass[i * n + j];
            for (int l = 0; l < j; l++) entry -= root[i * n + l] * root[j * n + l];
            root[i * n + j] = entry * reciprocal;
        }
    }
    return 1;
}

/* Select the diagonal of E: contacts that approach too slowly do not rebound, as
 * ContactDynamics.select_restitution. */
static void select_restitution(struct impact *impact) {
    for (int i = 0; i < impact->all_rows; i++) {
        const double normal = impact->rates[impact->owner[i]], least = impact->threshold[i];
        const int rebounds = normal > 0.0 || -normal > least || least == 0.0;
        impact->selected[i] = rebounds ? impact->restitution[i] : 0.0;
    }
}

/* Solve an impact whose problem `p` has contacts, tangents and friction; its G and b are set here.
 * Returns what `settle_problem` returns, and -1 where M cannot be factorised. */
int solve_impact(const struct lapack *lapack, struct problem *p, struct impact *impact,
                 struct solution *found) {
    const int nv = impact->velocities, r = p->rows;
    const double *v = impact->velocity;
    double root[MAX_VELOCITIES * MAX_VELOCITIES], half[MAX_ROWS * MAX_VELOCITIES]; /* L, Y^T */
    if (!factorise_mass(impact->mass, nv, root)) return -1;
    select_restitution(impact);
    p->magnitude = 0.0;
    for (int i = 0; i < r; i++) {
        const int row = impact->rows[i];
        const double *jacobian = impact->jacobian + row * nv;
        double *own = half + i * nv, size = 0.0;
        for (int l = 0; l < nv; l++) size += fabs(jacobian[l]) * fabs(v[l]);
        p->magnitude = fmax(p->magnitude, size);
        p->free[i] = impact->rates[row] + impact->selected[row] * impact->rates[row];
        if (!isfinite(size) || !isfinite(p->free[i])) return -1; /* fmax passes over NaN */
        for (int l = 0; l < nv; l++) {
            double entry = jacobian[l];
            for (int j = 0; j < l; j++) entry -= root[l * nv + j] * own[j];
            own[l] = entry * root[l * nv + l];
        }
        for (int j = 0; j <= i; j++) {
            double sum = 0.0;
            for (int l = 0; l < nv; l++) sum += own[l] * half[j * nv + l];
            p->delassus[i * r + j] = p->delassus[j * r + i] = sum;
        }
    }
    const int settled = settle_problem(lapack, p, found);
    if (settled < 0) return -1;
    double change[MAX_VELOCITIES];
    for (int l = nv - 1; l >= 0; l--) { /* L^-T Y f */
        change[l] = 0.0;
        for (int i = 0; i < r; i++) change[l] += half[i * nv + l] * found->forces[i];
        for (int j = l + 1; j < nv; j++) change[l] -= root[j * nv + l] * change[j];
        change[l] *= root[l * nv + l];
    }
    for (int l = 0; l < nv; l++) impact->after[l] = v[l] + change[l];
    for (int i = 0; i < r; i++) {
        const double *jacobian = impact->jacobian + impact->rows[i] * nv;
        impact->rates_after[i] = 0.0;
        for (int l = 0; l < nv; l++) impact->rates_after[i] += jacobian[l] * impact->after[l];
    }
    double energy_loss = 0.0;
    for (int l = 0; l < nv; l++) {
        double sum = 0.0;
        for (int j = 0; j < nv; j++) sum += impact->mass[l * nv + j] * (impact->after[j] + v[j]);
        energy_loss -= 0.5 * (impact->after[l] - v[l]) * sum;
    }
    *impact->energy_loss = energy_loss;
    memset(impact->normal, 0, (size_t)impact->all_contacts * sizeof(double));
    memset(impact->friction, 0, (size_t)(2 * impact->all_contacts) * sizeof(double));
    for (int i = 0; i < p->contacts; i++) { /* the number of a contact is that of its normal row */
        impact->normal[impact->rows[i]] = found->forces[i];
        for (int j = 0; j < p->tangent_count[i]; j++)
            impact->friction[2 * impact->rows[i] + j] = found->forces[p->tangents[i][j]];
    }
    return settled;
}
