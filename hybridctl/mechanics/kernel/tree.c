/* Derivatives of the terms of a robot whose contacts are points on planes of the world.
 *
 * All vectors are spatial ones at the origin of the world, linear parts first. Velocity k has the
 * column J_k, which is fixed in the body of its joint; its parent body moves with V_p and A_p. A change of its
 * coordinate moves all bodies behind it by J_k. In axes that are moved along, each of them (velocity V,
 * column J) has
 *
 *     dV = V_p x J_k,          dA = A_p x J_k + V_p x dV + dV x V,    by the coordinate,
 *     dV = J_k,                dA = (V_j + V_p) x J_k + J_k x V,      by the velocity,
 *
 * with V_j of the joint's own body. Forces I A + V x* I V then change by I dA' + B dV, dA' being the part
 * that is the same for all bodies, with
 *
 *     B X = I (X x V) + X x* (I V) + V x* (I X) = (2 w x p, H w),   w the angular part of X,
 *
 * p the linear momentum and H (3, 3) as in `add_body`: so I, p and H are summed over the bodies behind
 * each joint. Contact forces keep their directions in the world, so that they change by minus the turn
 * w x F in axes that are moved along.
 */
#include <string.h>

#include "contact_kernel.h"

static inline void add_cross(const double *a, const double *b, double factor, double *into) {
    into[0] += factor * (a[1] * b[2] - a[2] * b[1]);
    into[1] += factor * (a[2] * b[0] - a[0] * b[2]);
    into[2] += factor * (a[0] * b[1] - a[1] * b[0]);
}

static inline double dot(const double *a, const double *b, int n) {
    double total = 0.0;
    for (int i = 0; i < n; i++) total += a[i] * b[i];
    return total;
}

/* Add the motion a x b. */
static inline void add_motion_cross(const double *a, const double *b, double *into) {
    add_cross(a + 3, b, 1.0, into);
    add_cross(a, b + 3, 1.0, into);
    add_cross(a + 3, b + 3, 1.0, into + 3);
}

/* Add the force a x* f. */
static inline void add_force_cross(const double *a, const double *f, double *into) {
    add_cross(a + 3, f, 1.0, into);
    add_cross(a + 3, f + 3, 1.0, into + 3);
    add_cross(a, f, 1.0, into + 3);
}

/* Add the matrix [a] x to a (3, 3) one. */
static void add_skew(const double *a, double factor, double *matrix) {
    matrix[1] -= factor * a[2];
    matrix[2] += factor * a[1];
    matrix[3] += factor * a[2];
    matrix[5] -= factor * a[0];
    matrix[6] -= factor * a[1];
    matrix[7] += factor * a[0];
}

static inline void add_product(const double *matrix, const double *x, double *into) {
    for (int i = 0; i < 3; i++) into[i] += dot(matrix + 3 * i, x, 3);
}

static void add_transposed(const double *matrix, const double *x, double *into) {
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) into[j] += matrix[3 * i + j] * x[i];
}

/* Add the momentum I x. */
static inline void add_momentum(const struct body_inertia *inertia, const double *x, double *into) {
    for (int i = 0; i < 3; i++) into[i] += inertia->mass * x[i];
    add_cross(x + 3, inertia->moment, 1.0, into);
    add_cross(inertia->moment, x, 1.0, into + 3);
    add_product(inertia->turning, x + 3, into + 3);
}

/* Write the inertia of the body of joint j about the origin of the world, from its pose there. */
static void place_inertia(const struct tree *t, int j, const double *pose,
                          struct body_inertia *inertia) {
    const double *own = t->inertias + 10 * j, mass = own[0];
    const double local[9] = {own[4], own[5], own[7], own[5], own[6], own[8], own[7], own[8], own[9]};
    double turned[9], centre[3];
    for (int i = 0; i < 3; i++) {
        centre[i] = pose[9 + i];
        for (int l = 0; l < 3; l++) {
            centre[i] += pose[3 * l + i] * own[1 + l]; /* rotations are stored by columns */
            turned[3 * i + l] = 0.0;
            for (int k = 0; k < 3; k++) turned[3 * i + l] += pose[3 * k + i] * local[3 * k + l];
        }
    }
    inertia->mass = mass;
    const double square = dot(centre, centre, 3);
    for (int i = 0; i < 3; i++) {
        inertia->moment[i] = mass * centre[i];
        for (int l = 0; l < 3; l++) {
            double total = (i == l ? mass * square : 0.0) - mass * centre[i] * centre[l];
            for (int k = 0; k < 3; k++) total += turned[3 * i + k] * pose[3 * k + l];
            inertia->turning[3 * i + l] = total;
        }
    }
}

