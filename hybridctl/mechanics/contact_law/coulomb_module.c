/* The Python functions of Coulomb's law in C.
 *
 * Every array is checked. Problems that are too large, or whose arrays are others than
 * `CoulombProblem` describes, are not covered: Python solves them, and has the errors.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <string.h>

#include "coulomb.h"

enum { INTERFACE = 3 }; /* compiled._INTERFACE */

static struct lapack lapack;

/* Copy the doubles of a buffer; returns their number, or -1 if they are more than `most`.
 *
 * Matrices are symmetric, so that their order in memory does not matter.
 */
static int copy_doubles(PyObject *object, int most, double *to) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_FORMAT | PyBUF_ANY_CONTIGUOUS)) return -1;
    Py_ssize_t size = buffer.len / (Py_ssize_t)sizeof(double);
    int good = buffer.format && !strcmp(buffer.format, "d") && size <= most;
    if (good) memcpy(to, buffer.buf, (size_t)buffer.len);
    PyBuffer_Release(&buffer);
    return good ? (int)size : -1;
}

/* Copy at most `most` indices, each in [first, end); returns their number, or -1. */
static int copy_indices(PyObject *object, int most, int first, int end, int *to) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)) return -1;
    Py_ssize_t size = buffer.len / (Py_ssize_t)sizeof(Py_ssize_t);
    int good = buffer.itemsize == sizeof(Py_ssize_t) && size <= most && buffer.format &&
               strlen(buffer.format) == 1 && strchr("lqn", buffer.format[0]);
    for (Py_ssize_t j = 0; good && j < size; j++) {
        Py_ssize_t row = ((const Py_ssize_t *)buffer.buf)[j];
        good = first <= row && row < end;
        to[j] = (int)row;
    }
    PyBuffer_Release(&buffer);
    return good ? (int)size : -1;
}

/* Read a problem (delassus, free, tangents, static, kinetic, sliding, magnitude); 0 if it is too
 * large, not finite, or if its arrays are none that `CoulombProblem` describes. */
static int read_problem(PyObject *const *args, struct problem *p) {
    if (!PyTuple_Check(args[2]) || !PyTuple_Check(args[5])) return 0;
    Py_ssize_t contacts = PyTuple_GET_SIZE(args[2]);
    if (contacts > MAX_CONTACTS || contacts == 0 || PyTuple_GET_SIZE(args[5]) != contacts) return 0;
    const int k = p->contacts = (int)contacts;
    p->rows = copy_doubles(args[1], MAX_ROWS, p->free);
    p->magnitude = PyFloat_AsDouble(args[6]);
    if (p->rows < k || (p->magnitude == -1.0 && PyErr_Occurred()) ||
        copy_doubles(args[0], p->rows * p->rows, p->delassus) != p->rows * p->rows ||
        copy_doubles(args[3], k, p->friction_static) != k ||
        copy_doubles(args[4], k, p->friction_kinetic) != k)
        return 0;
    int total = k;
    for (int i = 0; i < k; i++) {
        const int count = copy_indices(PyTuple_GET_ITEM(args[2], i), 2, k, p->rows, p->tangents[i]);
        PyObject *sliding = PyTuple_GET_ITEM(args[5], i);
        p->slides[i] = sliding != Py_None;
        p->sliding[i][0] = p->sliding[i][1] = 0.0;
        if (count < 0 || (p->slides[i] && copy_doubles(sliding, 2, p->sliding[i]) != count))
            return 0;
        p->tangent_count[i] = count;
        total += count;
    }
    for (int i = 0; i < p->rows; i++) { /* comparisons with NaN would look like a solution */
        if (!isfinite(p->free[i])) return 0;
        for (int j = 0; j < p->rows; j++)
            if (!isfinite(p->delassus[i * p->rows + j])) return 0;
    }
    return total == p->rows;
}

static PyObject *refuse_count(const char *name, int wanted, Py_ssize_t given) {
    return PyErr_Format(PyExc_TypeError, "%s takes %d arguments, got %zd", name, wanted, given);
}

