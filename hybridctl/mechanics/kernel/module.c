/* The Python type of a kernel: checks of every array, and calls.
 *
 * An array is one of doubles, contiguous by rows, with exactly the number of entries that a kernel's
 * sizes ask for; all else is a ValueError. Indices are checked once, where a kernel is made.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <string.h>

#include "module.h"

/* Buffers */

/* Hold the buffer of an object of `count` doubles; 0, or -1 with an error. */
int take_doubles(PyObject *object, Py_ssize_t count, int writable, const char *name,
                 Py_buffer *buffer) {
    int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, buffer, flags)) return -1;
    int is_double = buffer->format && !strcmp(buffer->format, "d") && buffer->itemsize == 8;
    if (is_double && buffer->len == count * (Py_ssize_t)sizeof(double)) return 0;
    PyErr_Format(PyExc_ValueError, "%s must be %zd doubles, got %zd bytes of format %s", name, count,
                 buffer->len, buffer->format ? buffer->format : "?");
    PyBuffer_Release(buffer);
    return -1;
}

/* Copy a sequence of integers, each in [0, limit), into new memory; NULL with an error. */
int *copy_indices(PyObject *object, int limit, const char *name, int *count) {
    PyObject *sequence = PySequence_Fast(object, "indices must be a sequence");
    if (!sequence) return NULL;
    Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence);
    int *result = size <= MAX_SIZE ? PyMem_Calloc(size + 1, sizeof(int)) : NULL;
    if (!result) PyErr_Format(PyExc_ValueError, "%s has too many entries", name);
    for (Py_ssize_t i = 0; result && i < size; i++) {
        long value = PyLong_AsLong(PySequence_Fast_GET_ITEM(sequence, i));
        if (PyErr_Occurred() || value < 0 || value >= limit) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%s has index %ld", name, value);
            PyMem_Free(result);
            result = NULL;
        } else {
            result[i] = (int)value;
        }
    }
    *count = (int)size;
    Py_DECREF(sequence);
    return result;
}

/* Reading what a mode means */

/* Read closed contacts (contact, first, last, slides, sign, friction, static
 * friction, pair, load); 0, or -1 with an error. */
static int read_closed(struct kernel *p, PyObject *object) {
    PyObject *sequence = PySequence_Fast(object, "closed must be a sequence");
    if (!sequence) return -1;
    int count = (int)PySequence_Fast_GET_SIZE(sequence), good = count <= MAX_SIZE;
    p->closed_count = count;
    p->closed = good ? PyMem_Calloc(count + 1, sizeof *p->closed) : NULL;
    good = p->closed != NULL;
    for (int j = 0; good && j < count; j++) {
        struct closed_contact *c = p->closed + j;
        good = PyArg_ParseTuple(PySequence_Fast_GET_ITEM(sequence, j), "iiiidddid", &c->contact,
                                &c->first, &c->last, &c->slides, &c->sign, &c->friction,
                                &c->static_friction, &c->pair, &c->load);
        int tangents = c->last - c->first;
        /* In a surface a contact slides along two tangents, with a sign along one. */
        c->slides = c->slides != 0;
        good = good && 0 <= c->contact && c->contact < p->contacts && c->first >= count &&
               c->last <= p->row_count && 0 <= tangents && tangents <= 2 && 0 <= c->pair &&
               c->pair < count && c->first == (j ? p->closed[j - 1].last : count) &&
               (!c->slides || tangents == (c->sign == 0.0 ? 2 : 1));
        good = good && c->load >= 0.0 && (c->load == 0.0 || tangents == 1);
        p->sliding_count += c->slides;
        p->pressed_count += c->load > 0.0;
    }
    Py_DECREF(sequence);
    if (good) return 0;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "closed contacts do not fit");
    return -1;
}