/* Place inertias of bodies and contact points, after place_joints. */
void place_tree(struct tree *t) {
    for (int j = 1; j < t->joints; j++) place_inertia(t, j, t->poses + POSE * j, t->placed + j);
    for (int c = 0; c < t->contacts; c++) {
        const double *pose = t->poses + POSE * t->contact_joints[c], *own = t->points + 3 * c;
        double *point = t->placed_points + 3 * c;
        for (int i = 0; i < 3; i++)
            point[i] = pose[9 + i] + pose[i] * own[0] + pose[3 + i] * own[1] + pose[6 + i] * own[2];
    }
}

/* Write the velocities (joints, 6) of all bodies for generalised velocities (n,). */
static void find_velocities(const struct tree *t, const double *v, double *velocities) {
    memset(velocities, 0, 6 * sizeof(double));
    for (int j = 1, k = 0; j < t->joints; j++) {
        double *own = velocities + 6 * j;
        memcpy(own, velocities + 6 * t->parents[j], 6 * sizeof(double));
        for (; k < t->n && t->owners[k] == j; k++)
            for (int i = 0; i < 6; i++) own[i] += t->columns[6 * k + i] * v[k];
    }
}

/* Write the accelerations (joints, 6) of all bodies, without gravity. */
static void find_accelerations(const struct tree *t, const double *v, const double *a,
                               const double *velocities, double *accelerations) {
    memset(accelerations, 0, 6 * sizeof(double));
    for (int j = 1, k = 0; j < t->joints; j++) {
        double *own = accelerations + 6 * j, moved[6] = {0.0};
        memcpy(own, accelerations + 6 * t->parents[j], 6 * sizeof(double));
        for (; k < t->n && t->owners[k] == j; k++)
            for (int i = 0; i < 6; i++) {
                own[i] += t->columns[6 * k + i] * a[k];
                moved[i] += t->columns[6 * k + i] * v[k];
            }
        add_motion_cross(velocities + 6 * j, moved, own);
    }
}

/* Add what a body contributes to the sums over the bodies behind its joint. */
static void add_body(const struct body_inertia *inertia, const double *velocity,
                     const double *acceleration, const double *gravity, struct behind *sum) {
    double momentum[6] = {0.0}, falling[6], spin_inertia[3] = {0.0};
    const double *v = velocity, *w = velocity + 3, *h = inertia->moment;
    memcpy(falling, acceleration, sizeof falling);
    for (int i = 0; i < 3; i++) falling[i] -= gravity[i];
    add_momentum(inertia, velocity, momentum);
    add_momentum(inertia, falling, sum->force);
    add_force_cross(velocity, momentum, sum->force);
    sum->inertia.mass += inertia->mass;
    for (int i = 0; i < 3; i++) {
        sum->inertia.moment[i] += h[i];
        sum->momentum[i] += momentum[i];
    }
    for (int i = 0; i < 9; i++) sum->inertia.turning[i] += inertia->turning[i];
    /* H = -2 [h] [v] - [I w] - I [w] + [w] I, with I the inertia of turning */
    add_product(inertia->turning, w, spin_inertia);
    add_skew(spin_inertia, -1.0, sum->turn);
    for (int i = 0; i < 3; i++)
        for (int l = 0; l < 3; l++) /* [a] [b] = b a' - (a . b) 1 */
            sum->turn[3 * i + l] -= 2.0 * (v[i] * h[l] - (i == l ? dot(h, v, 3) : 0.0));
    for (int i = 0; i < 3; i++) {
        const double *row = inertia->turning + 3 * i;
        add_cross(row, w, -1.0, sum->turn + 3 * i); /* row of I [w]: row x w */
        double column[3] = {row[0], row[1], row[2]}; /* I is symmetric: column i of [w] I */
        double crossed[3] = {0.0};
        add_cross(w, column, 1.0, crossed);
        for (int l = 0; l < 3; l++) sum->turn[3 * l + i] += crossed[l];
    }
}