/* Fill the states (k,) of a solution, and the contacts on a boundary; returns their number. */
static int list_states(const struct problem *p, const struct solution *found,
                       unsigned char *states, unsigned char *border) {
    int border_count = 0;
    for (int i = 0; i < p->contacts; i++) {
        states[i] = (unsigned char)found->states[i];
        if (found->on_border[i]) border[border_count++] = (unsigned char)i;
    }
    return border_count;
}

PyDoc_STRVAR(solve_doc,
             "solve(delassus, free, tangents, static, kinetic, sliding, magnitude, results)\n--\n\n"
             "Solve Coulomb's law by Newton's method.\n\n"
             "Args:\n"
             "    delassus: ... magnitude: Fields of `CoulombProblem`.\n"
             "    results: Out: forces (r,), rates (r,), directions (2 k,), then both residuals.\n\n"
             "Returns:\n"
             "    Whether it is proven unique; then, as bytes, states (k,), whether each contact\n"
             "    slides, and the contacts on a boundary. None if rounding may decide which solution\n"
             "    is found, if none is found, or if the problem is not covered.\n");

static PyObject *solve(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 8) return refuse_count("solve", 8, count);
    struct problem given;
    if (!lapack.dgelsy || !read_problem(args, &given)) {
        PyErr_Clear(); /* Python has its own errors of what does not fit */
        Py_RETURN_NONE;
    }
    const int n = given.rows, k = given.contacts;
    Py_buffer results;
    if (PyObject_GetBuffer(args[7], &results, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) return NULL;
    if (results.len != (2 * n + 2 * k + 2) * (Py_ssize_t)sizeof(double)) {
        PyBuffer_Release(&results);
        PyErr_SetString(PyExc_ValueError, "results do not fit");
        return NULL;
    }
    struct solution found;
    double *out = results.buf;
    const int settled = settle_problem(&lapack, &given, &found);
    if (settled >= 0) {
        memcpy(out, found.forces, (size_t)n * sizeof(double));
        memcpy(out + n, found.rates, (size_t)n * sizeof(double));
        memcpy(out + 2 * n, found.directions, (size_t)(2 * k) * sizeof(double));
        out[2 * n + 2 * k] = found.residual;
        out[2 * n + 2 * k + 1] = found.rate_residual;
    }
    PyBuffer_Release(&results);
    if (settled < 0) Py_RETURN_NONE;
    unsigned char states[MAX_CONTACTS], slides[MAX_CONTACTS], border[MAX_CONTACTS];
    const int border_count = list_states(&given, &found, states, border);
    for (int i = 0; i < k; i++) slides[i] = (unsigned char)found.has_direction[i];
    return Py_BuildValue("Ny#y#y#", PyBool_FromLong(settled), states, (Py_ssize_t)k, slides,
                         (Py_ssize_t)k, border, (Py_ssize_t)border_count);
}

PyDoc_STRVAR(unique_doc,
             "prove_unique(delassus, free, tangents, static, kinetic, sliding, magnitude)\n--\n\n"
             "Return whether a condition proves that a problem has one solution at most.\n\n"
             "Args:\n"
             "    delassus: ... magnitude: Fields of `CoulombProblem`, in any units.\n\n"
             "Returns:\n"
             "    Whether a condition proves it; None if the problem is not covered.\n");

static PyObject *prove_unique(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 7) return refuse_count("prove_unique", 7, count);
    struct problem given, plain;
    double forces[MAX_ROWS], rates[MAX_ROWS];
    if (!lapack.dsyev || !read_problem(args, &given)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    scale_problem(&given, &plain, forces, rates);
    return PyBool_FromLong(is_provably_unique(&lapack, &plain));
}

/* The arguments of `solve_impact` that are arrays of doubles, and their buffers. */
enum { MASS, JACOBIAN, RATES, VELOCITY, RESTITUTION, THRESHOLD, FRICTION, OUT, DOUBLE_ARRAYS };

