/* The compiled kernel of a contact mode: its data, and what each file of it computes.
 *
 * It evaluates the equations of docs/mathematics.md, "Robots with contact",
 *
 *     M a + h = S u + J' f,   f = E m,   C a = target,
 *
 * as the Python mode does (hybridctl/mechanics/modes), which is the reference: where an equation has
 * a case that is not here, the kernel asks for the Python mode. It is independent of robot and mode:
 * the terms M, S u - h, J, ... come from a function, and what the mode means from lists of indices.
 *
 * Sizes: nq coordinates and nv velocities, nx = nq + nv; nu inputs; c contacts with R rows in all; of
 * the k closed contacts r rows, of which m are constrained; n guards. Matrices are stored by rows.
 * Units: metres, radians, seconds, newtons, kilograms.
 *
 * Memory: a kernel owns its scratch memory. Between two calls it holds the point evaluated last, which
 * `differentiate_point` uses if it is the same to the bit (`known`). The caller holds Python's lock, so that
 * threads may share a kernel. Nothing is shared between kernels.
 */
#ifndef HYBRIDCTL_CONTACT_KERNEL_H
#define HYBRIDCTL_CONTACT_KERNEL_H

/* Of a function whose inner loops go along rows: it is compiled for wider registers, too, which are taken
 * where the processor has them, as HAS_WIDE_REGISTERS finds. Results are the same to the bit: rows are not summed
 * (test_wider_registers_change_no_bit, which compiles with NARROW_REGISTERS defined). */
#if !defined(NARROW_REGISTERS) && defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    defined(__linux__)
#include <features.h>
#ifdef __GLIBC__ /* which chooses when the library is loaded */
#define ALONG_ROWS __attribute__((target_clones("avx2", "default")))
#define HAS_WIDE_REGISTERS __builtin_cpu_supports("avx2")
#endif
#endif
#ifndef ALONG_ROWS
#define ALONG_ROWS
#define HAS_WIDE_REGISTERS 0
#endif

/* Number of the calls in module.c, and of what they mean: that of kernel/extension.py, which does not
 * use an extension with another one. It changes with them. */
enum { KERNEL_INTERFACE = 6 };

/* What became of an evaluation. */
enum status {
    DONE = 0,
    ASK_PYTHON = 1, /* a case that only the Python mode decides */
    FAILED = 2      /* Python has raised an error */
};

/* What happens where a guard falls through zero, as in hybridctl/mechanics/modes/guards.py. */
enum guard_kind { CLOSES = 0, OPENS = 1, SLIPS = 2, STICKS = 3, JAMS = 4, GUARD_KINDS = 5 };

/* The terms of the robot and all its contacts at one point, where a function writes them. */
struct terms {
    void (*call)(void *); /* reads x and u, writes all others */
    void *data;           /* its argument */
    double *x;            /* coordinates (q, v), (nx,), normalised by the function */
    double *u;            /* input (nu,) */
    double *q_rate;       /* T(q) v (nq,) */
    double *mass;         /* M (nv, nv) */
    double *drive;        /* S u - h (nv,) */
    double *jacobian;     /* J (R, nv) */
    double *drift;        /* dJ/dt v (R,) */
    double *gaps;         /* h (c,) */
    double *rates;        /* J v (R,) */
};

/* A closed contact. */
struct closed_contact {
    int contact;     /* its index among all */
    int first, last; /* its tangents: rows first <= i < last of the r rows */
    int slides;      /* whether it slides */
    double sign;     /* sign of its velocity along one tangent; 0 in a surface */
    double friction; /* kinetic coefficient, of one that slides */
    double static_friction;
    int pair;        /* number of the two bodies that it is between */
    double load;     /* constant normal force of dry friction of a joint, whose normal row is zero; else 0 */
};

struct guard {
    int kind;               /* one of enum guard_kind */
    int place;              /* contact among all for CLOSES, else among the closed ones */
    double sign;            /* sign of the direction that it looks in; 0 for none */
    double static_friction; /* of its contact */
};

