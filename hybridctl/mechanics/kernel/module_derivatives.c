/* Calls of the Python type for derivatives, and what they need to know of a robot's bodies. */
#include "module.h"

#include <string.h>

void free_tree(struct tree *tree) {
    if (!tree) return;
    PyMem_Free(tree->parents);
    PyMem_Free(tree->owners);
    PyMem_Free(tree->contact_joints);
    PyMem_Free(tree->row_owners);
    PyMem_Free(tree->path_starts);
    PyMem_Free(tree->kinds);
    PyMem_Free(tree->starts);
    PyMem_Free(tree->turns);
    PyMem_Free(tree->memory);
    PyMem_Free(tree);
}

/* List the velocities that move the body of each joint, and make the scratch memory; 0, or -1. */
static int make_tree_memory(struct tree *t, int nu) {
    const size_t joints = t->joints, n = t->n, c = t->contacts, rows = t->rows;
    double **places[] = {&t->inertias, &t->points, &t->directions, &t->springs, &t->dampers,
                         &t->actuation, &t->placements, &t->axes, &t->placed_points, &t->contact_forces,
                         &t->velocities, &t->accelerations, &t->changes, &t->momenta, &t->still,
                         &t->poses, &t->columns};
    const size_t body = sizeof *t->placed / sizeof(double), sums = sizeof *t->sums / sizeof(double);
    const size_t sizes[] = {10 * joints, 3 * c, 3 * rows, n, n, n * nu, POSE * joints, 6 * n, 3 * c, 3 * c,
                            6 * joints, 6 * joints, CHANGES * n, 15 * joints, n, POSE * joints, 6 * n};
    const int count = sizeof sizes / sizeof *sizes;
    size_t total = (body + sums) * joints, used = 0;
    for (int i = 0; i < count; i++) total += sizes[i];
    double *memory = t->memory = PyMem_Calloc(total + 1, sizeof(double));
    t->path_starts = PyMem_Calloc(joints * (2 + n), sizeof(int));
    if (!memory || !t->path_starts) return -1;
    for (int i = 0; i < count; used += sizes[i++]) *places[i] = memory + used;
    t->placed = (struct body_inertia *)(memory + used);
    t->sums = (struct behind *)(memory + used + body * joints);
    t->poses[0] = t->poses[4] = t->poses[8] = 1.0; /* of the world */
    t->path_ends = t->path_starts + joints;
    t->paths = t->path_ends + joints;
    for (int j = 1, k = 0, end = 0; j < t->joints; j++) {
        const int parent = t->parents[j];
        t->path_starts[j] = end;
        for (int l = t->path_starts[parent]; l < t->path_ends[parent]; l++) t->paths[end++] = t->paths[l];
        for (; k < t->n && t->owners[k] == j; k++) t->paths[end++] = k;
        t->path_ends[j] = end;
    }
    return 0;
}

/* Find the velocities that move closed contacts, and more to fill registers where there are more. */
static void find_moving(struct tree *t, const struct kernel *p) {
    int first = t->n, last = 0;
    for (int j = 0; j < p->closed_count; j++) {
        const int joint = t->contact_joints[p->closed[j].contact];
        const int start = t->path_starts[joint], end = t->path_ends[joint]; /* in order */
        if (start == end) continue;
        if (t->paths[start] < first) first = t->paths[start];
        if (t->paths[end - 1] >= last) last = t->paths[end - 1] + 1;
    }
    while (first < last && (last - first) % 4 && (first > 0 || last < t->n)) last < t->n ? last++ : first--;
    t->first_moving = first < last ? first : 0;
    t->moving_width = first < last ? last - first : 0;
}

/* Whether joints have as many velocities as their kinds, and coordinates of a robot. */
static int are_joints_good(const struct tree *t, int nq) {
    static const int velocities[JOINT_KINDS] = {1, 1, 1, 3, 6, 3, 3}, coordinates[JOINT_KINDS] = {1, 2, 1, 4, 7, 4, 3};
    int good = 1;
    for (int j = 1, k = 0; good && j < t->joints; j++) {
        int own = 0;
        for (; k < t->n && t->owners[k] == j; k++) own++;
        good = own == velocities[t->kinds[j]] && t->starts[j] + coordinates[t->kinds[j]] <= nq;
    }
    return good;
}