/* Get the doubles of an array that is stored by rows; 0 without an error if it is another one. */
static int get_doubles(PyObject *object, int flags, Py_buffer *buffer) {
    if (PyObject_GetBuffer(object, buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | flags)) {
        PyErr_Clear();
        return 0;
    }
    if (buffer->format && !strcmp(buffer->format, "d")) return 1;
    PyBuffer_Release(buffer);
    return 0;
}

static Py_ssize_t count_doubles(const Py_buffer *buffer) {
    return buffer->len / (Py_ssize_t)sizeof(double);
}

/* Read an impact from its buffers, the owners of all rows, the rows of the law and the tangents of
 * each of its contacts; 0 if it is too large or if the sizes of its arrays do not fit. */
static int read_impact(const Py_buffer *b, PyObject *owner, PyObject *rows, PyObject *tangents,
                       struct impact *impact, struct problem *p) {
    const Py_ssize_t nv = count_doubles(&b[VELOCITY]), all = count_doubles(&b[RATES]);
    if (nv < 1 || nv > MAX_VELOCITIES || all < 1 || all > MAX_ALL_ROWS ||
        count_doubles(&b[MASS]) != nv * nv || count_doubles(&b[JACOBIAN]) != all * nv ||
        count_doubles(&b[RESTITUTION]) != all || count_doubles(&b[THRESHOLD]) != all ||
        !PyTuple_Check(tangents))
        return 0;
    const Py_ssize_t contacts = PyTuple_GET_SIZE(tangents);
    if (contacts < 1 || contacts > MAX_CONTACTS || count_doubles(&b[FRICTION]) != contacts)
        return 0;
    const int k = p->contacts = (int)contacts;
    p->rows = copy_indices(rows, MAX_ROWS, 0, (int)all, impact->rows);
    if (copy_indices(owner, MAX_ALL_ROWS, 0, (int)all, impact->owner) != (int)all) return 0;
    int total = k;
    for (int i = 0; i < k; i++) {
        const int count = copy_indices(PyTuple_GET_ITEM(tangents, i), 2, k, p->rows,
                                       p->tangents[i]);
        if (count < 0) return 0;
        p->tangent_count[i] = count;
        p->slides[i] = 0;
        p->sliding[i][0] = p->sliding[i][1] = 0.0;
        p->friction_static[i] = p->friction_kinetic[i] = ((const double *)b[FRICTION].buf)[i];
        total += count;
    }
    int c = 0;
    for (int i = 0; i < all; i++)
        if (impact->owner[i] >= c) c = impact->owner[i] + 1;
    for (int i = 0; i < k; i++)
        if (impact->rows[i] >= c) return 0; /* no normal row */
    if (total != p->rows || count_doubles(&b[OUT]) != all + nv + 3 * c + p->rows + 1) return 0;
    impact->all_contacts = c;
    impact->velocities = (int)nv;
    impact->all_rows = (int)all;
    impact->mass = b[MASS].buf;
    impact->jacobian = b[JACOBIAN].buf;
    impact->rates = b[RATES].buf;
    impact->velocity = b[VELOCITY].buf;
    impact->restitution = b[RESTITUTION].buf;
    impact->threshold = b[THRESHOLD].buf;
    impact->selected = b[OUT].buf;
    impact->after = impact->selected + all;
    impact->normal = impact->after + nv;
    impact->friction = impact->normal + c;
    impact->rates_after = impact->friction + 2 * c;
    impact->energy_loss = impact->rates_after + p->rows;
    return 1;
}