/* Scratch memory of redundant contacts, whose G of m rows has some rank (redundant.c). */
struct sharing {
    double *q, *b, *z, *weighted; /* rows of m, one for each of at most m vectors */
    double *s, *root;             /* (rank, rank) by columns */
    const double *range;          /* of G, rows of m: those of q or b, such that range' q = 1 */
    double *half;                 /* roots of the weights (m,) */
    double *right, *y, *copy;     /* (m,) */
    double *units, *plane;        /* (k,) and (m, 2) */
    int *places;                  /* (k,) */
    int is_weighted;              /* whether weights are others than one */
    int rank;                     /* 0 where contacts are not redundant */
    double contradiction;         /* residual of G m = c, relative to c */
    int is_at_border;             /* whether forces were moved to the border of a cone */
    double near;                  /* force, relative to the largest normal one, that counts as zero */
};

/* Inertia of a body, or of several, about the origin of the world. */
struct body_inertia {
    double mass;       /* kg */
    double moment[3];  /* mass times centre, kg m */
    double turning[9]; /* of turning, (3, 3), kg m^2 */
};

/* Sums over the bodies behind a joint, see tree.c; of doubles alone. */
struct behind {
    struct body_inertia inertia;
    double momentum[3];  /* p, linear */
    double turn[9];      /* H (3, 3) */
    double force[6];     /* that accelerates them, less that of contacts */
    double pull[3];      /* contact force F */
    double pull_turn[9]; /* T (3, 3): moments of w x F are T w */
};

enum { CHANGES = 42 }; /* numbers that differentiate_tree keeps of each velocity */
enum { POSE = 12 };    /* of a pose: a rotation by columns, and a position */

/* How a joint moves, with its coordinates: as JOINT_KINDS of hybridctl/mechanics/multibody/sweeps.py. */
enum joint_kind {
    TURNS = 0,           /* about an axis: angle */
    TURNS_ON_CIRCLE = 1, /* about an axis: cosine, sine */
    SHIFTS = 2,          /* along an axis: length */
    TURNS_FREELY = 3,    /* quaternion x, y, z, w */
    MOVES_FREELY = 4,    /* position, quaternion */
    MOVES_IN_PLANE = 5,  /* x, y, cosine, sine */
    SHIFTS_FREELY = 6,   /* position */
    JOINT_KINDS = 7
};

/* An entry of the transport T(v) of perturbations of coordinates: `factor` times a velocity. */
struct turn_entry {
    int row, column, velocity;
    double factor;
};

/* The bodies of a robot whose contacts are points on planes of the world (tree.c). */
struct tree {
    int joints, n, contacts, rows;        /* joints with the world, which is the first */
    int *parents;                         /* (joints,), each before its children */
    int *owners;                          /* joint of each velocity (n,), in order */
    int *contact_joints, *row_owners;     /* (contacts,) and (rows,) */
    int *path_starts, *path_ends, *paths; /* velocities that move the body of each joint */
    int *kinds, *starts; /* enum joint_kind of each joint, and its first coordinate (joints,) */
    int turn_count;
    struct turn_entry *turns; /* (turn_count,) */
    double *placements;  /* of joints in their parents' (joints, 12) */
    double *axes;        /* spatial velocity of its body by each velocity, in the joint's frame (n, 6) */
    double gravity[3];                    /* m/s^2 */
    double *inertias;    /* mass, centre, and inertia about it (xx xy yy xz yz zz), (joints, 10) */
    double *points;      /* of contacts in their joints' frames (contacts, 3) */
    double *directions;  /* of rows in the world (rows, 3) */
    double *springs, *dampers; /* (n,) */
    double *actuation;   /* S (n, nu) */
    int load_rank;       /* rank of the loads of the closed contacts on bodies; -1 if unknown */
    int first_moving, moving_width; /* velocities first <= k < first + width, with all that move closed contacts */

    /* Scratch memory. */
    double *poses;   /* of all joints in the world (joints, 12), of the last `place_joints` */
    double *columns; /* J_k (n, 6), likewise */
    struct body_inertia *placed;
    struct behind *sums;
    double *placed_points, *contact_forces; /* (contacts, 3) */
    double *velocities, *accelerations;     /* (joints, 6) */
    double *changes;                        /* (n, CHANGES) */
    double *still;                          /* zeros (n,) */
    double *momenta;                        /* (2, joints, 6), then (joints, 3) */
    void *memory;
};

