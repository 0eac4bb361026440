/* Forces of redundant contacts, where those of least weighted norm are inside the friction cones.
 *
 * G is singular then, with Q (m, rank) in its range and B (m, rank) such that Q' G = B' (singular.c). Of all m
 * with G m = c those with the least sum of m_i^2 / w_i are
 *
 *     m = W^(1/2) Z S^-T Q' c,   W^(1/2) B = Z S,
 *
 * with Z orthonormal and S upper triangular. As in modes/force_distribution.py they are solved twice:
 * with equal weights, then with weights of friction by the normal forces found. Where these leave
 * the cones, m + z n with the least |z| inside is taken if one direction n is free, G n = 0, between
 * two bodies, or if two are free in all (plane.c). Where more are, or the rank is not certain, the Python
 * mode is asked.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

static const double ON_CONE = 1e-12;          /* relative to the largest normal force: rounding */
static const double PROGRAMME_ON_CONE = 1e-9; /* the same of forces at a border: modes/guards.py */
static const double MAX_CONTRADICTION = 1e-6; /* residual: modes/constraint_equations.py */
/* The next four are those of contact_law/redundancy.py and law.py. */
static const double THICKNESS = 1e-9;         /* by which cones are wider that may be a point */
static const double NEAR_APEX = 1e-5;         /* normal force */
static const double LINE_CONVERGED = 1e-14;   /* step on a line, relative to the way: rounding */
static const double MIN_RESPONSE = 1e-6;      /* of a contact, relative to the largest */
static const double FREE_DIRECTION = 1e-6;    /* error of a number of directions, above rounding */
enum { MAX_LINE_STEPS = 40 };
static const double LEAST_WEIGHT = 1e-6; /* relative to all normal forces: modes/tolerances.py */

static inline void subtract(double *a, double factor, const double *b, int n) {
    add_row(a, -factor, b, n);
}

/* Factorise the active part of G, with sliding friction or without it: the product of its nonzero
 * singular values, NaN where the rank is not certain.
 *
 * Without, G = L L' is symmetric: B = L = Z S and Q = L (L' L)^-1 = Z S^-T. */
double factorise_shared(struct kernel *p, int with_friction, int *rank) {
    const int r = p->row_count, m = p->active_count;
    struct sharing *shared = &p->shared;
    for (int i = 0; i < m; i++) {
        const double *row = p->delassus + p->active[i] * r;
        for (int j = 0; j < m; j++) p->matrix[i * m + j] = row[p->active[j]];
        for (int j = 0; with_friction && j < p->closed_count; j++)
            for (int t = p->closed[j].first; slides_now(p, j) && t < p->closed[j].last; t++)
                p->matrix[i * m + j] += row[t] * p->direction[2 * j + t - p->closed[j].first];
    }
    *rank = with_friction ? factorise_columns(p->matrix, m, shared->q, shared->b, p->change)
                          : factorise_semidefinite(p->matrix, m, shared->b, p->change);
    if (*rank < 1) return NAN;
    const double product = factorise_weighted(shared->b, NULL, m, *rank, shared->z, shared->s);
    shared->range = with_friction ? shared->q : shared->b;
    if (with_friction) return product;
    invert_factor(shared->z, shared->s, m, *rank, shared->q);
    return product * product;
}

/* Write the roots of the weights (m,) of the multipliers; 0 where there are none but one. */
static int find_weights(struct kernel *p, double *half) {
    const int k = p->closed_count, m = p->active_count;
    const double least = LEAST_WEIGHT * sqrt(multiply(p->solution, p->solution, k));
    if (m == k || !(least > 0.0)) return 0; /* no friction of a contact that sticks, or no load */
    for (int i = 0; i < k; i++) half[i] = 1.0;
    for (int i = k, owner = 0; i < m; i++) {
        while (p->active[i] >= p->closed[owner].last) owner++; /* tangents are in order */
        const double x = p->solution[owner] / least - 1.0;
        half[i] = sqrt(least * (1.0 + fmax(x, 0.0) + log1p(exp(-fabs(x)))));
    }
    return 1;
}

enum { ALL_PAIRS = -1 };

static int is_of_pair(const struct kernel *p, int j, int pair) {
    return pair == ALL_PAIRS || p->closed[j].pair == pair;
}

/* Return the coefficient that bounds the friction of closed contact j if it sticks. */
double find_friction_limit(const struct kernel *p, int j) {
    /* Kinetic friction has to hold one that is to slide, certainly (standstill.py). */
    return j == p->held ? (1.0 - LIMIT_MARGIN) * p->closed[j].friction : p->closed[j].static_friction;
}

