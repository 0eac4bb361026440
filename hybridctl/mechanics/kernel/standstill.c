/* One sliding contact with near-zero velocity in a surface: it stops, starts to slide, or sticks.
 *
 * Which of the three is decided as in modes/standstill.py, for the one contact that has no direction
 * while all others have theirs. Where friction could hold it, it goes on until it stops, or sticks.
 * Where not it starts, along the direction s in which friction lets it accelerate,
 *
 *     s x w = 0, s . w >= 0,   w = J_t a - target,
 *
 * found by Newton's method on the angle of s. Several such contacts, and whatever is close to the
 * border between two cases of Coulomb's law, are left to Python.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

/* The first is that of modes/tolerances.py, the next that of contact_law/law.py, all others are those
 * of modes/standstill.py. */
static const double STANDSTILL = 2e-8;        /* speed up to which a direction may be a guess, m/s */
static const double CERTIFIED = 1e-9;         /* violation of the law, relative to its data */
static const double CERTAIN = 1e-12;          /* the same in any unit of the law: 1e-3 of it */
static const double MIN_SPEED = 1e-9;         /* speed at which a slow contact is at rest, m/s */
static const double MIN_CERTAIN_SPEED = 9e-9; /* speed up to which it may be an integrator's, m/s */
static const double MIN_FORCE = 1e-10;        /* friction that has no direction, N */
static const double SAME_MOTION_COSINE = 0.5; /* of directions that belong to one motion */

enum { MAX_NEWTON_STEPS = 12 }; /* of which four or five do, and eight by secants */
/* Pivots and responses relative to the largest, as in equations.c; the Python mode's limit is less. */
static const double LEAST_PIVOT_RATIO = 1e-6;
static const double CLEAR_VIOLATION = 1e-5; /* of the law, relative to the largest normal force */
static const double FIRST_TURN = 1e-4; /* of secants, rad */
/* Newton step, rad, after which the next one is rounding: it converges quadratically. */
static const double LAST_STEP = 1e-10;

static void set_direction(struct kernel *p, int contact, double x, double y) {
    p->unit[2 * contact] = x;
    p->unit[2 * contact + 1] = y;
    p->direction[2 * contact] = -p->closed[contact].friction * x;
    p->direction[2 * contact + 1] = -p->closed[contact].friction * y;
}

/* Compute what changes with the angle of a contact's direction, at the forces solved last.
 *
 * Writes the change of the forces (r,), and the slope of the acceleration across the direction.
 * Returns ASK_PYTHON where G is nearly singular. */
int differentiate_angle(struct kernel *p, int contact, double *forces, double *slope) {
    const struct closed_contact *own = p->closed + contact;
    const int r = p->row_count, first = own->first;
    const double *s = p->unit + 2 * contact, *row = p->delassus + first * r, *next = row + r;
    double ratio, acceleration[2], change[2] = {0.0, 0.0};
    const double turned[2] = {own->friction * p->forces[contact] * s[1],
                              -own->friction * p->forces[contact] * s[0]};
    for (int i = 0; i < p->active_count; i++) {
        const double *responses = p->delassus + p->active[i] * r + first;
        p->solution[i] = -(responses[0] * turned[0] + responses[1] * turned[1]);
    }
    if (solve_multipliers(p, p->solution, 1, &ratio) != DONE) return ASK_PYTHON;
    scatter_solution(p, forces);
    forces[first] += turned[0];
    forces[first + 1] += turned[1];
    compute_slip_acceleration(p, contact, acceleration);
    for (int i = 0; i < r; i++) {
        change[0] += row[i] * forces[i];
        change[1] += next[i] * forces[i];
    }
    *slope = s[0] * change[1] - s[1] * change[0] - (s[0] * acceleration[0] + s[1] * acceleration[1]);
    return DONE;
}