PyDoc_STRVAR(impact_doc,
             "solve_impact(mass, jacobian, rates, velocity, restitution, threshold, friction, out,"
             " owner, rows, tangents)\n--\n\n"
             "Solve the law of an impact, as `impact._solve_in_python`.\n\n"
             "Args:\n"
             "    mass: M (nv, nv).\n"
             "    jacobian: J (R, nv) of the rows of all contacts.\n"
             "    rates: J v (R,).\n"
             "    velocity: v (nv,).\n"
             "    restitution: Coefficients (R,) of rows that rebound.\n"
             "    threshold: Normal speeds (R,) up to which rows do not rebound.\n"
             "    friction: Kinetic coefficients (k,) of the contacts that take part.\n"
             "    out: Out: restitution (R,), v+ (nv,), normal (c,) and friction impulses (c, 2) of\n"
             "        all contacts, J v+ (r,), energy loss.\n"
             "    owner: Contact (R,) of each row.\n"
             "    rows: Rows (r,) of the contacts that take part, normals first.\n"
             "    tangents: Tangents of each of these contacts, counted within `rows`.\n\n"
             "Returns:\n"
             "    Whether it is proven unique; then, as bytes, states (k,) and the contacts on a\n"
             "    boundary. None where `solve` gives None, or if the impact is not covered.\n");

static PyObject *solve_impact_of(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != DOUBLE_ARRAYS + 3) return refuse_count("solve_impact", DOUBLE_ARRAYS + 3, count);
    Py_buffer buffers[DOUBLE_ARRAYS];
    int held = 0, settled = -1;
    struct impact impact;
    struct problem p;
    struct solution found;
    while (held < DOUBLE_ARRAYS &&
           get_doubles(args[held], held == OUT ? PyBUF_WRITABLE : 0, &buffers[held]))
        held++;
    if (held == DOUBLE_ARRAYS && lapack.dgelsy &&
        read_impact(buffers, args[OUT + 1], args[OUT + 2], args[OUT + 3], &impact, &p))
        settled = solve_impact(&lapack, &p, &impact, &found);
    while (held > 0) PyBuffer_Release(&buffers[--held]);
    PyErr_Clear(); /* Python has its own errors of what does not fit */
    if (settled < 0) Py_RETURN_NONE;
    unsigned char states[MAX_CONTACTS], border[MAX_CONTACTS];
    const int border_count = list_states(&p, &found, states, border);
    return Py_BuildValue("Ny#y#", PyBool_FromLong(settled), states, (Py_ssize_t)p.contacts, border,
                         (Py_ssize_t)border_count);
}

/* Take the address in a capsule of scipy.linalg.cython_lapack, which is named by its signature; NULL
 * with an error, also where lengths are other than int, as of a LAPACK of 64-bit integers. */
static void *take_address(PyObject *capsule) {
    const char *name = PyCapsule_GetName(capsule);
    if (PyErr_Occurred()) return NULL;
    if (!name || !(strstr(name, "(int *") || strstr(name, ", int *"))) {
        PyErr_SetString(PyExc_ValueError, "lengths of LAPACK's function must be int");
        return NULL;
    }
    return PyCapsule_GetPointer(capsule, name);
}

PyDoc_STRVAR(lapack_doc, "set_lapack(dgelsy, dsyev)\n--\n\n"
                         "Set the functions of LAPACK, as scipy.linalg.cython_lapack has them.\n\n"
                         "Args:\n"
                         "    dgelsy: Capsule of the function.\n"
                         "    dsyev: Capsule of the function.\n");

static PyObject *set_lapack(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count != 2) return refuse_count("set_lapack", 2, count);
    void *dgelsy = take_address(args[0]), *dsyev = dgelsy ? take_address(args[1]) : NULL;
    if (!dgelsy || !dsyev) return NULL;
    memcpy(&lapack.dgelsy, &dgelsy, sizeof dgelsy);
    memcpy(&lapack.dsyev, &dsyev, sizeof dsyev);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"solve", (PyCFunction)(void (*)(void))solve, METH_FASTCALL, solve_doc},
    {"prove_unique", (PyCFunction)(void (*)(void))prove_unique, METH_FASTCALL, unique_doc},
    {"solve_impact", (PyCFunction)(void (*)(void))solve_impact_of, METH_FASTCALL, impact_doc},
    {"set_lapack", (PyCFunction)(void (*)(void))set_lapack, METH_FASTCALL, lapack_doc},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        .m_name = "_coulomb",
                                        .m_doc = "Coulomb's law of a few contacts in C.",
                                        .m_size = -1,
                                        .m_methods = functions};

PyMODINIT_FUNC PyInit__coulomb(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
