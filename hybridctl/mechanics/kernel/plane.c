/* Forces of redundant contacts inside their cones where two directions are free.
 *
 * The equations allow m + N z with two columns N, such that m is of least weighted norm where |z| is least.
 * Slacks g_j(m + N z) are concave, so that each of their tangents is a bound: the cones are inside the
 * half-planes of all tangents. The point of least |z| in the half-planes found so far has a new tangent for
 * each cone that it is outside of. Where half-planes have no point in common, the cones have none. Once it
 * is known which cones are touched, Newton's method on
 *
 *     (1 - sum_j k_j N' D^2 g_j N) z = sum_j k_j N' D g_j,   g_j = 0,
 *
 * makes the point exact. With k > 0 and all slacks positive it is the only one. See
 * contact_law/redundancy.py, which decides all other cases.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

/* All but the first two are those of contact_law/redundancy.py, relative to the multipliers. */
static const double CLOSE = 1e-7;          /* violation from which Newton's method starts */
static const double CLEAR = 1e-6;          /* slack, and k, that are certainly positive */
static const double INSIDE = 1e-12;        /* slack of a point that is inside: rounding */
static const double THICKNESS = 1e-9;      /* by which cones are wider that may be a point */
static const double NEAR_APEX = 1e-5;      /* normal force */
static const double STEP_CONVERGED = 1e-13; /* Newton step */
static const double STAGNATED = 1e-10;      /* Newton step that is rounding if the next is not shorter */
static const double PARALLEL = 1e-9;       /* sine of the angle between two tangents */
enum { MAX_TANGENTS = 96, MAX_ROUNDS = 40, MAX_STEPS = 12 };

/* The half-plane a . z >= b with |a| = 1, of one cone. */
struct half_plane {
    double a[2], b;
    int contact;
};

/* Write the slack of closed contact j at z, in its unit, and its gradient and curvature by z. */
static double find_slack(const struct kernel *p, const struct free_plane *plane, int j, int place,
                         const double *z, double *gradient, double *curvature) {
    const struct closed_contact *contact = p->closed + j;
    const int count = slides_now(p, j) ? 0 : contact->last - contact->first;
    const double limit = find_friction_limit(p, j), unit = plane->units[j];
    double push = p->solution[j], friction[2] = {0.0}, length = 0.0;
    const double *normal = plane->n + 2 * j, *rows = plane->n + 2 * place;
    push += normal[0] * z[0] + normal[1] * z[1];
    const double scale = count ? limit : 1.0;
    for (int l = 0; l < 2; l++) gradient[l] = scale * normal[l] / unit;
    memset(curvature, 0, 4 * sizeof(double));
    for (int t = 0; t < count; t++) {
        friction[t] = p->solution[place + t] + rows[2 * t] * z[0] + rows[2 * t + 1] * z[1];
        length = hypot(length, friction[t]);
    }
    if (length > 0.0) {
        double across[2] = {0.0};
        for (int l = 0; l < 2; l++) {
            for (int t = 0; t < count; t++)
                gradient[l] -= friction[t] / length * rows[2 * t + l] / unit;
            if (count == 2)
                across[l] = (friction[0] * rows[2 + l] - friction[1] * rows[l]) / length;
        }
        for (int l = 0; l < 4; l++) /* -D^2 |f| = -(across across') / |f| */
            curvature[l] = -across[l / 2] * across[l % 2] / (length * unit);
    }
    return (scale * push - length) / unit;
}

/* Find the point of least |z| in half-planes, one after the other. Returns 0 where there is none, -1 where
 * that is not certain, else 1; `touched` are those that it is at the border of, -1 for none. */
static int find_least_point(const struct half_plane *planes, int count, double wider, double *z,
                            int *touched) {
    z[0] = z[1] = 0.0;
    touched[0] = touched[1] = -1;
    for (int i = 0; i < count; i++) {
        const struct half_plane *own = planes + i;
        if (own->a[0] * z[0] + own->a[1] * z[1] - own->b >= 0.0) continue;
        /* On its border, z = b a + s t, between the ends that those before it allow. */
        const double along[2] = {-own->a[1], own->a[0]};
        double first = -INFINITY, last = INFINITY;
        int at_first = -1, at_last = -1;
        for (int j = 0; j < i; j++) {
            const double slope = planes[j].a[0] * along[0] + planes[j].a[1] * along[1];
            const double left = planes[j].b -
                                own->b * (planes[j].a[0] * own->a[0] + planes[j].a[1] * own->a[1]);
            if (fabs(slope) < PARALLEL) {
                if (left > wider) return 0;
                if (left > -wider) return -1;
                continue;
            }
            if (slope > 0.0 && left / slope > first) {
                first = left / slope;
                at_first = j;
            } else if (slope < 0.0 && left / slope < last) {
                last = left / slope;
                at_last = j;
            }
        }
        if (first > last) return first - last > wider ? 0 : -1;
        const double s = fmin(fmax(0.0, first), last);
        touched[0] = i;
        touched[1] = s == 0.0 ? -1 : s == first ? at_first : at_last;
        for (int l = 0; l < 2; l++) z[l] = own->b * own->a[l] + s * along[l];
    }
    return 1;
}

/* Solve (n, n) equations in place, n at most 4. */
static int solve_small(double *matrix, int n, double *right) {
    double determinant;
    return factorise_and_solve(matrix, n, 1e-12, right, 1, &determinant);
}

/* Make a point with `count` touched cones exact by Newton's method; DONE or ASK_PYTHON. Each equation is
 * relative to the size of its gradient at the start, so that k are as large as z. */
