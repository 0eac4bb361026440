"""Experiments: each builds a system, runs it, checks a claim, and leaves a folder of results.

An experiment is a module with a line `SUMMARY`, a frozen dataclass `Config`, a function
`quick(config)` that returns a cheaper one, and `run(config, folder, console)` that returns what
summary.json holds. It is found by its entry point, see `hybridctl.base.plugins`.
"""