/* Read guards (kind, place, sign, static friction); 0, or -1 with an error. */
static int read_guards(struct kernel *p, PyObject *object) {
    PyObject *sequence = PySequence_Fast(object, "guards must be a sequence");
    if (!sequence) return -1;
    int count = (int)PySequence_Fast_GET_SIZE(sequence), good = count <= MAX_SIZE;
    p->guard_count = count;
    p->guards = good ? PyMem_Calloc(count + 1, sizeof *p->guards) : NULL;
    good = p->guards != NULL;
    for (int i = 0; good && i < count; i++) {
        struct guard *g = p->guards + i;
        good = PyArg_ParseTuple(PySequence_Fast_GET_ITEM(sequence, i), "iidd", &g->kind, &g->place,
                                &g->sign, &g->static_friction);
        good = good && 0 <= g->kind && g->kind < GUARD_KINDS && 0 <= g->place;
        if (!good) break;
        if (g->kind == JAMS) p->can_jam = 1;
        else if (g->kind == CLOSES) good = g->place < p->contacts;
        else good = g->place < p->closed_count;
        if (good && (g->kind == SLIPS || g->kind == STICKS)) /* reads a tangent where signed */
            good = g->sign == 0.0 || p->closed[g->place].last > p->closed[g->place].first;
    }
    Py_DECREF(sequence);
    if (good) return 0;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "guards do not fit");
    return -1;
}

/* Whether some two bodies have more than six constrained rows, or all have more than there are velocities, without
 * those of constant forces. */
static int is_overloaded(const struct kernel *p) {
    for (int pair = 0; pair < p->closed_count; pair++) {
        int rows = 0;
        for (int j = 0; j < p->closed_count; j++)
            if (p->closed[j].pair == pair)
                rows += (p->closed[j].load == 0.0) + (p->closed[j].slides ? 0 : p->closed[j].last - p->closed[j].first);
        if (rows > 6) return 1;
    }
    return p->constrained_count - p->pressed_count > p->nv;
}

/* Make the scratch memory, and what is kept of the last step; 0, or -1 with an error. */
static int make_memory(KernelObject *self) {
    struct kernel *p = &self->kernel;
    const size_t n = p->nv, r = p->row_count, k = p->closed_count;
    p->width = ((int)r + 3) & ~3;
    double **places[] = {&p->moved,    &p->driven,   &p->delassus,  &p->free,   &p->target,     &p->slip,
                         &p->forces,   &p->direction, &p->unit,   &p->speed,      &p->matrix,
                         &p->even,     &p->solution,  &p->change, &p->column,
                         &p->shared.q, &p->shared.b,  &p->shared.z, &p->shared.weighted,
                         &p->shared.s, &p->shared.root, &p->shared.half, &p->shared.right,
                         &p->shared.y, &p->shared.copy, &p->shared.units, &p->shared.plane,
                         &self->rate, &self->last_x, &self->last_u,
                         &self->last_rate, &self->last_guards, &p->known_x, &p->known_u};
    const size_t sizes[] = {n * p->width, n, r * r, r, r, r, r, 2 * k, 2 * k, k, r * r, r * r, r, r, n,
                            r * r, r * r, r * r, r * r, r * r, r * r, r, r, r, r, k, 2 * r,
                            p->nx, p->nx, p->nu, p->nx, p->guard_count, p->nx, p->nu};
    const int count = sizeof sizes / sizeof *sizes;
    size_t total = 0, used = 0;
    for (int i = 0; i < count; i++) total += sizes[i] + 1;
    self->memory = PyMem_Calloc(total, sizeof(double));
    p->active = PyMem_Calloc(r + 1, sizeof(int));
    p->moving = PyMem_Calloc(n + 1, sizeof(int));
    p->shared.places = PyMem_Calloc(k + 1, sizeof(int));
    if (!self->memory || !p->active || !p->moving || !p->shared.places) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < count; i++) {
        *places[i] = self->memory + used;
        used += sizes[i] + 1;
    }
    return 0;
}

