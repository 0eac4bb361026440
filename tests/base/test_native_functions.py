"""Functions as machine code, beside their expressions."""

import shutil

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import five_link

from hybridctl.base.errors import InputError
from hybridctl.base.function_cache import compile_function
from hybridctl.hybrid.laws import HeldInput
from hybridctl.hybrid.model import Diffusion, StepRequest
from hybridctl.symbolic.compiled_function import BatchedFunction, build_transposed_function

compiled = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@compiled
def test_compiled_functions_are_the_interpreted_ones(tmp_path, monkeypatch):
    """Up to rounding of sums in another order."""
    monkeypatch.setenv("HYBRIDCTL_CACHE", str(tmp_path))
    x = ca.SX.sym("x", 14)
    made = build_transposed_function(
        "rotated", [x], [ca.sin(x) * ca.sumsqr(x), ca.jacobian(ca.cos(x), x)]
    )
    both = [BatchedFunction(each, [(14,), (14, 14)]) for each in (made, compile_function(made))]
    states = np.random.default_rng(0).normal(size=(10, 14))
    for exact, found in zip(*(each(states) for each in both), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-12)
    (library,) = tmp_path.glob("*.so")
    written = library.stat().st_mtime_ns
    compile_function(made)
    assert library.stat().st_mtime_ns == written


def test_without_a_compiler_functions_cannot_be_compiled(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(InputError, match="C compiler"):
        compile_function(build_transposed_function("one", [ca.SX.sym("x")], [ca.SX(1.0)]))


@compiled
def test_native_terms_are_the_generated_ones(tmp_path, monkeypatch):
    """A walker in mid-step: terms, field, guards, their derivatives, and steps, up to rounding."""
    monkeypatch.setenv("HYBRIDCTL_CACHE", str(tmp_path))
    random = np.random.default_rng(1)
    x, u = 0.3 * random.normal(size=14), random.normal(size=4)
    ahead = StepRequest(0.0, x, 0.01, 1e-9, 1e-9)
    found = []
    for terms in ("generated", "native"):
        walker = five_link.system(terms=terms)
        mode = walker.mode(five_link.LEFT_STANCE)
        point, law = mode.calc(0.0, x, u), HeldInput(u)
        step, varied = mode.step(ahead, law), mode.transition(ahead, u)
        noisy = mode.transition(ahead, u, Diffusion(np.eye(14), np.eye(4), 0.0))
        of_guards = point.guard_jacobian
        found.append([
            point.field, point.guards, of_guards.state, of_guards.input,
            step.states, step.guards, step.bounds, varied.state, varied.matrix, noisy.noise,
            *walker.dynamics.terms.values(x[:7], x[7:], u),
            *walker.dynamics.terms.derivatives(x[:7], x[7:], x[:7], np.ones(4)),
            *walker.dynamics.terms.impulse_derivatives(x[:7], x[7:], np.ones(4)),
        ])  # fmt: skip
        assert len(list(tmp_path.glob("*.so"))) == (8 if terms == "native" else 0)
    for exact, native_one in zip(*found, strict=True):
        size = np.abs(exact).max()
        np.testing.assert_allclose(native_one, exact, rtol=0.0, atol=1e-12 * size)


def test_native_terms_need_a_compiler(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(InputError, match="C compiler"):
        five_link.system(terms="native")