/* Add the contact force (3,) at a point of the body to its sums. */
static void add_contact_force(const double *point, const double *force, struct behind *sum) {
    for (int i = 0; i < 3; i++) sum->force[i] -= force[i];
    add_cross(point, force, -1.0, sum->force + 3);
    for (int i = 0; i < 3; i++) sum->pull[i] += force[i];
    for (int i = 0; i < 3; i++) /* -[p] [F] = (p . F) 1 - F p' */
        for (int l = 0; l < 3; l++)
            sum->pull_turn[3 * i + l] += (i == l ? dot(point, force, 3) : 0.0) - force[i] * point[l];
}

static void add_sums(const struct behind *own, struct behind *into) {
    const double *from = (const double *)own;
    double *to = (double *)into;
    for (size_t i = 0; i < sizeof *own / sizeof(double); i++) to[i] += from[i];
}

/* Write I X + (2 w x p, H w) + (t x F, T t) for sums behind a joint: what Phi of D_k tau is. */
static void find_change(const struct behind *sum, const double *a, const double *w,
                        const double *turned, double *change) {
    memset(change, 0, 6 * sizeof(double));
    add_momentum(&sum->inertia, a, change);
    add_cross(w, sum->momentum, 2.0, change);
    add_product(sum->turn, w, change + 3);
    if (!turned) return;
    add_cross(turned, sum->pull, 1.0, change);
    add_product(sum->pull_turn, turned, change + 3);
}

/* Write the contact force (3,) of each contact from forces along all rows. */
static void find_contact_forces(const struct tree *t, const double *forces, double *each) {
    memset(each, 0, 3 * (size_t)t->contacts * sizeof(double));
    for (int r = 0; r < t->rows; r++)
        for (int i = 0; forces[r] != 0.0 && i < 3; i++)
            each[3 * t->row_owners[r] + i] += forces[r] * t->directions[3 * r + i];
}

/* Write derivatives of J a + dJ/dt v and J v by (q, v) for `count` rows of a contact into those of (R, 2 n), which
 * are zero, with the changes of all velocities. */
static void differentiate_contact(const struct tree *t, int contact, const int *own, int count,
                                  double *accelerations, double *rates) {
    const int n = t->n, j = t->contact_joints[contact];
    const double *p = t->placed_points + 3 * contact, *velocity = t->velocities + 6 * j, *w = velocity + 3;
    const double *along = t->accelerations + 6 * j;
    double speed[3], pull[3];
    memcpy(speed, velocity, sizeof speed);
    add_cross(w, p, 1.0, speed);
    memcpy(pull, along, sizeof pull);
    add_cross(along + 3, p, 1.0, pull);
    add_cross(w, speed, 1.0, pull);
    for (int l = t->path_starts[j]; l < t->path_ends[j]; l++) {
        const int k = t->paths[l];
        const double *column = t->columns + 6 * k, *d = t->changes + CHANGES * k;
        double turned[3] = {0.0}, a_q[3], a_v[3], v_q[3], v_v[3];
        add_cross(column + 3, speed, 1.0, turned);
        for (int i = 0; i < 3; i++) {
            v_q[i] = d[i] + turned[i];
            v_v[i] = column[i];
            a_q[i] = d[6 + i];
            a_v[i] = d[12 + i] + 2.0 * turned[i];
        }
        add_cross(d + 3, p, 1.0, v_q);
        add_cross(column + 3, p, 1.0, v_v);
        add_cross(d + 9, p, 1.0, a_q);
        add_cross(d + 3, speed, 2.0, a_q);
        add_cross(column + 3, pull, 1.0, a_q);
        add_cross(d + 15, p, 1.0, a_v);
        for (int i = 0; i < count; i++) {
            const double *direction = t->directions + 3 * own[i];
            double *a = accelerations + 2 * n * own[i], *v = rates + 2 * n * own[i];
            a[k] = dot(direction, a_q, 3);
            a[n + k] = dot(direction, a_v, 3);
            v[k] = dot(direction, v_q, 3);
            v[n + k] = dot(direction, v_v, 3);
        }
    }
}