/* Return the largest sum of the sizes of terms in the accelerations of rows without forces. */
double compute_magnitude(const struct kernel *p, double *scratch) {
    const int n = p->nv, r = p->row_count;
    double largest = 0.0;
    memcpy(scratch, p->driven, (size_t)n * sizeof(double));
    solve_mass_root_transposed(p->terms.mass, n, n, scratch, 1);
    for (int a = 0; a < r; a++) {
        const double *row = p->terms.jacobian + p->rows[a] * n;
        double total = fabs(p->target[a]);
        for (int i = 0; i < n; i++) total += fabs(row[i] * scratch[i]);
        largest = fmax(largest, total);
    }
    return largest;
}

/* Return how all other contacts obey Coulomb's law: 1 if they push, hold and slide as they are to, -1
 * if one certainly does not, 0 close to a border, where the law has a tolerance that Python judges. */
static int judge_law(const struct kernel *p, int starting) {
    double largest = 0.0;
    int found = 1;
    for (int j = 0; j < p->closed_count; j++) largest = fmax(largest, fabs(p->forces[j]));
    for (int j = 0; j < p->closed_count; j++) {
        const struct closed_contact *contact = p->closed + j;
        double slack = p->forces[j];
        if (j != starting && contact->slides && contact->sign != 0.0) {
            /* Along one tangent, a contact that slides has the velocity that its mode says. */
            if (!(contact->sign * p->slip[contact->first] > STANDSTILL)) return 0;
        } else if (!contact->slides && contact->first < contact->last) {
            const int two = contact->last - contact->first == 2;
            const double friction = hypot(p->forces[contact->first],
                                          two ? p->forces[contact->first + 1] : 0.0);
            const double margin = contact->static_friction * slack - friction;
            if (!(margin >= slack)) slack = margin; /* also where it is no number */
        }
        if (slack < -CLEAR_VIOLATION * largest) return -1;
        if (!(slack > 0.0)) found = 0;
    }
    return found;
}

/* Whether surfaces and sticking contacts let a contact move along its direction; else ASK_PYTHON.
 *
 * Its response to a force there, s' J_t P M^-1 J_t' s with P the projector onto motions that these
 * constraints leave, is not zero beside that without constraints. */
static int is_free_to_move(struct kernel *p, int contact) {
    const int r = p->row_count, m = p->constrained_count, first = p->closed[contact].first;
    const double *s = p->unit + 2 * contact, *row = p->delassus + first * r, *next = row + r;
    const double alone = s[0] * (s[0] * row[first] + 2.0 * s[1] * row[first + 1]) +
                         s[1] * s[1] * next[first + 1];
    double determinant, left = alone;
    for (int i = 0; i < m; i++) {
        const int own = p->constrained[i];
        for (int j = 0; j < m; j++) p->even[i * m + j] = p->delassus[own * r + p->constrained[j]];
        p->solution[i] = p->change[i] = s[0] * row[own] + s[1] * next[own];
    }
    if (!factorise_symmetric(p->even, m, LEAST_PIVOT_RATIO, &determinant)) return 0;
    solve_symmetric(p->even, m, p->solution, 1);
    for (int i = 0; i < m; i++) left -= p->change[i] * p->solution[i];
    return left > LEAST_PIVOT_RATIO * alone;
}

/* Solve the forces with a contact sliding along (x, y), and its acceleration (2,). */
static int solve_along(struct kernel *p, int contact, double x, double y, double *acceleration,
                       double *ratio) {
    set_direction(p, contact, x, y);
    if (solve_any_forces(p, 1, ratio) != DONE) return ASK_PYTHON;
    compute_slip_acceleration(p, contact, acceleration);
    return DONE;
}

/* Find the direction in which a contact starts, beginning with one (2,), and solve the forces.
 *
 * By secants where contacts are redundant: forces that are shared have no derivative here. */