/* Read the entries (row, column, velocity, factor) of the transport of coordinates; 0, or -1 with an error. */
static int read_turns(struct tree *t, PyObject *object) {
    PyObject *sequence = PySequence_Fast(object, "turns must be a sequence");
    if (!sequence) return -1;
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
    int good = count <= MAX_SIZE;
    t->turns = good ? PyMem_Calloc(count + 1, sizeof *t->turns) : NULL;
    good = t->turns != NULL;
    for (Py_ssize_t i = 0; good && i < count; i++) {
        struct turn_entry *e = t->turns + i;
        good = PyArg_ParseTuple(PySequence_Fast_GET_ITEM(sequence, i), "iiid", &e->row, &e->column, &e->velocity,
                                &e->factor);
        good = good && 0 <= e->row && e->row < t->n && 0 <= e->column && e->column < t->n && 0 <= e->velocity &&
               e->velocity < t->n;
    }
    t->turn_count = (int)count;
    Py_DECREF(sequence);
    if (good) return 0;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "turns do not fit");
    return -1;
}

const char set_tree_doc[] =
    "set_tree(parents, owners, contact_joints, row_owners, gravity, inertias, points, directions,\n"
    "         springs, dampers, actuation, load_rank, kinds, starts, placements, axes, turns)\n--\n\n"
    "Set the bodies of a robot whose contacts are points on planes, so that `differentiate` can be\n"
    "called. It is called once at most.\n\n"
    "Args:\n"
    "    parents: Parent of each joint (joints,), of the world 0, which is the first.\n"
    "    owners: Joint of each velocity (nv,), in order.\n"
    "    contact_joints: Joint of each contact.\n"
    "    row_owners: Contact of each row.\n"
    "    gravity: Acceleration (3,), m/s^2.\n"
    "    inertias: Mass, centre and inertia about it (xx xy yy xz yz zz) of each joint's body (joints, 10).\n"
    "    points: Contact points in their joints' frames (c, 3), m.\n"
    "    directions: Directions of rows in the world (R, 3).\n"
    "    springs: Stiffness of each velocity (nv,).\n"
    "    dampers: Damping of each velocity (nv,).\n"
    "    actuation: S (nv, nu).\n"
    "    load_rank: Rank of what forces at the closed contacts do to bodies; -1 if it is not known.\n"
    "    kinds: Kind of each joint (joints,), as `enum joint_kind`; any for the world.\n"
    "    starts: First coordinate of each joint (joints,).\n"
    "    placements: Poses of joints in their parents', rotations by columns and positions (joints, 12).\n"
    "    axes: Spatial velocity of its body by each velocity, in the joint's frame (nv, 6).\n"
    "    turns: Entries (row, column, velocity, factor) of the transport of perturbations of q by a velocity.\n";

PyObject *kernel_set_tree(KernelObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"parents", "owners", "contact_joints", "row_owners", "gravity", "inertias",
                            "points", "directions", "springs", "dampers", "actuation", "load_rank", "kinds",
                            "starts", "placements", "axes", "turns", NULL};
    struct kernel *p = &self->kernel;
    PyObject *parents, *owners, *joints, *rows, *kinds, *starts, *turns, *arrays[9];
    if (!self->memory || p->tree) {
        PyErr_SetString(PyExc_TypeError, "a kernel has one tree");
        return NULL;
    }
    struct tree *t = PyMem_Calloc(1, sizeof *t);
    if (!t) return PyErr_NoMemory();
    int count[6] = {0}, good = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOOOOOOOOiOOOOO", names, &parents, &owners, &joints,
                                     &rows, arrays, arrays + 1, arrays + 2, arrays + 3, arrays + 4,
                                     arrays + 5, arrays + 6, &t->load_rank, &kinds, &starts, arrays + 7,
                                     arrays + 8, &turns))
        goto fail;
    if (!(t->parents = copy_indices(parents, MAX_SIZE, "parents", count))) goto fail;
    t->joints = count[0];
    t->n = p->nv;
    t->contacts = p->contacts;
    t->rows = p->all_rows;
    if (!(t->owners = copy_indices(owners, t->joints, "owners", count + 1)) ||
        !(t->contact_joints = copy_indices(joints, t->joints, "contact_joints", count + 2)) ||
        !(t->row_owners = copy_indices(rows, t->contacts, "row_owners", count + 3)) ||
        !(t->kinds = copy_indices(kinds, JOINT_KINDS, "kinds", count + 4)) ||
        !(t->starts = copy_indices(starts, p->nq + 1, "starts", count + 5)) || read_turns(t, turns))
        goto fail;
    good = t->joints >= 1 && count[4] == t->joints && count[5] == t->joints && t->parents[0] == 0 && count[1] == t->n && count[2] == t->contacts &&
           count[3] == t->rows;
    for (int j = 1; good && j < t->joints; j++) good = t->parents[j] < j;
    for (int k = 0; good && k < t->n; k++)
        good = t->owners[k] >= (k ? t->owners[k - 1] : 1); /* none moves the world */
    if (!good || !are_joints_good(t, p->nq)) {
        PyErr_SetString(PyExc_ValueError, "bodies do not fit");
        goto fail;
    }
    if (make_tree_memory(t, p->nu)) {
        PyErr_NoMemory();
        goto fail;
    }
    double *places[] = {t->gravity, t->inertias, t->points, t->directions, t->springs, t->dampers,
                        t->actuation, t->placements, t->axes};
    const Py_ssize_t sizes[] = {3, 10 * t->joints, 3 * t->contacts, 3 * t->rows, t->n, t->n,
                                (Py_ssize_t)t->n * p->nu, POSE * t->joints, 6 * t->n};
    for (int i = 0; i < 9; i++) {
        Py_buffer buffer;
        if (take_doubles(arrays[i], sizes[i], 0, names[i < 7 ? 4 + i : 7 + i], &buffer)) goto fail;
        memcpy(places[i], buffer.buf, (size_t)sizes[i] * sizeof(double));
        PyBuffer_Release(&buffer);
    }
    find_moving(t, p);
    p->tree = t;
    Py_RETURN_NONE;