static void kernel_dealloc(KernelObject *self) {
    for (int i = 0; i < self->held_arrays; i++) PyBuffer_Release(&self->term_arrays[i]);
    if (self->tableau.obj) PyBuffer_Release(&self->tableau);
    PyMem_Free(self->memory);
    PyMem_Free(self->derivative_memory);
    PyMem_Free(self->variational_memory);
    free_tree(self->kernel.tree);
    PyMem_Free(self->kernel.closed);
    PyMem_Free(self->kernel.guards);
    PyMem_Free(self->kernel.rows);
    PyMem_Free(self->kernel.constrained);
    PyMem_Free(self->kernel.active);
    PyMem_Free(self->kernel.moving);
    PyMem_Free(self->kernel.shared.places);
    Py_XDECREF(self->owner);
    Py_XDECREF(self->python_mode);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Hold the arrays of the terms, of the sizes that a kernel has; 0, or -1 with an error. */
static int take_terms(KernelObject *self, PyObject *arrays) {
    struct kernel *p = &self->kernel;
    const Py_ssize_t n = p->nv, rows = p->all_rows;
    const Py_ssize_t sizes[TERM_ARRAYS] = {p->nx,    p->nu, p->nq,       n * n, n,
                                           rows * n, rows,  p->contacts, rows};
    double **places[TERM_ARRAYS] = {&p->terms.x,     &p->terms.u,        &p->terms.q_rate,
                                    &p->terms.mass,  &p->terms.drive,    &p->terms.jacobian,
                                    &p->terms.drift, &p->terms.gaps,     &p->terms.rates};
    if (!PyTuple_Check(arrays) || PyTuple_GET_SIZE(arrays) != TERM_ARRAYS) {
        PyErr_SetString(PyExc_ValueError, "arrays of the terms must be a tuple of nine");
        return -1;
    }
    for (int i = 0; i < TERM_ARRAYS; i++) {
        PyObject *array = PyTuple_GET_ITEM(arrays, i);
        if (take_doubles(array, sizes[i], 1, "an array of the terms", &self->term_arrays[i]))
            return -1;
        self->held_arrays = i + 1;
        *places[i] = self->term_arrays[i].buf;
    }
    return 0;
}

static int kernel_init(KernelObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"call",   "data", "owner", "arrays", "sizes",  "closed",  "rows",
                            "constrained", "guards", "stabilization", "tableau", "python_mode", NULL};
    PyObject *data, *owner, *arrays, *closed, *rows, *constrained, *guards, *tableau, *mode;
    unsigned long long call;
    struct kernel *p = &self->kernel;
    if (self->memory) {
        PyErr_SetString(PyExc_TypeError, "a kernel is made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "KOOO(iiiii)OOOOdOO", names, &call, &data,
                                     &owner, &arrays, &p->nq, &p->nv, &p->nu, &p->contacts,
                                     &p->all_rows, &closed, &rows, &constrained, &guards,
                                     &p->stabilization, &tableau, &mode))
        return -1;
    if (p->nq < 1 || p->nv < 1 || p->nu < 0 || p->contacts < 0 || p->all_rows < p->contacts ||
        p->nq > MAX_SIZE || p->nv > MAX_SIZE || p->nu > MAX_SIZE || p->all_rows > MAX_SIZE) {
        PyErr_SetString(PyExc_ValueError, "sizes do not fit");
        return -1;
    }
    p->nx = p->nq + p->nv;
    p->terms.call = (void (*)(void *))(uintptr_t)call;
    p->terms.data = PyCapsule_GetPointer(data, PyCapsule_GetName(data));
    if (!p->terms.data || !call) return -1;
    if (take_terms(self, arrays)) return -1;
    if (!(p->rows = copy_indices(rows, p->all_rows, "rows", &p->row_count))) return -1;
    if (read_closed(p, closed)) return -1;
    p->constrained = copy_indices(constrained, p->row_count, "constrained", &p->constrained_count);
    if (!p->constrained || read_guards(p, guards)) return -1;
    /* Multipliers begin with the normal forces. */
    int good = p->constrained_count >= p->closed_count;
    for (int j = 0; good && j < p->closed_count; j++) good = p->constrained[j] == j;
    /* Each is there once, and none is a tangent of a sliding contact: memory is of this size. */
    for (int i = 1; good && i < p->constrained_count; i++)
        good = p->constrained[i - 1] < p->constrained[i];
    int fixed = p->closed_count;
    for (int j = 0; good && j < p->closed_count; j++) {
        if (!p->closed[j].slides) fixed += p->closed[j].last - p->closed[j].first;
        for (int i = 0; good && p->closed[j].slides && i < p->constrained_count; i++)
            good = p->constrained[i] < p->closed[j].first || p->constrained[i] >= p->closed[j].last;
    }
    /* All tangents of contacts that stick are there: sharing of forces counts on it. */
    good = good && p->constrained_count == fixed &&
           (!p->closed_count || p->closed[p->closed_count - 1].last == p->row_count);
    if (!good) {
        PyErr_SetString(PyExc_ValueError, "constrained rows are not the normals, then tangents");
        return -1;
    }
    const Py_ssize_t coefficients = sizeof(struct tableau) / sizeof(double);
    if (take_doubles(tableau, coefficients, 0, "tableau", &self->tableau)) {
        self->tableau.obj = NULL;
        return -1;
    }
    p->is_overloaded = is_overloaded(p);
    self->owner = Py_NewRef(owner);
    self->python_mode = Py_NewRef(mode);
    return make_memory(self);
}