/* Return the slack of the cone of closed contact j at forces m + z n, and its slope by z.
 *
 * It is mu f_n - |f_t| of one that sticks, whose friction begins at `place` among the multipliers,
 * else f_n. `along` (m,) is n, NULL for z = 0. `place` moves on to the next cone. */
static double find_slack(const struct kernel *p, int j, const double *along, double z, int *place,
                         double *slope) {
    const struct closed_contact *contact = p->closed + j;
    const int count = slides_now(p, j) ? 0 : contact->last - contact->first;
    const double push = p->solution[j] + (along ? z * along[j] : 0.0);
    *slope = along ? along[j] : 0.0;
    if (count == 0) return push;
    const double limit = find_friction_limit(p, j);
    double squares = 0.0, turned = 0.0;
    for (int i = *place; i < *place + count; i++) {
        const double friction = p->solution[i] + (along ? z * along[i] : 0.0);
        squares += friction * friction;
        turned += along ? friction * along[i] : 0.0;
    }
    *place += count;
    const double length = sqrt(squares);
    *slope = limit * *slope - (length > 0.0 ? turned / length : 0.0);
    return limit * push - length;
}

/* Return the largest size of a normal force. */
static double find_largest(const struct kernel *p) {
    double largest = 0.0;
    for (int j = 0; j < p->closed_count; j++) largest = fmax(largest, fabs(p->solution[j]));
    return largest;
}

/* Whether contacts push, and those that stick hold within static friction, but for rounding. */
static int is_inside_cones(const struct kernel *p) {
    const double least = -ON_CONE * find_largest(p);
    double slope;
    for (int j = 0, place = p->closed_count; j < p->closed_count; j++)
        if (!(p->solution[j] >= least) || !(find_slack(p, j, NULL, 0.0, &place, &slope) >= least))
            return 0;
    return 1;
}

/* Write the units of the forces of each closed contact (k,), as _make_force_cones of
 * modes/force_distribution.py, and return the largest multiplier in them, at least 1. */
static double find_units(struct kernel *p, double *units) {
    const int r = p->row_count;
    double largest = 0.0, size = 1.0;
    for (int j = 0; j < p->closed_count; j++) {
        units[j] = p->delassus[j * r + j];
        for (int t = p->closed[j].first; !slides_now(p, j) && t < p->closed[j].last; t++)
            units[j] = fmax(units[j], p->delassus[t * r + t]);
        largest = fmax(largest, units[j]);
    }
    const double magnitude = compute_magnitude(p, p->column);
    for (int j = 0; j < p->closed_count; j++)
        units[j] = magnitude / largest * sqrt(largest / fmax(units[j], MIN_RESPONSE * largest));
    for (int j = 0, place = p->closed_count; j < p->closed_count; j++) {
        const int count = slides_now(p, j) ? 0 : p->closed[j].last - p->closed[j].first;
        size = fmax(size, fabs(p->solution[j]) / units[j]);
        for (; place < p->active_count && count && p->active[place] < p->closed[j].last; place++)
            size = fmax(size, fabs(p->solution[place]) / units[j]);
    }
    return size;
}

/* Find the first z of the line m + z n inside the cones of a pair of bodies, or of ALL_PAIRS,
 * which are made wider.
 *
 * `z` is the start. Newton's method on the least slack, which is concave, as _find_interval_end of
 * contact_law/redundancy.py. Returns whether there is one, and the closed contact of that slack. */
static int find_interval_end(const struct kernel *p, int pair, const double *along,
                             const double *units, double wider, double *z, int *contact) {
    double first_slope = 0.0;
    for (int step = 0; step < MAX_LINE_STEPS; step++) {
        double least = INFINITY, slope = 0.0, own;
        for (int j = 0, place = p->closed_count; j < p->closed_count; j++) {
            const double slack = find_slack(p, j, along, *z, &place, &own) / units[j];
            if (!is_of_pair(p, j, pair)) continue;
            if (!(slack < INFINITY)) return 0; /* no number */
            if (slack >= least) continue;
            least = slack;
            slope = own / units[j];
            *contact = j;
        }
        least += wider;
        if (least >= 0.0) return 1;
        if (first_slope * slope < 0.0 || slope == 0.0) return 0; /* past the top of the slack */
        first_slope = slope;
        const double change = -least / slope;
        if (fabs(change) <= LINE_CONVERGED * fabs(*z)) return 1;
        *z += change;
    }
    return 0;
}

/* Find the one direction n (m,) of the forces between two bodies that moves nothing, G n = 0.
 *
 * Returns how many there are: 0, 1, or 2 for more, or where it moves forces of other bodies, too. */