fail:
    free_tree(t);
    return NULL;
}

/* Differentiate the field (v, a) and guards at x and u, and return which results are there; NULL with an error. The
 * velocities, of which derivatives are the same everywhere, are the first rows of `field` (2 nv, z). */
static PyObject *differentiate(KernelObject *self, const double *x, const double *u, double *field,
                               struct point_derivatives *d) {
    struct kernel *p = &self->kernel;
    const int n = p->nv, columns = 2 * n + p->nu;
    if (!self->derivative_memory) /* many a kernel is never differentiated */
        self->derivative_memory = PyMem_Calloc((size_t)derivative_scratch_size(p), sizeof(double));
    if (!self->derivative_memory) return PyErr_NoMemory();
    memset(field, 0, (size_t)n * columns * sizeof(double));
    for (int i = 0; i < n; i++) field[i * columns + n + i] = 1.0;
    d->field = field + n * columns;
    d->columns = columns;
    const int status = differentiate_point(p, x, u, self->derivative_memory, d);
    return Py_BuildValue("OO", status == DONE ? Py_True : Py_False,
                         status == DONE && d->has_guards ? Py_True : Py_False);
}

const char differentiate_doc[] =
    "differentiate(x, u, field, guards)\n--\n\n"
    "Differentiate acceleration and guards; return whether each is covered. After `set_tree`.\n\n"
    "Args:\n"
    "    x: Coordinates (nx,).\n"
    "    u: Input (nu,).\n"
    "    field: Out: derivatives of the field (v, a) by (q, v, u), (2 nv, 2 nv + nu).\n"
    "    guards: Out: those of the guards (n, 2 nv + nu).\n";

PyObject *kernel_differentiate(KernelObject *self, PyObject *const *args, Py_ssize_t count) {
    struct kernel *p = &self->kernel;
    if (count != 4 || !self->memory) return refuse_count("differentiate", 4, count);
    if (!p->tree) {
        PyErr_SetString(PyExc_TypeError, "a kernel without a tree differentiates no terms");
        return NULL;
    }
    const Py_ssize_t n = p->nv, z = 2 * n + p->nu;
    const struct argument arguments[] = {{args[0], p->nx, 0, "x"},
                                         {args[1], p->nu, 0, "u"},
                                         {args[2], 2 * n * z, 1, "field"},
                                         {args[3], p->guard_count * z, 1, "guards"}};
    Py_buffer b[4];
    if (take_arguments(arguments, 4, b)) return NULL;
    struct point_derivatives d = {.guards = b[3].buf};
    PyObject *found = differentiate(self, b[0].buf, b[1].buf, b[2].buf, &d);
    release_all(b, 4);
    return found;
}