/* Calls */

/* Copy `count` doubles of a result of Python; DONE or FAILED. */
static int copy_result(PyObject *object, int count, const char *name, double *result) {
    Py_buffer buffer;
    if (!result) return DONE;
    if (take_doubles(object, count, 0, name, &buffer)) return FAILED;
    memcpy(result, buffer.buf, (size_t)count * sizeof(double));
    PyBuffer_Release(&buffer);
    return DONE;
}

/* A `python_mode` of contact_kernel.h: x and u go as bytes, since another thread may use this kernel
 * while Python code runs. */
static int ask_python(void *context, const double *x, const double *u, double *rate,
                      double *guards) {
    KernelObject *self = context;
    const struct kernel *p = &self->kernel;
    PyObject *found = PyObject_CallFunction(
        self->python_mode, "y#y#O", (const char *)x, (Py_ssize_t)(p->nx * sizeof(double)),
        (const char *)u, (Py_ssize_t)(p->nu * sizeof(double)), guards ? Py_True : Py_False);
    if (!found) return FAILED;
    int status = FAILED;
    PyObject *of_rate, *of_guards;
    if (PyArg_ParseTuple(found, "OO", &of_rate, &of_guards)) {
        status = copy_result(of_rate, p->nx, "rate", rate);
        if (status == DONE) status = copy_result(of_guards, p->guard_count, "guards", guards);
    }
    Py_DECREF(found);
    return status;
}

/* Hold the buffers of a call's arguments: 0, or -1 with an error, and then none stays held. */
int take_arguments(const struct argument *arguments, int count, Py_buffer *buffers) {
    for (int i = 0; i < count; i++) {
        const struct argument *a = arguments + i;
        if (take_doubles(a->object, a->count, a->writable, a->name, buffers + i)) {
            while (i--) PyBuffer_Release(buffers + i);
            return -1;
        }
    }
    return 0;
}

void release_all(Py_buffer *buffers, int count) {
    for (int i = 0; i < count; i++) PyBuffer_Release(buffers + i);
}

PyObject *refuse_count(const char *name, Py_ssize_t wanted, Py_ssize_t given) {
    return PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", name, wanted, given);
}

PyDoc_STRVAR(evaluate_doc,
             "evaluate(x, u, field, guards)\n--\n\n"
             "Evaluate the mode; return the time to a stop and that of turning in s.\n\n"
             "Returns None where the point is not covered.\n\n"
             "Args:\n"
             "    x: Coordinates (nx,).\n"
             "    u: Input (nu,).\n"
             "    field: Out: velocities and accelerations (2 nv,).\n"
             "    guards: Out: guards (n,).\n");

