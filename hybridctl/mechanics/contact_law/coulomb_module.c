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

enum {
    INTERFACE = 2, /* compiled._INTERFACE */
    /* Newton steps up to which a solution that is not proven unique is returned, if no contact is
     * on a boundary: of 80,000 random problems 17 had another solution in Python, which rounding
     * chose there, too; all had more sets of states than are tried. On a boundary
     * rounding chooses the states in which forces of redundant contacts are of least norm. */
    MAX_REPEATABLE_STEPS = 8
};

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

/* Copy the tangent rows of a contact, each in [first, rows); returns their number, or -1. */
static int copy_tangents(PyObject *object, int first, int rows, int *to) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)) return -1;
    Py_ssize_t size = buffer.len / (Py_ssize_t)sizeof(Py_ssize_t);
    int good = buffer.itemsize == sizeof(Py_ssize_t) && size <= 2 && buffer.format &&
               strlen(buffer.format) == 1 && strchr("lqn", buffer.format[0]);
    for (Py_ssize_t j = 0; good && j < size; j++) {
        Py_ssize_t row = ((const Py_ssize_t *)buffer.buf)[j];
        good = first <= row && row < rows;
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
        const int count = copy_tangents(PyTuple_GET_ITEM(args[2], i), k, p->rows, p->tangents[i]);
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
    struct problem given, plain;
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
    double forces[MAX_ROWS], rates[MAX_ROWS], factors[MAX_ROWS], largest = 0.0, *out = results.buf;
    struct solution found;
    scale_problem(&given, &plain, forces, rates);
    for (int i = 0; i < n; i++)
        if (forces[i] > largest) largest = forces[i];
    for (int i = 0; i < n; i++) factors[i] = forces[i] / largest;
    int steps = search_solution(&lapack, &plain, factors, &found);
    int is_unique = steps >= 0 && is_provably_unique(&lapack, &plain);
    int solved = is_unique || (0 <= steps && steps <= MAX_REPEATABLE_STEPS);
    for (int i = 0; !is_unique && i < k; i++) solved = solved && !found.on_border[i];
    for (int i = 0; solved && i < n; i++) {
        out[i] = forces[i] * found.forces[i];
        out[n + i] = rates[i] * found.rates[i];
    }
    if (solved) {
        memcpy(out + 2 * n, found.directions, (size_t)(2 * k) * sizeof(double));
        out[2 * n + 2 * k] = found.residual;
        out[2 * n + 2 * k + 1] = found.rate_residual;
    }
    PyBuffer_Release(&results);
    if (!solved) Py_RETURN_NONE;
    unsigned char states[MAX_CONTACTS], slides[MAX_CONTACTS], border[MAX_CONTACTS];
    int border_count = 0;
    for (int i = 0; i < k; i++) {
        states[i] = (unsigned char)found.states[i];
        slides[i] = (unsigned char)found.has_direction[i];
        if (found.on_border[i]) border[border_count++] = (unsigned char)i;
    }
    return Py_BuildValue("Ny#y#y#", PyBool_FromLong(is_unique), states, (Py_ssize_t)k, slides,
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