const char variational_step_doc[] =
    "variational_step(x, u, settings, state, matrix)\n--\n\n"
    "Take a step of DOP853 with its transition matrix; return its error.\n\n"
    "Returns None where it exceeds the step-size limits at its start, and NotImplemented where a stage is\n"
    "not covered. After `set_tree`.\n\n"
    "Args:\n"
    "    x: Coordinates (nx,) at the start.\n"
    "    u: Input (nu,), held.\n"
    "    settings: Length in s, relative and absolute tolerance, greatest length in s, and greatest length\n"
    "        relative to the time until a sliding contact stops (5,).\n"
    "    state: Out: coordinates (nx,) at the end, of any norm.\n"
    "    matrix: Out: derivative (2 nv, 2 nv) of the end by the start, in tangent coordinates.\n";

PyObject *kernel_variational_step(KernelObject *self, PyObject *const *args, Py_ssize_t count) {
    struct kernel *p = &self->kernel;
    if (count != 5 || !self->memory) return refuse_count("variational_step", 5, count);
    if (!p->tree) {
        PyErr_SetString(PyExc_TypeError, "a kernel without a tree takes no variational steps");
        return NULL;
    }
    const Py_ssize_t states = 2 * (Py_ssize_t)p->nv;
    const struct argument arguments[] = {{args[0], p->nx, 0, "x"},
                                         {args[1], p->nu, 0, "u"},
                                         {args[2], 5, 0, "settings"},
                                         {args[3], p->nx, 1, "state"},
                                         {args[4], states * states, 1, "matrix"}};
    Py_buffer b[5];
    if (take_arguments(arguments, 5, b)) return NULL;
    if (!self->variational_memory)
        self->variational_memory = PyMem_Calloc((size_t)variational_scratch_size(p), sizeof(double));
    PyObject *found = NULL;
    if (!self->variational_memory) {
        PyErr_NoMemory();
    } else {
        const double *settings = b[2].buf;
        struct variational_step step = {
            .h = settings[0], .rtol = settings[1], .atol = settings[2], .longest = settings[3],
            .stop_part = settings[4], .x = b[0].buf, .state = b[3].buf, .matrix = b[4].buf};
        const int status = take_variational_step(p, b[1].buf, self->tableau.buf, self->variational_memory, &step);
        if (status != DONE) found = Py_NewRef(Py_NotImplemented);
        else found = step.is_too_long ? Py_NewRef(Py_None) : PyFloat_FromDouble(step.error);
    }
    release_all(b, 5);
    return found;
}

const char differentiate_terms_doc[] =
    "differentiate_terms(x, u, accelerations, rates, field, guards)\n--\n\n"
    "Differentiate acceleration and guards with derivatives of the terms that are given; return whether\n"
    "each is covered. Without `set_tree`.\n\n"
    "Args:\n"
    "    x: Coordinates (nx,).\n"
    "    u: Input (nu,).\n"
    "    accelerations: Derivatives of J a + dJ/dt v by (q, v), (R, 2 nv).\n"
    "    rates: Derivatives of J v by (q, v), (R, 2 nv).\n"
    "    field: In: in the last nv rows -D(M a + h - J' f) by (q, v), and S, (2 nv, 2 nv + nu).\n"
    "        Out: derivatives of the field (v, a) by (q, v, u).\n"
    "    guards: Out: those of the guards (n, 2 nv + nu).\n";

PyObject *kernel_differentiate_terms(KernelObject *self, PyObject *const *args, Py_ssize_t count) {
    struct kernel *p = &self->kernel;
    if (count != 6 || !self->memory) return refuse_count("differentiate_terms", 6, count);
    if (p->tree) { /* whose bodies have not been placed at x */
        PyErr_SetString(PyExc_TypeError, "a kernel with a tree differentiates its terms itself");
        return NULL;
    }
    const Py_ssize_t n = p->nv, rows = p->all_rows, z = 2 * n + p->nu;
    const struct argument arguments[] = {{args[0], p->nx, 0, "x"},
                                         {args[1], p->nu, 0, "u"},
                                         {args[2], 2 * n * rows, 0, "accelerations"},
                                         {args[3], 2 * n * rows, 0, "rates"},
                                         {args[4], 2 * n * z, 1, "field"},
                                         {args[5], p->guard_count * z, 1, "guards"}};
    Py_buffer b[6];
    if (take_arguments(arguments, 6, b)) return NULL;
    struct point_derivatives d = {
        .accelerations = b[2].buf, .rates = b[3].buf, .guards = b[5].buf};
    PyObject *found = differentiate(self, b[0].buf, b[1].buf, b[4].buf, &d);
    release_all(b, 6);
    return found;
}