static int find_free_direction(const struct kernel *p, int pair, double *n) {
    const struct sharing *shared = &p->shared;
    const int m = p->active_count;
    double most = -1.0, free = 0.0, elsewhere = 0.0;
    int best = 0;
    for (int i = 0, owner = 0; i < m; i++) {
        if (i >= p->closed_count)
            while (p->active[i] >= p->closed[owner].last) owner++;
        if (!is_of_pair(p, i < p->closed_count ? i : owner, pair)) continue;
        double left = 1.0; /* diagonal of the projector 1 - Z Z': its trace is the number */
        for (int k = 0; k < shared->rank; k++)
            left -= shared->z[k * m + i] * shared->z[k * m + i];
        free += left;
        if (left > most) {
            most = left;
            best = i;
        }
    }
    if (free < FREE_DIRECTION) return 0;
    if (!(fabs(free - 1.0) < FREE_DIRECTION)) return 2;
    memset(n, 0, (size_t)m * sizeof(double));
    n[best] = 1.0;
    for (int again = 0; again < 2; again++)
        for (int k = 0; k < shared->rank; k++)
            subtract(n, multiply(n, shared->z + k * m, m), shared->z + k * m, m);
    for (int i = 0, owner = 0; i < m; i++) {
        if (i >= p->closed_count)
            while (p->active[i] >= p->closed[owner].last) owner++;
        if (!is_of_pair(p, i < p->closed_count ? i : owner, pair))
            elsewhere = fmax(elsewhere, fabs(n[i]));
    }
    return elsewhere < FREE_DIRECTION ? 1 : 2;
}

/* Write two directions N (m, 2) with G N = 0, orthonormal in the metric of the weights: 0 where
 * rounding leaves none. */
static int find_free_plane(const struct kernel *p, double *n) {
    const struct sharing *shared = &p->shared;
    const int m = p->active_count;
    const double *z = shared->is_weighted ? shared->weighted : shared->z;
    double *first = shared->right, *second = shared->y;
    for (int count = 0; count < 2; count++) {
        double *own = count ? second : first, most = -1.0;
        int best = 0;
        for (int i = 0; i < m; i++) { /* diagonal of the projector onto what is left */
            double left = 1.0;
            for (int k = 0; k < shared->rank; k++) left -= z[k * m + i] * z[k * m + i];
            if (count) left -= first[i] * first[i];
            if (left > most) {
                most = left;
                best = i;
            }
        }
        if (!(most > FREE_DIRECTION)) return 0;
        memset(own, 0, (size_t)m * sizeof(double));
        own[best] = 1.0;
        for (int again = 0; again < 2; again++) {
            for (int k = 0; k < shared->rank; k++)
                subtract(own, multiply(own, z + k * m, m), z + k * m, m);
            if (count) subtract(own, multiply(own, first, m), first, m);
        }
        const double length = sqrt(multiply(own, own, m));
        for (int i = 0; i < m; i++) own[i] /= length;
    }
    for (int i = 0; i < m; i++) {
        const double half = shared->is_weighted ? shared->half[i] : 1.0;
        n[2 * i] = half * first[i];
        n[2 * i + 1] = half * second[i];
    }
    return 1;
}

/* The same as `move_inside_cones` where two directions are free in all. */
static int move_in_plane(struct kernel *p, double size) {
    struct sharing *shared = &p->shared;
    double z[2];
    if (!find_free_plane(p, shared->plane)) return ASK_PYTHON;
    for (int j = 0, place = p->closed_count; j < p->closed_count; j++) {
        shared->places[j] = place;
        place += slides_now(p, j) ? 0 : p->closed[j].last - p->closed[j].first;
    }
    const struct free_plane plane = {shared->plane, shared->units, shared->places};
    const int status = find_point_in_plane(p, &plane, size, z);
    if (status == ASK_PYTHON) return ASK_PYTHON;
    shared->is_at_border = status == DONE;
    shared->near = status == DONE ? PROGRAMME_ON_CONE : 0.0;
    for (int i = 0; status == DONE && i < p->active_count; i++)
        p->solution[i] += shared->plane[2 * i] * z[0] + shared->plane[2 * i + 1] * z[1];
    return DONE;
}

/* Move forces outside the cones to the border of one, where a single direction is free, or a single one
 * between each two bodies that have such forces. `n` is scratch (m,). DONE also where no forces are inside:
 * then they stay as they are. */
