/* What the files of the Python type share: its object, and checks of arrays. */
#ifndef HYBRIDCTL_MODULE_H
#define HYBRIDCTL_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "contact_kernel.h"

enum { TERM_ARRAYS = 9, MAX_SIZE = 4096 };

typedef struct {
    PyObject_HEAD
    struct kernel kernel;
    Py_buffer term_arrays[TERM_ARRAYS]; /* those of struct terms, in its order */
    int held_arrays;                    /* how many of them are held */
    Py_buffer tableau;                  /* struct tableau */
    PyObject *owner;                    /* keeps the function of the terms alive */
    PyObject *python_mode;              /* (x, u, with_guards) -> rate, guards; as bytes in */
    double *memory;                     /* scratch of the equations, and the arrays below */
    double *derivative_memory;          /* scratch of derivatives, NULL until they are asked for */
    double *variational_memory;         /* likewise, of steps with their transition matrix */
    double *rate;                       /* scratch of one call (nx,) */
    /* The end of the last step: state and input, rate and guards; a step from there has no need to
     * evaluate them. They are compared to the bit, so that whoever asks gets the same numbers. */
    int has_last;
    double *last_x, *last_u, *last_rate, *last_guards;
} KernelObject;

/* An argument of a call: an array of doubles. */
struct argument {
    PyObject *object;
    Py_ssize_t count;
    int writable;
    const char *name;
};

/* module.c */
int take_doubles(PyObject *object, Py_ssize_t count, int writable, const char *name,
                 Py_buffer *buffer);
int take_arguments(const struct argument *arguments, int count, Py_buffer *buffers);
void release_all(Py_buffer *buffers, int count);
PyObject *refuse_count(const char *name, Py_ssize_t wanted, Py_ssize_t given);
int *copy_indices(PyObject *object, int limit, const char *name, int *count);

/* module_derivatives.c */
PyObject *kernel_set_tree(KernelObject *self, PyObject *args, PyObject *keywords);
PyObject *kernel_differentiate(KernelObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *kernel_differentiate_terms(KernelObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *kernel_variational_step(KernelObject *self, PyObject *const *args, Py_ssize_t count);
void free_tree(struct tree *tree);
extern const char set_tree_doc[], differentiate_doc[], differentiate_terms_doc[],
    variational_step_doc[];

#endif
