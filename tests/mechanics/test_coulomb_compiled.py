"""Coulomb's law in C against the same in Python, at random problems and at the limits of C."""

import ctypes
import os
import subprocess
import sys
import types
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest

from hybridctl.base.errors import HybridctlError
from hybridctl.mechanics.contact_law import compiled, solver
from hybridctl.mechanics.contact_law.law import CoulombProblem, scale_problem
from hybridctl.mechanics.contact_law.uniqueness import is_provably_unique

# Not by what `compiled` has loaded: an extension that it refuses by mistake is to be seen.
pytestmark = pytest.mark.skipif(
    find_spec("hybridctl.mechanics.contact_law._coulomb") is None
    or os.environ.get("HYBRIDCTL_KERNEL") == "off",
    reason="no compiled extension",
)
ROUNDING = 1e-10
"""Dimensionless: rounding, 1e-16, times the condition of Newton's equations, which are accepted up
to 1e11, but are below 1e6 in these problems (the worst difference is 2e-14)."""


def make_problems(count, seed=1):
    """Yield random problems: one to six contacts, redundant or not, at rest or sliding."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        k = int(rng.integers(1, 7))
        sizes = rng.integers(0, 3, size=k).tolist() if number % 2 else [2] * k
        ends = np.cumsum([k, *sizes])
        tangents = tuple(np.arange(a, b) for a, b in pairwise(ends))
        rows = rng.normal(size=(ends[-1], rng.integers(3, 10)))
        rows[k:] *= rng.uniform(0.1, 1.0)
        free = rows @ rng.normal(size=rows.shape[1])
        kinetic = rng.uniform(0.0, 0.9, size=k)
        static = kinetic * 1.3 if number % 5 == 4 else kinetic
        slides = rng.random(k) < (0.0 if number % 3 == 0 else 0.3)
        ways = [rng.normal(size=size) for size in sizes]
        sliding = tuple(
            w / np.linalg.norm(w) if len(w) and s else None
            for w, s in zip(ways, slides, strict=True)
        )
        scale = 10.0 ** rng.uniform(-3.0, 3.0)
        yield CoulombProblem(
            scale * rows @ rows.T, free, tangents, static, kinetic, sliding, rng.uniform(0.0, 3.0)
        )


def solve_in_python(problem):
    """Return the reference's solution, None where it has none or several."""
    try:
        return solver._solve_in_python(problem)
    except HybridctlError:
        return None


def test_solutions_are_those_of_python():
    settled = 0
    for problem in make_problems(300):
        found = compiled.search_compiled(problem, solver.MAX_ENUMERATED_SETS)
        if found is None:
            continue
        settled += 1
        expected = solve_in_python(problem)
        assert (found.modes, found.border, found.uniqueness) == (
            expected.modes,
            expected.border,
            expected.uniqueness,
        )
        _, units = scale_problem(problem)
        np.testing.assert_allclose(
            found.forces / units.forces, expected.forces / units.forces, rtol=0.0, atol=ROUNDING
        )
        np.testing.assert_allclose(
            found.rates / units.rates, expected.rates / units.rates, rtol=0.0, atol=ROUNDING
        )
        for own, other in zip(found.directions, expected.directions, strict=True):
            assert (own is None) == (other is None)
            if own is not None:
                # Turned by rounding of a slip, which is at least the boundary's 1e-9.
                np.testing.assert_allclose(own, other, atol=1e-5)
        assert found.residual <= 1e-9
    assert settled > 150  # most problems are settled in C


def test_uniqueness_is_proven_where_python_proves_it():
    proven = 0
    for problem in make_problems(500, seed=2):
        expected = is_provably_unique(scale_problem(problem)[0])
        assert compiled.is_problem_unique(problem) == expected
        proven += expected
    assert 100 < proven < 400  # both answers occur


def test_what_c_does_not_cover_is_left_to_python():
    problem = next(p for p in make_problems(9) if compiled.search_compiled(p, 64) is not None)
    k = len(problem.static)
    narrow = tuple(rows.astype(np.int32) for rows in problem.tangents)
    many = 13
    large = CoulombProblem(
        np.eye(many),
        -np.ones(many),
        (np.zeros(0, dtype=np.intp),) * many,
        np.zeros(many),
        np.zeros(many),
        (None,) * many,
    )
    for other in (
        large,
        replace(problem, tangents=narrow),
        replace(problem, static=problem.static.astype(np.float32)),
        replace(problem, free=np.append(problem.free, 0.0)),
        replace(problem, free=np.full_like(problem.free, np.nan)),
        replace(problem, tangents=tuple(rows + 100 for rows in problem.tangents)),
        replace(problem, sliding=(np.ones(3),) * k),
    ):
        assert compiled.search_compiled(other, 64) is None
    assert solver.solve(large).forces == pytest.approx(np.ones(many))
    assert compiled.is_problem_unique(large)
    strided = replace(problem, free=np.repeat(problem.free, 2)[::2])
    np.testing.assert_array_equal(
        compiled.search_compiled(strided, 64).forces, compiled.search_compiled(problem, 64).forces
    )


def test_it_is_turned_off_with_the_kernel():
    code = (
        "from hybridctl.mechanics.contact_law import compiled\nassert compiled._EXTENSION is None"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HYBRIDCTL_KERNEL": "off"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_an_extension_that_is_missing_or_of_another_version_is_not_used(monkeypatch):
    assert compiled._load_extension() is compiled._EXTENSION is not None
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_INTERFACE", compiled._INTERFACE + 1)
        assert compiled._load_extension() is None

    def refuse(name, package):
        raise ImportError(name)

    monkeypatch.setattr(compiled, "import_module", refuse)
    assert compiled._load_extension() is None


def test_a_lapack_of_other_integers_is_not_used(monkeypatch):
    """Capsules are named by the signatures of their functions."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    name = b"void (int64_t *, int64_t *, double *)"
    capsule = make(1, name, None)
    wide = types.SimpleNamespace(__pyx_capi__={"dgelsy": capsule, "dsyev": capsule})
    monkeypatch.setattr(compiled, "cython_lapack", wide)
    assert compiled._load_extension() is None


def test_without_the_extension_the_law_is_the_same(monkeypatch):
    """As where hybridctl was installed without a compiler: all is Python's."""
    problems = list(make_problems(60, seed=3))

    def solve_all():
        for problem in problems:
            try:
                found = solver.solve(problem)
            except HybridctlError as error:
                found = type(error)
            yield found, compiled.is_problem_unique(problem)

    with_extension = list(solve_all())
    monkeypatch.setattr(compiled, "_EXTENSION", None)
    assert all(compiled.search_compiled(problem, 64) is None for problem in problems)
    for problem, own, other in zip(problems, with_extension, solve_all(), strict=True):
        assert own[1] == other[1]
        if isinstance(own[0], type):
            assert own[0] is other[0]
            continue
        _, units = scale_problem(problem)
        difference = (own[0].forces - other[0].forces) / units.forces
        np.testing.assert_allclose(difference, 0.0, atol=ROUNDING)
        assert (own[0].modes, own[0].uniqueness) == (other[0].modes, other[0].uniqueness)