static int solve_starting(struct kernel *p, int slow, double x, double y, double *ratio) {
    const double first[2] = {x, y};
    double slope = 0.0, acceleration[2], angle = INFINITY, across = 0.0;
    for (int step = 0;; step++) {
        if (solve_along(p, slow, x, y, acceleration, ratio) != DONE) return ASK_PYTHON;
        const double before = across;
        across = x * acceleration[1] - y * acceleration[0];
        if (fabs(angle) < LAST_STEP) break;
        if (step == MAX_NEWTON_STEPS) return ASK_PYTHON;
        if (!p->shared.rank) {
            if (differentiate_angle(p, slow, p->change, &slope) != DONE) return ASK_PYTHON;
            angle = -across / slope;
        } else if (step == 0) {
            angle = FIRST_TURN;
        } else if (across != before) {
            angle *= across / (before - across);
        } else {
            break;
        }
        if (!(fabs(angle) < INFINITY)) return ASK_PYTHON;
        const double c = cos(angle), s = sin(angle), old = x;
        x = c * old - s * y;
        y = s * old + c * y;
    }
    const double along = x * acceleration[0] + y * acceleration[1];
    const double magnitude = compute_magnitude(p, p->column);
    if (!(along > -CERTAIN * magnitude)) return ASK_PYTHON;
    const int law = p->shared.rank ? judge_law(p, slow) > 0 : judge_law(p, slow);
    if (law == 0) return ASK_PYTHON;
    if (law < 0) { /* it goes on the way it goes, or against friction if it is at rest */
        const double *slip = p->slip + p->closed[slow].first, speed = p->speed[slow];
        const int moves = speed > MIN_SPEED;
        const double s = moves ? slip[0] / speed : first[0], t = moves ? slip[1] / speed : first[1];
        return solve_along(p, slow, s, t, acceleration, ratio) != DONE || p->shared.rank ? ASK_PYTHON
                                                                                         : DONE;
    }
    /* One without acceleration, as where friction has come to its limit, may be held by others. */
    const int accelerates = along > CERTIFIED * magnitude;
    if (!accelerates && (p->shared.rank || !is_free_to_move(p, slow))) return ASK_PYTHON;
    if (!(fabs(across) < CERTAIN * magnitude)) return ASK_PYTHON;
    /* It may certainly slide in another direction than it would start in. */
    const double *slip = p->slip + p->closed[slow].first, speed = p->speed[slow];
    if (speed > MIN_CERTAIN_SPEED && slip[0] * x + slip[1] * y < SAME_MOTION_COSINE * speed)
        return ASK_PYTHON;
    p->starting = slow;
    return DONE;
}

/* Solve the forces where the closed contact `slow` has no direction: DONE or ASK_PYTHON. */
int solve_slow_contact(struct kernel *p, int slow, double *ratio) {
    const struct closed_contact *contact = p->closed + slow;
    p->held = slow;
    if (solve_any_forces(p, 1, ratio) != DONE) return ASK_PYTHON;
    const double *friction = p->forces + contact->first;
    const double size = hypot(friction[0], friction[1]);
    const double limit = (1.0 - 0.5 * LIMIT_MARGIN) * contact->friction * p->forces[slow];
    if (!(size < limit)) { /* friction cannot hold it */
        if (!(size > MIN_FORCE)) return ASK_PYTHON;
        const double x = -friction[0] / size, y = -friction[1] / size;
        p->held = -1;
        return solve_starting(p, slow, x, y, ratio);
    }
    if (!(p->speed[slow] > MIN_SPEED)) return DONE;
    /* It goes on until it stops if it slows down so. */
    double acceleration[2];
    const double *slip = p->slip + contact->first;
    p->held = -1;
    if (solve_any_forces(p, 1, ratio) != DONE) return ASK_PYTHON;
    compute_slip_acceleration(p, slow, acceleration);
    const double scale = p->speed[slow] * hypot(acceleration[0], acceleration[1]);
    if (slip[0] * acceleration[0] + slip[1] * acceleration[1] < -SAME_MOTION_COSINE * scale)
        return DONE;
    p->held = slow;
    return solve_any_forces(p, 1, ratio);
}