static int move_inside_cones(struct kernel *p, double *n) {
    struct sharing *shared = &p->shared;
    const int m = p->active_count, k = p->closed_count;
    double *units = shared->units, *own = shared->copy, slope;
    const double size = find_units(p, units);
    const double outside = -ON_CONE * size;
    memcpy(own, p->solution, (size_t)m * sizeof(double));
    shared->near = PROGRAMME_ON_CONE;
    shared->is_at_border = 1;
    if (shared->rank == m - 2) return move_in_plane(p, size);
    /* A single direction may move forces between all bodies; several are looked at one by one. */
    const int is_single = shared->rank == m - 1;
    for (int pair = is_single ? ALL_PAIRS : 0; pair < (is_single ? 0 : k); pair++) {
        int is_outside = 0, contact = -1;
        for (int j = 0, place = k; j < k; j++) {
            const double slack = find_slack(p, j, NULL, 0.0, &place, &slope) / units[j];
            if (is_of_pair(p, j, pair) && !(slack >= outside)) is_outside = 1;
        }
        if (!is_outside) continue;
        const int free = find_free_direction(p, pair, n);
        double z = 0.0;
        if (free > 1) return ASK_PYTHON;
        if (!free || !find_interval_end(p, pair, n, units, THICKNESS * size, &z, &contact)) {
            memcpy(p->solution, own, (size_t)m * sizeof(double));
            shared->near = 0.0;
            shared->is_at_border = 0;
            return DONE;
        }
        /* Cones that allow hardly a point are Python's, and so is an apex, of several equations. */
        if (!find_interval_end(p, pair, n, units, 0.0, &z, &contact) || contact < 0)
            return ASK_PYTHON;
        for (int i = 0; i < m; i++) p->solution[i] += z * n[i];
        const int has_friction = !slides_now(p, contact) &&
                                 p->closed[contact].last > p->closed[contact].first;
        if (has_friction && !(p->solution[contact] > NEAR_APEX * size * units[contact]))
            return ASK_PYTHON;
    }
    return DONE;
}

/* Return by how much G m = c has no solution, relative to c, for `right` and `y` of `sharing`. */
static double find_contradiction(const struct kernel *p, double *scratch) {
    const struct sharing *shared = &p->shared;
    const int m = p->active_count;
    double missed = 0.0, largest = 0.0;
    memcpy(scratch, shared->right, (size_t)m * sizeof(double));
    for (int k = 0; k < shared->rank; k++)
        subtract(scratch, shared->y[k], shared->range + k * m, m);
    for (int i = 0; i < m; i++) {
        if (!(fabs(scratch[i]) < INFINITY)) return INFINITY;
        missed = fmax(missed, fabs(scratch[i]));
        largest = fmax(largest, fabs(shared->right[i]));
    }
    return missed > 0.0 ? missed / largest : 0.0;
}

/* Solve the forces of redundant contacts with directions as they are; write f = E m.
 *
 * If only the acceleration is asked for, contacts that all stick need no weights: it does not depend
 * on them. Returns DONE or ASK_PYTHON. */
int share_forces(struct kernel *p, int needs_forces, double *ratio) {
    struct sharing *shared = &p->shared;
    const int m = p->active_count;
    const int slides = count_sliding(p) > 0;
    double even = 1.0;
    int rank = 0, even_rank = 0;
    if (slides && p->can_jam) even = factorise_shared(p, 0, &even_rank);
    const double product = factorise_shared(p, slides, &rank);
    /* Contacts that are independent after all have a determinant with a sign. Where friction has
     * taken away one more motion, they jam. */
    if (!(product > 0.0) || rank == m || (slides && p->can_jam && rank != even_rank)) return ASK_PYTHON;
    shared->rank = rank;
    *ratio = slides && p->can_jam ? product / even : 1.0;
    for (int i = 0; i < m; i++)
        shared->right[i] = p->target[p->active[i]] - p->free[p->active[i]];
    for (int k = 0; k < rank; k++) shared->y[k] = multiply(shared->q + k * m, shared->right, m);
    memcpy(shared->copy, shared->y, (size_t)rank * sizeof(double));
    shared->contradiction = find_contradiction(p, p->matrix);
    find_least(shared->z, shared->s, NULL, m, rank, shared->y, p->solution);
    shared->near = ON_CONE;
    shared->is_at_border = 0;
    if (slides || needs_forces) {
        shared->is_weighted = find_weights(p, shared->half);
        if (shared->is_weighted) {
            factorise_weighted(shared->b, shared->half, m, rank, shared->weighted, shared->root);
            find_least(shared->weighted, shared->root, shared->half, m, rank, shared->copy,
                       p->solution);
        }
        if (!is_inside_cones(p)) {
            /* Kinetic friction decides whether one that slides is held, static friction bounds the
             * forces of one that is: where these differ, there are two solutions. */
            const struct closed_contact *held = p->held < 0 ? NULL : p->closed + p->held;
            if (held && held->static_friction > held->friction) return ASK_PYTHON;
            if (!(shared->contradiction <= MAX_CONTRADICTION) ||
                move_inside_cones(p, shared->right) != DONE)
                return ASK_PYTHON;
        }
    }
    scatter_solution(p, p->forces);
    return DONE;
}