static int polish_point(const struct kernel *p, const struct free_plane *plane, const int *contacts,
                        int count, double *z) {
    double k[2] = {0.0}, sizes[2], before = INFINITY, gradients[2][2], curvature[4];
    for (int c = 0; c < count; c++) {
        double *own = gradients[c];
        find_slack(p, plane, contacts[c], plane->places[contacts[c]], z, own, curvature);
        sizes[c] = hypot(own[0], own[1]);
        for (int l = 0; l < 2; l++) own[l] /= sizes[c];
        k[c] = own[0] * z[0] + own[1] * z[1];
    }
    if (count == 2) { /* z = k_1 a_1 + k_2 a_2 */
        const double cosine = gradients[0][0] * gradients[1][0] + gradients[0][1] * gradients[1][1];
        const double first = k[0], rest = 1.0 - cosine * cosine;
        if (!(rest > PARALLEL)) return ASK_PYTHON;
        k[0] = (first - cosine * k[1]) / rest;
        k[1] = (k[1] - cosine * first) / rest;
    }
    for (int step = 0; step < MAX_STEPS; step++) {
        const int n = 2 + count;
        double matrix[16] = {0.0}, right[4] = {-z[0], -z[1]}, gradient[2];
        matrix[0] = matrix[n + 1] = 1.0;
        for (int c = 0; c < count; c++) {
            const double slack = find_slack(p, plane, contacts[c], plane->places[contacts[c]], z,
                                            gradient, curvature);
            for (int l = 0; l < 2; l++) {
                matrix[l * n + 2 + c] = -gradient[l] / sizes[c];
                matrix[(2 + c) * n + l] = gradient[l] / sizes[c];
                for (int o = 0; o < 2; o++)
                    matrix[l * n + o] -= k[c] * curvature[2 * l + o] / sizes[c];
            }
            right[2 + c] = -slack / sizes[c];
        }
        if (!solve_small(matrix, n, right)) return ASK_PYTHON;
        const double far = fmax(1.0, fmax(fabs(z[0]), fabs(z[1])));
        const double size = fmax(fabs(right[0]), fabs(right[1])) / far;
        if (!(size < INFINITY)) return ASK_PYTHON;
        for (int l = 0; l < 2; l++) z[l] += right[l];
        for (int c = 0; c < count; c++) k[c] = right[2 + c];
        /* Converged, or rounding: the step no longer becomes smaller. */
        if (size <= STEP_CONVERGED || (size < STAGNATED && size >= 0.5 * before)) {
            for (int c = 0; c < count; c++)
                if (!(k[c] > CLEAR * far)) return ASK_PYTHON;
            return DONE;
        }
        before = size;
    }
    return ASK_PYTHON;
}

/* Move forces to those of least |z| inside the cones, by z (2,): DONE, ASK_PYTHON, or NO_FORCES where none
 * are. `size` is the largest multiplier in the units of contacts, at least 1. */
int find_point_in_plane(const struct kernel *p, const struct free_plane *plane, double size, double *z) {
    struct half_plane planes[MAX_TANGENTS];
    const double wider = THICKNESS * size;
    int count = 0, touched[2];
    z[0] = z[1] = 0.0;
    touched[0] = touched[1] = -1;
    for (int round = 0; round < MAX_ROUNDS; round++) {
        double worst = 0.0, gradient[2], curvature[4];
        for (int j = 0; j < p->closed_count; j++) {
            const double slack = find_slack(p, plane, j, plane->places[j], z, gradient, curvature);
            const double length = hypot(gradient[0], gradient[1]);
            if (!(fabs(slack) < INFINITY)) return ASK_PYTHON;
            worst = fmin(worst, slack);
            if (slack >= -INSIDE * size) continue;
            if (!(length > PARALLEL)) return slack < -2.0 * wider && length == 0.0 ? NO_FORCES : ASK_PYTHON;
            if (count == MAX_TANGENTS) return ASK_PYTHON;
            struct half_plane *own = planes + count++;
            for (int l = 0; l < 2; l++) own->a[l] = gradient[l] / length;
            own->b = own->a[0] * z[0] + own->a[1] * z[1] - slack / length;
            own->contact = j;
        }
        if (worst >= -CLOSE * size) break;
        if (round == MAX_ROUNDS - 1) return ASK_PYTHON;
        const int found = find_least_point(planes, count, wider, z, touched);
        if (found < 0) return ASK_PYTHON;
        if (!found) return NO_FORCES;
    }
    int contacts[2], active = 0;
    for (int t = 0; t < 2; t++)
        if (touched[t] >= 0 && !(active && planes[touched[t]].contact == contacts[0]))
            contacts[active++] = planes[touched[t]].contact;
    if (!active || polish_point(p, plane, contacts, active, z) != DONE) return ASK_PYTHON;
    for (int j = 0; j < p->closed_count; j++) {
        double gradient[2], curvature[4];
        const double slack = find_slack(p, plane, j, plane->places[j], z, gradient, curvature);
        const int is_active = j == contacts[0] || (active == 2 && j == contacts[1]);
        const double push = p->solution[j] + plane->n[2 * j] * z[0] + plane->n[2 * j + 1] * z[1];
        const int has_friction = !slides_now(p, j) && p->closed[j].last > p->closed[j].first;
        if (is_active && has_friction && !(push > NEAR_APEX * size * plane->units[j])) return ASK_PYTHON;
        if (!is_active && !(slack > CLEAR * size)) return ASK_PYTHON;
    }
    return DONE;
}
