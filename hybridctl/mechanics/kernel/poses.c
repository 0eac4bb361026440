/* Poses of all bodies of a robot, and the columns of its velocities.
 *
 * The axes of a joint are fixed in the body that it moves. Its pose in that of its parent is its placement
 * there, then its own motion: a shift, and a turn. Orientations need not have norm 1.
 */
#include <math.h>
#include <string.h>

#include "contact_kernel.h"

/* Write the rotation about a unit axis, by columns. */
static void turn_about(const double *axis, double cosine, double sine, double *turn) {
    const double across[3] = {sine * axis[0], sine * axis[1], sine * axis[2]};
    for (int l = 0; l < 3; l++)
        for (int i = 0; i < 3; i++) turn[3 * l + i] = (1.0 - cosine) * axis[i] * axis[l] + (i == l ? cosine : 0.0);
    turn[1] += across[2];
    turn[2] -= across[1];
    turn[3] -= across[2];
    turn[5] += across[0];
    turn[6] += across[1];
    turn[7] -= across[0];
}

/* The same for a cosine and a sine that are scaled to norm 1. */
static void turn_about_scaled(const double *axis, const double *circle, double *turn) {
    const double norm = sqrt(circle[0] * circle[0] + circle[1] * circle[1]);
    turn_about(axis, circle[0] / norm, circle[1] / norm, turn);
}

/* Write the rotation of a quaternion x, y, z, w, by columns. */
static void turn_by_quaternion(const double *q, double *turn) {
    const double *v = q, w = q[3], scale = 2.0 / (v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + w * w);
    for (int l = 0; l < 3; l++) {
        const int m = (l + 1) % 3, n = (l + 2) % 3;
        turn[3 * l + l] = 1.0 - scale * (v[m] * v[m] + v[n] * v[n]);
        turn[3 * l + m] = scale * (v[l] * v[m] + w * v[n]);
        turn[3 * l + n] = scale * (v[l] * v[n] - w * v[m]);
    }
}

/* Write the motion (12,) of joint j, of which `axes` (velocities, 6) are those of its velocities in its body. */
static void move_joint(int kind, const double *axes, const double *q, double *own) {
    memset(own, 0, POSE * sizeof(double));
    own[0] = own[4] = own[8] = 1.0;
    switch (kind) {
    case TURNS: turn_about(axes + 3, cos(q[0]), sin(q[0]), own); break;
    case TURNS_ON_CIRCLE: turn_about_scaled(axes + 3, q, own); break;
    case SHIFTS:
        for (int i = 0; i < 3; i++) own[9 + i] = axes[i] * q[0];
        break;
    case TURNS_FREELY: turn_by_quaternion(q, own); break;
    case MOVES_FREELY:
        turn_by_quaternion(q + 3, own);
        memcpy(own + 9, q, 3 * sizeof(double));
        break;
    case MOVES_IN_PLANE:
        turn_about_scaled(axes + 15, q + 2, own);
        memcpy(own + 9, q, 2 * sizeof(double));
        break;
    default: memcpy(own + 9, q, 3 * sizeof(double)); /* SHIFTS_FREELY */
    }
}

/* Write the pose (12,) that is `second` in `first`. */
static void chain_poses(const double *first, const double *second, double *pose) {
    for (int l = 0; l < 4; l++)
        for (int i = 0; i < 3; i++) {
            pose[3 * l + i] = l == 3 ? first[9 + i] : 0.0;
            for (int k = 0; k < 3; k++) pose[3 * l + i] += first[3 * k + i] * second[3 * l + k];
        }
}

/* Compute poses of all joints, and columns of all velocities, at coordinates q (nq,). */
void place_joints(struct tree *t, const double *q) {
    double own[POSE], fixed[POSE];
    for (int j = 1, k = 0; j < t->joints; j++) {
        double *pose = t->poses + POSE * j;
        move_joint(t->kinds[j], t->axes + 6 * k, q + t->starts[j], own);
        chain_poses(t->poses + POSE * t->parents[j], t->placements + POSE * j, fixed);
        chain_poses(fixed, own, pose);
        for (; k < t->n && t->owners[k] == j; k++) {
            double *column = t->columns + 6 * k;
            const double *axis = t->axes + 6 * k, *p = pose + 9;
            for (int i = 0; i < 3; i++) {
                column[i] = column[3 + i] = 0.0;
                for (int l = 0; l < 3; l++) {
                    column[i] += pose[3 * l + i] * axis[l];
                    column[3 + i] += pose[3 * l + i] * axis[3 + l];
                }
            }
            const double *w = column + 3;
            column[0] += p[1] * w[2] - p[2] * w[1];
            column[1] += p[2] * w[0] - p[0] * w[2];
            column[2] += p[0] * w[1] - p[1] * w[0];
        }
    }
}