struct tree_motion {
    const double *v;       /* (n,); NULL for a change of motion: without weight, springs and dampers */
    const double *a;       /* (n,) */
    const double *forces;  /* along all rows (rows,) */
};

struct kernel {
    struct terms terms;
    int nq, nv, nu, nx, contacts, all_rows;
    int closed_count, row_count, constrained_count, guard_count;
    struct closed_contact *closed; /* (k,) */
    struct guard *guards;          /* (n,) */
    int *rows;                     /* (r,) rows of closed contacts among all: normals, then tangents */
    int *constrained;              /* (m,) constrained rows among the r: normals, sticking tangents */
    int sliding_count;             /* closed contacts that slide */
    int pressed_count;             /* closed contacts with a load */
    int is_overloaded;             /* whether more rows are constrained than motions are there: contacts are
                                      redundant wherever they are */
    int can_jam;                   /* whether there is a guard JAMS */
    double stabilization;          /* s, 1/s */

    /* Scratch memory of one evaluation. */
    int width;         /* of the rows of `moved`, a multiple of four */
    double *moved;     /* Y = U^-1 J' (nv, width), with zeros behind the r columns */
    double *driven;    /* U^-1 (S u - h) (nv,) */
    int *moving;       /* rows of Y that are not zero, the last one first (nv,) */
    int moving_count;
    double *delassus;  /* J M^-1 J' (r, r) */
    double *free;      /* J M^-1 (S u - h) (r,) */
    double *target;    /* accelerations J a that keep contacts closed and sticking (r,) */
    double *slip;      /* rates J v of the rows of closed contacts (r,) */
    int held;          /* closed contact that is to slide but is held at a standstill; -1 for none */
    int slow;          /* closed contact with near-zero velocity; -1 for none */
    int starting;      /* closed contact that slides the way it accelerates; -1 for none */
    int *active;       /* rows of the multipliers at the point: constrained, and those of `held` */
    int active_count;
    double *forces;    /* f (r,) */
    double *direction; /* friction of each closed contact per normal force, -mu s (k, 2) */
    double *unit;      /* sliding directions s (k, 2) */
    double *speed;     /* sliding speeds (k,) */
    double *matrix;    /* G (m, m), then its factors; with room for (r, r) */
    double *even;      /* G without sliding friction (m, m), then its factors; likewise */
    double *solution;  /* m (m,), with room for (r,) */
    double *change;    /* of the forces with the angle of a direction (r,) */
    double *column;    /* (nv,) */
    struct sharing shared;
    struct tree *tree; /* NULL where terms are differentiated in Python */

    /* The point that the scratch memory is of, as it was asked for; compared to the bit. */
    enum { NO_POINT = 0, ACCELERATION = 1, FORCES = 2 } known;
    double *known_x, *known_u;
};

/* The limits of steps that hybrid.model.Pace names, for contacts that slide in a surface, s. */
struct sliding_times {
    double stop; /* until the first of them stops */
    double turn; /* in which friction turns a sliding velocity */
};

/* Whether closed contact j slides at the point: it is to slide and is not held. */
static inline int slides_now(const struct kernel *kernel, int j) {
    return kernel->closed[j].slides && j != kernel->held;
}

static inline int count_sliding(const struct kernel *kernel) {
    return kernel->sliding_count - (kernel->held >= 0);
}

/* Two numbers at once, at any address of doubles, as registers of all processors have them. */
typedef double two __attribute__((vector_size(16), aligned(8), may_alias));

/* Add `factor` times a row to another one. */
static inline void add_row(double *restrict into, double factor, const double *restrict from, int count) {
    for (int c = 0; c < count; c++) into[c] += factor * from[c];
}

/* Return a . b. */
static inline double multiply(const double *a, const double *b, int n) {
    two first = {0.0}, second = {0.0}; /* sums that do not wait for each other */
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        first += *(const two *)(a + i) * *(const two *)(b + i);
        second += *(const two *)(a + i + 2) * *(const two *)(b + i + 2);
    }
    for (; i < n; i++) first[0] += a[i] * b[i];
    return (first[0] + first[1]) + (second[0] + second[1]);
}

/* dense.c: small dense matrices */
void add_rows(double *restrict into, int width, double scale, const double *factors, int step, int count,
              const double *from, int stride);
