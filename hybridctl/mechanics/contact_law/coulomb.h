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
/* Of an impact, which has rows of contacts that take no part as well. */
enum { MAX_VELOCITIES = 48, MAX_ALL_ROWS = 96 };

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

/* An impact: the data of impact.solve_impact, and its result. Pointers are borrowed. */
struct impact {
    int velocities, all_rows, all_contacts; /* nv, R, c; the law has `problem.rows` of R */
    const double *mass, *jacobian, *rates, *velocity; /* M (nv, nv), J (R, nv), J v (R,), v (nv,) */
    const double *restitution, *threshold;            /* (R,) */
    int owner[MAX_ALL_ROWS], rows[MAX_ROWS];          /* contact of all rows; rows of the law */
    /* Out: diagonal of E (R,), v+ (nv,), normal (c,) and friction impulses (c, 2) of all contacts,
     * J v+ (r,) of the law's rows, energy loss (1,). */
    double *selected, *after, *normal, *friction, *rates_after, *energy_loss;
};

/* coulomb.c */
void scale_problem(const struct problem *given, struct problem *plain, double *force_units,
                   double *rate_units);
int search_solution(const struct lapack *lapack, const struct problem *plain,
                    const double *norm_factors, struct solution *found);
int settle_problem(const struct lapack *lapack, const struct problem *given,
                   struct solution *found);

/* coulomb_uniqueness.c */
int is_provably_unique(const struct lapack *lapack, const struct problem *plain);

/* coulomb_impact.c */
int solve_impact(const struct lapack *lapack, struct problem *p, struct impact *impact,
                 struct solution *found);

#endif
