/* Coulomb's law of a few contacts in C: what `solver.solve` does most often.
 *
 * Newton's method and the conditions of uniqueness follow newton.py, law.py and uniqueness.py step
 * by step; these have the mathematics, and tests compare both. Matrices are stored by rows. Row i
 * is the normal of contact i.
 */
#ifndef HYBRIDCTL_COULOMB_H
#define HYBRIDCTL_COULOMB_H

#include <stddef.h>

/* Larger problems are left to Python, where LAPACK is as fast. */
enum { MAX_CONTACTS = 12, MAX_ROWS = 3 * MAX_CONTACTS };

/* States of a contact, in the order of `law.ContactState`. */
enum state { OPEN, CLOSED, STICK, SLIP, SLIP_PLUS, SLIP_MINUS };

/* The problem of law.CoulombProblem. */
struct problem {
    int contacts, rows;
    int tangents[MAX_CONTACTS][2]; /* tangent rows of each contact */
    int tangent_count[MAX_CONTACTS];
    int slides[MAX_CONTACTS];           /* whether it slides already, along `sliding` */
    double sliding[MAX_CONTACTS][2];    /* unit direction */
    double friction_static[MAX_CONTACTS], friction_kinetic[MAX_CONTACTS];
    double delassus[MAX_ROWS * MAX_ROWS]; /* G (rows, rows) */
    double free[MAX_ROWS];                /* b (rows,) */
    double magnitude;
};

/* The solution of law.CoulombSolution. */
struct solution {
    double forces[MAX_ROWS], rates[MAX_ROWS];
    enum state states[MAX_CONTACTS];
    int has_direction[MAX_CONTACTS], on_border[MAX_CONTACTS];
    double directions[MAX_CONTACTS][2];
    double residual, rate_residual;
};

/* Functions of LAPACK, by the addresses that scipy gives; lengths are int. */
struct lapack {
    void (*dgelsy)(int *m, int *n, int *nrhs, double *a, int *lda, double *b, int *ldb, int *jpvt,
                   double *rcond, int *rank, double *work, int *lwork, int *info);
    void (*dsyev)(char *jobz, char *uplo, int *n, double *a, int *lda, double *w, double *work,
                  int *lwork, int *info);
};

/* coulomb.c */
void scale_problem(const struct problem *given, struct problem *plain, double *force_units,
                   double *rate_units);
int search_solution(const struct lapack *lapack, const struct problem *plain,
                    const double *norm_factors, struct solution *found);

/* coulomb_uniqueness.c */
int is_provably_unique(const struct lapack *lapack, const struct problem *plain);

#endif
