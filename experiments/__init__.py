"""Experiments: each builds a system, runs it, checks a claim, and leaves a folder of results.

An experiment is a module with a line `SUMMARY`, a frozen dataclass `Config`, a function
`quick(config)` that returns a cheaper one, and `run(config, folder, console)` that returns what
summary.json holds. Its docstring begins with the claim. It is found by its entry point, see
`hybridctl.base.plugins`.

Experiments of one kind share a runner: `contacts.closed_form` for motions that are known in closed
form, `convergence` for errors over the size of their cause, `cube_filter.score` for filters on
tosses, `optimal.lqr` for the jumps of a design, `runners` for tables of named records, samples of
relaxed runs and standard errors, `figures` for curves.
"""