/* Write -D(M a + h - J' f) by (q, v) into the first 2 n of `width` columns of `equations` (n, width),
 * and derivatives of J a + dJ/dt v and J v of some rows into those of (R, 2 n), after place_tree.
 *
 * For a change of motion and forces, without v, it is -D_q(M a - J' f) in n columns, and D(J) a. */
ALONG_ROWS void differentiate_tree(struct tree *t, const struct tree_motion *motion, const int *rows,
                        int row_count, double *equations, int width, double *accelerations,
                        double *rates) {
    const int n = t->n;
    double *velocities = t->velocities, *along = t->accelerations, *changes = t->changes;
    const double weight = motion->v ? 1.0 : 0.0;
    const double gravity[3] = {weight * t->gravity[0], weight * t->gravity[1], weight * t->gravity[2]};
    const double *v = motion->v ? motion->v : t->still;
    find_velocities(t, v, velocities);
    find_accelerations(t, v, motion->a, velocities, along);
    find_contact_forces(t, motion->forces, t->contact_forces);
    memset(t->sums, 0, (size_t)t->joints * sizeof *t->sums);
    for (int j = 1; j < t->joints; j++)
        add_body(t->placed + j, velocities + 6 * j, along + 6 * j, gravity, t->sums + j);
    for (int c = 0; c < t->contacts; c++)
        add_contact_force(t->placed_points + 3 * c, t->contact_forces + 3 * c,
                          t->sums + t->contact_joints[c]);
    for (int j = t->joints - 1; j > 0; j--) add_sums(t->sums + j, t->sums + t->parents[j]);

    memset(changes, 0, (size_t)n * CHANGES * sizeof(double));
    for (int k = 0; k < n; k++) {
        const double *column = t->columns + 6 * k;
        const int j = t->owners[k], parent = t->parents[j];
        double *d = changes + CHANGES * k; /* dV, dA and dA by the velocity, then two factors of rows below */
        double *by_q = d + 18, *by_v = d + 30, both[6];
        add_motion_cross(velocities + 6 * parent, column, d);
        add_motion_cross(along + 6 * parent, column, d + 6);
        add_motion_cross(velocities + 6 * parent, d, d + 6);
        for (int i = 0; i < 6; i++) both[i] = velocities[6 * j + i] + velocities[6 * parent + i];
        add_motion_cross(both, column, d + 12);
        memcpy(by_q, d + 6, 6 * sizeof(double)); /* less what gravity turns by */
        add_cross(gravity, column + 3, -1.0, by_q);
        memcpy(by_v, d + 12, 6 * sizeof(double));
        for (int i = 0; i < 3; i++) {
            by_q[6 + i] = d[3 + i];
            by_q[9 + i] = by_v[6 + i] = column[3 + i];
        }
    }
    const int moves = weight != 0.0;
    for (int m = 0; m < n; m++)
        memset(equations + m * width, 0, (moves ? 2 : 1) * (size_t)n * sizeof(double));
    for (int k = 0; k < n; k++) {
        const int j = t->owners[k], parent = t->parents[j];
        const double *column = t->columns + 6 * k, *d = changes + CHANGES * k;
        const struct behind *sum = t->sums + j;
        double by_q[6], by_v[6] = {0.0};
        find_change(sum, d + 18, d + 3, column + 3, by_q);
        if (moves) find_change(sum, d + 12, column + 3, NULL, by_v);
        add_force_cross(column, sum->force, by_q);
        two both[6];
        for (int i = 0; i < 6; i++) both[i] = (two){by_q[i], by_v[i]};
        for (int l = t->path_ends[parent]; l-- > t->path_starts[parent];) { /* behind m */
            const int m = t->paths[l];
            two sum_of_both = {0.0};
            for (int i = 0; i < 6; i++) {
                const double entry = t->columns[6 * m + i];
                sum_of_both -= (two){entry, entry} * both[i];
            }
            equations[m * width + k] = sum_of_both[0];
            if (moves) equations[m * width + n + k] = sum_of_both[1];
        }
    }
    for (int m = 0; m < n; m++) {
        const double *column = t->columns + 6 * m;
        const struct behind *sum = t->sums + t->owners[m];
        double factors[12] = {0.0}; /* of dA, of angular dV, and of the turn */
        add_momentum(&sum->inertia, column, factors);
        add_cross(sum->momentum, column, 2.0, factors + 6); /* J . (w x p) = w . (p x J) */
        add_transposed(sum->turn, column + 3, factors + 6);
        add_cross(sum->pull, column, 1.0, factors + 9);
        add_transposed(sum->pull_turn, column + 3, factors + 9);
        double *row = equations + m * width;
        for (int l = t->path_starts[t->owners[m]]; l < t->path_ends[t->owners[m]]; l++) {
            const int k = t->paths[l];
            row[k] = -multiply(factors, changes + CHANGES * k + 18, 12);
            if (moves) row[n + k] = -multiply(factors, changes + CHANGES * k + 30, 12);
        }
        if (moves) {
            row[m] -= t->springs[m];
            row[n + m] -= t->dampers[m];
        }
    }
    for (int i = 0; i < row_count; i++) {
        memset(accelerations + 2 * n * rows[i], 0, 2 * (size_t)n * sizeof(double));
        memset(rates + 2 * n * rows[i], 0, 2 * (size_t)n * sizeof(double));
    }
    for (int contact = 0; contact < t->contacts; contact++) {
        int own[3], count = 0; /* its rows among those asked for */
        for (int i = 0; i < row_count && count < 3; i++)
            if (t->row_owners[rows[i]] == contact) own[count++] = rows[i];
        if (count) differentiate_contact(t, contact, own, count, accelerations, rates);
    }
}