static PyObject *kernel_evaluate(KernelObject *self, PyObject *const *args, Py_ssize_t count) {
    struct kernel *p = &self->kernel;
    if (count != 4 || !self->memory) return refuse_count("evaluate", 4, count);
    const struct argument arguments[] = {{args[0], p->nx, 0, "x"},
                                         {args[1], p->nu, 0, "u"},
                                         {args[2], 2 * (Py_ssize_t)p->nv, 1, "field"},
                                         {args[3], p->guard_count, 1, "guards"}};
    Py_buffer b[4];
    if (take_arguments(arguments, 4, b)) return NULL;
    struct sliding_times times = {INFINITY, INFINITY};
    const int status = evaluate_point(p, b[0].buf, b[1].buf, self->rate, b[3].buf, &times);
    if (status == DONE) {
        const size_t size = (size_t)p->nv * sizeof(double);
        memcpy(b[2].buf, (const double *)b[0].buf + p->nq, size);
        memcpy((double *)b[2].buf + p->nv, self->rate + p->nq, size);
    }
    release_all(b, 4);
    if (status != DONE) Py_RETURN_NONE;
    return Py_BuildValue("dd", times.stop, times.turn);
}

/* Whether the last step has ended at x (nx,) under u (nu,). */
static int is_last_end(const KernelObject *self, const double *x, const double *u) {
    const struct kernel *p = &self->kernel;
    return self->has_last && !memcmp(self->last_x, x, (size_t)p->nx * sizeof(double)) &&
           !memcmp(self->last_u, u, (size_t)p->nu * sizeof(double));
}

static void keep_end(KernelObject *self, const struct explicit_step *step, const double *u) {
    const struct kernel *p = &self->kernel;
    memcpy(self->last_x, step->states + (NODES - 1) * p->nx, (size_t)p->nx * sizeof(double));
    memcpy(self->last_u, u, (size_t)p->nu * sizeof(double));
    memcpy(self->last_rate, step->end_rate, (size_t)p->nx * sizeof(double));
    memcpy(self->last_guards, step->guards + (NODES - 1) * p->guard_count,
           (size_t)p->guard_count * sizeof(double));
    self->has_last = 1;
}

PyDoc_STRVAR(step_doc,
             "step(x, u, settings, states, guards, bounds)\n--\n\n"
             "Take a step of DOP853; return its error, and the fastest decay seen in s.\n\n"
             "The arrays that are marked out are written only if the error is below 1,\n"
             "but for the guards at the end.\n\n"
             "Args:\n"
             "    x: Coordinates (nx,) at the start.\n"
             "    u: Input (nu,), held.\n"
             "    settings: Length in s, relative and absolute tolerance (3,).\n"
             "    states: Out: states at the nodes (8, nx).\n"
             "    guards: Out: guards at the nodes (8, n).\n"
             "    bounds: Out: lower bounds of the guards (n,).\n");