void add_listed_rows(double *restrict into, int width, double scale, const double *factors, int step,
                     const int *list, int count, const double *from, int stride);
int factorise_mass(double *mass, int n);
void solve_mass_root(const double *root, int n, double *columns, int width);
int solve_sparse_mass_root(const double *root, int n, double *columns, int width, int *list);
void solve_mass_root_column(const double *root, int n, double *column);
void solve_mass_root_transposed(const double *root, int n, int count, double *columns, int width);
int factorise_symmetric(double *matrix, int n, double least_ratio, double *determinant);
void solve_symmetric(const double *root, int n, double *columns, int width);
int factorise_and_solve(double *matrix, int n, double least_ratio, double *columns, int width,
                        double *determinant);

/* equations.c: field and guards at a point */
int evaluate_point(struct kernel *kernel, const double *x, const double *u, double *rate,
                   double *guards, struct sliding_times *times);
int solve_multipliers(struct kernel *kernel, double *columns, int width, double *ratio);
int solve_any_forces(struct kernel *kernel, int needs_forces, double *ratio);
void scatter_solution(const struct kernel *kernel, double *forces);
void compute_acceleration(const struct kernel *kernel, double *acceleration);
void compute_slip_acceleration(const struct kernel *kernel, int contact, double *acceleration);
int has_finite(const double *values, int count);

/* Distance from the friction limit, relative to it, below which it is not certain that a contact with
 * near-zero velocity holds: modes/standstill.py. */
static const double LIMIT_MARGIN = 1e-6;

/* standstill.c: a sliding contact with near-zero velocity, which stops, starts or sticks */
int solve_slow_contact(struct kernel *kernel, int slow, double *ratio);
double compute_magnitude(const struct kernel *kernel, double *scratch);
int differentiate_angle(struct kernel *kernel, int contact, double *forces, double *slope);

/* redundant.c: forces of redundant contacts inside their cones */
int share_forces(struct kernel *kernel, int needs_forces, double *ratio);
double factorise_shared(struct kernel *kernel, int with_friction, int *rank);

/* singular.c: their factorisations */
int factorise_columns(double *g, int m, double *q, double *b, double *sizes);
int factorise_semidefinite(const double *g, int m, double *b, double *left);
double factorise_weighted(const double *b, const double *half, int m, int rank, double *z, double *s);
void invert_factor(const double *z, const double *s, int m, int rank, double *x);
void find_least(const double *z, const double *s, const double *half, int m, int rank, double *y,
                double *result);

/* plane.c: forces inside their cones where two directions are free */
enum { NO_FORCES = 3 }; /* there are none inside the cones: a status beside DONE and ASK_PYTHON */

struct free_plane {
    const double *n;     /* the directions N (m, 2), orthonormal in the metric of the weights */
    const double *units; /* of the forces of each closed contact (k,) */
    const int *places;   /* of the friction of each closed contact among the multipliers (k,) */
};

double find_friction_limit(const struct kernel *kernel, int contact);
int find_point_in_plane(const struct kernel *kernel, const struct free_plane *plane, double size,
                        double *z);

/* shared_derivatives.c: their derivatives */
struct shared_changes {
    const double *rates;   /* derivatives of J v by (q, v) (R, 2 n) */
    const double *motions; /* Y Q (nv, rank) */
    const double *coordinates; /* Q' c' for c' at fixed multipliers (rank, z) */
    double *multipliers;       /* out: (m, z) */
    int columns;               /* z */
};

int differentiate_shared(struct kernel *kernel, const struct shared_changes *changes, double *scratch);
int shared_scratch_size(const struct kernel *kernel);

/* poses.c: poses of bodies */
void place_joints(struct tree *tree, const double *q);

/* tree.c: derivatives of the terms of points on planes */
void place_tree(struct tree *tree);
void differentiate_tree(struct tree *tree, const struct tree_motion *motion, const int *rows,
                        int row_count, double *equations, int width, double *accelerations,
                        double *rates);
void add_tree_gradient(struct tree *tree, const double *z, const double *f, const double *y,
                       const double *g, double factor, double *gradient);
void differentiate_pull(struct tree *tree, const double *forces, double *pulled);
void find_tree_velocities(struct tree *tree, const double *z);
void turn_tree_row(const struct tree *tree, int row, double *turn);