/* Write D_q(J' f) at fixed forces (rows,) of closed contacts, after place_tree: rows and columns of the velocities
 * that move them, (width, width) from `first_moving` on. Others are zero. */
void differentiate_pull(struct tree *t, const double *forces, double *pulled) {
    const int first = t->first_moving, width = t->moving_width;
    memset(pulled, 0, (size_t)width * width * sizeof(double));
    find_contact_forces(t, forces, t->contact_forces);
    memset(t->sums, 0, (size_t)t->joints * sizeof *t->sums);
    for (int c = 0; c < t->contacts; c++)
        add_contact_force(t->placed_points + 3 * c, t->contact_forces + 3 * c,
                          t->sums + t->contact_joints[c]);
    for (int j = t->joints - 1; j > 0; j--) add_sums(t->sums + j, t->sums + t->parents[j]);
    for (int k = first; k < first + width; k++) {
        const int j = t->owners[k], parent = t->parents[j];
        const double *column = t->columns + 6 * k;
        const struct behind *sum = t->sums + j;
        double by_q[6] = {0.0}, by_turn[3] = {0.0};
        add_cross(column + 3, sum->pull, 1.0, by_q);
        add_product(sum->pull_turn, column + 3, by_q + 3);
        add_force_cross(column, sum->force, by_q); /* of minus the contact forces */
        for (int l = t->path_starts[parent]; l < t->path_ends[parent]; l++) {
            const int m = t->paths[l];
            if (m >= first) pulled[(m - first) * width + k - first] = -dot(t->columns + 6 * m, by_q, 6);
        }
        add_cross(sum->pull, column, 1.0, by_turn);
        add_transposed(sum->pull_turn, column + 3, by_turn);
        for (int l = t->path_starts[j]; l < t->path_ends[j]; l++) {
            const int m = t->paths[l];
            if (m >= first) pulled[(k - first) * width + m - first] = -dot(by_turn, t->columns + 6 * m + 3, 3);
        }
    }
}