static PyObject *kernel_step(KernelObject *self, PyObject *const *args, Py_ssize_t count) {
    struct kernel *p = &self->kernel;
    if (count != 6 || !self->memory) return refuse_count("step", 6, count);
    const struct argument arguments[] = {{args[0], p->nx, 0, "x"},
                                         {args[1], p->nu, 0, "u"},
                                         {args[2], 3, 0, "settings"},
                                         {args[3], NODES * p->nx, 1, "states"},
                                         {args[4], NODES * p->guard_count, 1, "guards"},
                                         {args[5], p->guard_count, 1, "bounds"}};
    Py_buffer b[6];
    if (take_arguments(arguments, 6, b)) return NULL;
    /* Memory of this call alone: Python code may run within it, and use this kernel. */
    const int nx = p->nx, n = p->guard_count, size = explicit_scratch_size(nx);
    double *scratch = PyMem_Malloc(((size_t)size + 2 * nx + n + p->nu + 1) * sizeof(double));
    if (!scratch) {
        release_all(b, 6);
        return PyErr_NoMemory();
    }
    double *end_rate = scratch + size, *rate = end_rate + nx, *guards = rate + nx, *u = guards + n;
    const double *settings = b[2].buf;
    memcpy(u, b[1].buf, (size_t)p->nu * sizeof(double));
    struct explicit_step step = {
        .h = settings[0], .rtol = settings[1], .atol = settings[2], .x = b[0].buf,
        .states = b[3].buf, .guards = b[4].buf, .bounds = b[5].buf, .end_rate = end_rate,
        .error = NAN, .decay = INFINITY};
    if (is_last_end(self, step.x, u)) {
        step.rate = memcpy(rate, self->last_rate, (size_t)nx * sizeof(double));
        step.guards_at_start = memcpy(guards, self->last_guards, (size_t)n * sizeof(double));
    }
    const struct field field = {p, ask_python, self, u};
    int status = take_explicit_step(&field, self->tableau.buf, scratch, &step);
    if (status == DONE && step.error < 1.0) keep_end(self, &step, u);
    release_all(b, 6);
    PyMem_Free(scratch);
    return status == DONE ? Py_BuildValue("dd", step.error, step.decay) : NULL;
}

PyDoc_STRVAR(sample_doc,
             "sample_guards(states, u, guards)\n--\n\n"
             "Evaluate the guards at several states.\n\n"
             "Args:\n"
             "    states: Coordinates (count, nx).\n"
             "    u: Input (nu,), held.\n"
             "    guards: Out: guards (count, n).\n");