/* derivatives.c: derivatives of field and guards at a point, from those of the terms */
struct point_derivatives {
    int columns;           /* z: 2 nv + nu, or 2 nv without those by u */
    double *accelerations; /* of J a + dJ/dt v at fixed a, by (q, v) (R, 2 nv) */
    double *rates;         /* of J v by (q, v) (R, 2 nv) */
    double *field;         /* in: -D(M a + h - J' f) and S, by (q, v, u); out: D a (nv, z) */
                           /* With a tree these three are computed here. */
    double *guards;        /* out: D g (n, z); NULL if they are not asked for */
    int has_guards;        /* out: whether they are covered */
};

double turn_across(const struct kernel *kernel, int contact, const double *rate);
void add_direction_change(const struct kernel *kernel, int contact, const double *rates, double factor,
                          double *gradient);
void add_turning(const struct kernel *kernel, const double *forces, const double *rates, double *field,
                 int columns);
int differentiate_point(struct kernel *kernel, const double *x, const double *u, double *scratch,
                        struct point_derivatives *derivatives);
int derivative_scratch_size(const struct kernel *kernel);

/* jamming.c: derivatives of the response ratio */
int differentiate_ratio(struct kernel *kernel, const struct point_derivatives *derivatives, double *scratch,
                        double *change);
int jamming_scratch_size(const struct kernel *kernel);

/* Calls the Python mode at a point that the kernel does not cover; DONE or FAILED. */
typedef int (*python_mode)(void *context, const double *x, const double *u, double *rate,
                           double *guards);

/* A kernel with the Python mode behind it, which together cover every point. */
struct field {
    struct kernel *kernel;
    python_mode in_python;
    void *context;
    const double *u; /* input, held */
};

/* Evaluate rate (nx,) and guards (n,), either of which may be NULL: DONE or FAILED. */
int evaluate_field(const struct field *field, const double *x, double *rate, double *guards);

/* explicit_step.c: a whole step of DOP853 */
enum { STAGES = 12, ALL_STAGES = 16, NODES = 8 };

/* Coefficients of DOP853, from hybridctl/hybrid/tableau.py and series.py, one after the other. */
struct tableau {
    double rows[ALL_STAGES - 1][ALL_STAGES]; /* row i - 1: weights a_ij of stage i */
    double errors[2][STAGES + 1];            /* of the error estimates of order 5 and 3 */
    double dense[NODES][ALL_STAGES];         /* of the increments at the nodes */
    double to_series[NODES][NODES];          /* values at the nodes to Chebyshev coefficients */
};

struct explicit_step {
    double h, rtol, atol;   /* length, s; tolerances */
    const double *x;        /* start (nx,) */
    const double *rate;     /* rate there (nx,), NULL if unknown */
    const double *guards_at_start; /* guards there (n,), NULL if unknown */
    double *states;         /* out: states at the nodes (8, nx) */
    double *guards;         /* out: guards at the nodes (8, n) */
    double *bounds;         /* out: lower bounds of the guards (n,) */
    double *end_rate;       /* out: rate at the end (nx,) */
    double error;           /* out: in units of the tolerance */
    double decay;           /* out: time constant of the fastest decay seen, s */
};

int take_explicit_step(const struct field *field, const struct tableau *tableau, double *scratch,
                       struct explicit_step *step);
int explicit_scratch_size(int nx);

/* variational_step.c: a step of DOP853 with its transition matrix, for kernels with a tree */
struct variational_step {
    double h, rtol, atol; /* length, s; tolerances, of the entries of the matrix, too */
    double longest;       /* limit of the length at all points, s */
    double stop_part;     /* limit of the length, relative to the time until a sliding contact stops */
    const double *x;      /* start (nx,) */
    double *state;        /* out: end (nx,), of any norm */
    double *matrix;       /* out: transition matrix (2 nv, 2 nv) in tangent coordinates */
    double error;         /* out: the larger one of state and matrix, in units of the tolerance */
    int is_too_long;      /* out: whether the length exceeds the limits; then state, matrix and error say nothing */
};

int take_variational_step(struct kernel *kernel, const double *u, const struct tableau *tableau, double *scratch,
                          struct variational_step *step);
int variational_scratch_size(const struct kernel *kernel);

#endif