/* Add y' D_q(M) z - D_q(f' J y) - D_q(g' J z) times `factor` to a gradient (n,), after place_tree.
 *
 * f and g are forces along all rows. With F of the momentum of all bodies behind a joint, less the contact forces
 * there, and the sum T of what these turn by, T . w = F . (V x w) with V the velocity of a contact point,
 *
 *     (Z_p x J_k) . F(y, g) + (Y_p x J_k) . F(z, f) - w_k . (T(z, g) + T(y, f)). */
void add_tree_gradient(struct tree *t, const double *z, const double *f, const double *y,
                       const double *g, double factor, double *gradient) {
    const size_t size = 6 * (size_t)t->joints;
    double *motions[2] = {t->velocities, t->accelerations}, *momenta[2] = {t->momenta, t->momenta + size};
    double *turns = t->momenta + 2 * size; /* (joints, 3) */
    const double *values[2] = {z, y}, *forces[2] = {g, f};
    memset(t->momenta, 0, (2 * size + 3 * (size_t)t->joints) * sizeof(double));
    for (int s = 0; s < 2; s++) {
        find_velocities(t, values[s], motions[s]);
        for (int j = 1; j < t->joints; j++)
            add_momentum(t->placed + j, motions[s] + 6 * j, momenta[s] + 6 * j);
        find_contact_forces(t, forces[s], t->contact_forces);
        for (int c = 0; c < t->contacts; c++) {
            const double *force = t->contact_forces + 3 * c, *p = t->placed_points + 3 * c;
            if (force[0] == 0.0 && force[1] == 0.0 && force[2] == 0.0) continue;
            const int j = t->contact_joints[c];
            double *own = momenta[1 - s] + 6 * j, speed[3];
            for (int i = 0; i < 3; i++) own[i] -= force[i];
            add_cross(p, force, -1.0, own + 3);
            memcpy(speed, motions[s] + 6 * j, sizeof speed);
            add_cross(motions[s] + 6 * j + 3, p, 1.0, speed);
            add_cross(speed, force, 1.0, turns + 3 * j);
        }
    }
    for (int j = t->joints - 1; j > 0; j--) {
        for (int s = 0; s < 2; s++)
            for (int i = 0; i < 6; i++) momenta[s][6 * t->parents[j] + i] += momenta[s][6 * j + i];
        for (int i = 0; i < 3; i++) turns[3 * t->parents[j] + i] += turns[3 * j + i];
    }
    for (int k = 0; k < t->n; k++) {
        const int j = t->owners[k], parent = t->parents[j];
        double first[6] = {0.0}, second[6] = {0.0};
        add_motion_cross(motions[0] + 6 * parent, t->columns + 6 * k, first);
        add_motion_cross(motions[1] + 6 * parent, t->columns + 6 * k, second);
        gradient[k] += factor * (dot(first, momenta[1] + 6 * j, 6) + dot(second, momenta[0] + 6 * j, 6) -
                                 dot(turns + 3 * j, t->columns + 6 * k + 3, 3));
    }
}

/* Write how row `row` of a closed contact turns with its body, which moves by z (n,), by q (width,) from
 * `first_moving` on: (d x w)' J_p of FlatTerms.load_turns, with the velocities of all bodies from
 * find_tree_velocities. */
void turn_tree_row(const struct tree *t, int row, double *turn) {
    const int contact = t->row_owners[row], j = t->contact_joints[contact];
    const double *p = t->placed_points + 3 * contact;
    double wrench[6] = {0.0};
    add_cross(t->directions + 3 * row, t->velocities + 6 * j + 3, 1.0, wrench);
    add_cross(p, wrench, 1.0, wrench + 3);
    memset(turn, 0, (size_t)t->moving_width * sizeof(double));
    for (int l = t->path_starts[j]; l < t->path_ends[j]; l++)
        turn[t->paths[l] - t->first_moving] = dot(wrench, t->columns + 6 * t->paths[l], 6);
}

/* Keep the velocities of all bodies for z (n,), see `turn_tree_row`. */
void find_tree_velocities(struct tree *t, const double *z) { find_velocities(t, z, t->velocities); }