static PyObject *kernel_sample_guards(KernelObject *self, PyObject *const *args,
                                      Py_ssize_t count) {
    struct kernel *p = &self->kernel;
    if (count != 3 || !self->memory) return refuse_count("sample_guards", 3, count);
    Py_ssize_t points = PyObject_Length(args[0]);
    if (points < 0) return NULL;
    const struct argument arguments[] = {{args[0], points * p->nx, 0, "states"},
                                         {args[1], p->nu, 0, "u"},
                                         {args[2], points * p->guard_count, 1, "guards"}};
    Py_buffer b[3];
    if (take_arguments(arguments, 3, b)) return NULL;
    const struct field field = {p, ask_python, self, b[1].buf};
    const double *states = b[0].buf;
    double *guards = b[2].buf;
    int status = DONE;
    for (Py_ssize_t i = 0; status == DONE && i < points; i++)
        status = evaluate_field(&field, states + i * p->nx, NULL, guards + i * p->guard_count);
    release_all(b, 3);
    if (status != DONE) return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(forces_doc,
             "find_forces(x, u, rate, forces)\n--\n\n"
             "Evaluate rate and forces; return whether the point is covered.\n\n"
             "Args:\n"
             "    x: Coordinates (nx,).\n"
             "    u: Input (nu,).\n"
             "    rate: Out: rate (nx,) of the coordinates.\n"
             "    forces: Out: forces along the rows of all contacts (R,).\n");

static PyObject *kernel_find_forces(KernelObject *self, PyObject *const *args, Py_ssize_t count) {
    struct kernel *p = &self->kernel;
    if (count != 4 || !self->memory) return refuse_count("find_forces", 4, count);
    const struct argument arguments[] = {{args[0], p->nx, 0, "x"},
                                         {args[1], p->nu, 0, "u"},
                                         {args[2], p->nx, 1, "rate"},
                                         {args[3], p->all_rows, 1, "forces"}};
    Py_buffer b[4];
    if (take_arguments(arguments, 4, b)) return NULL;
    struct sliding_times times; /* asked for so that forces are shared */
    int status = evaluate_point(p, b[0].buf, b[1].buf, b[2].buf, NULL, &times);
    double *forces = b[3].buf;
    memset(forces, 0, (size_t)p->all_rows * sizeof(double));
    for (int a = 0; status == DONE && a < p->row_count; a++) forces[p->rows[a]] = p->forces[a];
    release_all(b, 4);
    return PyBool_FromLong(status == DONE);
}

PyDoc_STRVAR(rates_doc,
             "find_rates(x, gaps, rates)\n--\n\n"
             "Evaluate the gaps and the rates of all contacts.\n\n"
             "Args:\n"
             "    x: Coordinates (nx,).\n"
             "    gaps: Out: gaps (c,).\n"
             "    rates: Out: rates along the rows of all contacts (R,).\n");

static PyObject *kernel_find_rates(KernelObject *self, PyObject *const *args, Py_ssize_t count) {
    struct kernel *p = &self->kernel;
    struct terms *terms = &p->terms;
    if (count != 3 || !self->memory) return refuse_count("find_rates", 3, count);
    const struct argument arguments[] = {{args[0], p->nx, 0, "x"},
                                         {args[1], p->contacts, 1, "gaps"},
                                         {args[2], p->all_rows, 1, "rates"}};
    Py_buffer b[3];
    if (take_arguments(arguments, 3, b)) return NULL;
    p->known = NO_POINT; /* the terms are those of another point from here on */
    memcpy(terms->x, b[0].buf, (size_t)p->nx * sizeof(double));
    for (int i = 0; i < p->all_rows; i++) terms->rates[i] = NAN; /* of a function that writes nothing */
    terms->call(terms->data);
    memcpy(b[1].buf, terms->gaps, (size_t)p->contacts * sizeof(double));
    memcpy(b[2].buf, terms->rates, (size_t)p->all_rows * sizeof(double));
    release_all(b, 3);
    Py_RETURN_NONE;
}

static PyMethodDef kernel_methods[] = {
    {"evaluate", (PyCFunction)(void (*)(void))kernel_evaluate, METH_FASTCALL, evaluate_doc},
    {"step", (PyCFunction)(void (*)(void))kernel_step, METH_FASTCALL, step_doc},
    {"sample_guards", (PyCFunction)(void (*)(void))kernel_sample_guards, METH_FASTCALL, sample_doc},
    {"find_forces", (PyCFunction)(void (*)(void))kernel_find_forces, METH_FASTCALL, forces_doc},
    {"find_rates", (PyCFunction)(void (*)(void))kernel_find_rates, METH_FASTCALL, rates_doc},
    {"differentiate", (PyCFunction)(void (*)(void))kernel_differentiate, METH_FASTCALL,
     differentiate_doc},
    {"differentiate_terms", (PyCFunction)(void (*)(void))kernel_differentiate_terms, METH_FASTCALL,
     differentiate_terms_doc},
    {"variational_step", (PyCFunction)(void (*)(void))kernel_variational_step, METH_FASTCALL,
     variational_step_doc},
    {"set_tree", (PyCFunction)(void (*)(void))kernel_set_tree, METH_VARARGS | METH_KEYWORDS,
     set_tree_doc},
    {NULL, NULL, 0, NULL}};

PyDoc_STRVAR(kernel_doc,
             "Compiled equations of one contact mode, see hybridctl.mechanics.modes.kernel_mode.\n");

static PyTypeObject KernelType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hybridctl.mechanics.kernel._contact_kernel.Kernel",
    .tp_basicsize = sizeof(KernelObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = kernel_doc,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)kernel_init,
    .tp_dealloc = (destructor)kernel_dealloc,
    .tp_methods = kernel_methods};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_contact_kernel",
    .m_doc = "The compiled kernel of contact modes.", .m_size = -1};

PyMODINIT_FUNC PyInit__contact_kernel(void) {
    if (PyType_Ready(&KernelType)) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module && (PyModule_AddObjectRef(module, "Kernel", (PyObject *)&KernelType) ||
                   PyModule_AddIntConstant(module, "INTERFACE", KERNEL_INTERFACE))) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
