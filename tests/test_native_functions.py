"""Functions as machine code, beside their expressions."""

import shutil

import casadi as ca
import numpy as np
import pytest

from hybridctl.compiled import MappedFunction, native, transposed
from hybridctl.errors import InputError


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_compiled_functions_are_the_interpreted_ones(tmp_path, monkeypatch):
    """Up to rounding of sums in another order."""
    monkeypatch.setenv("HYBRIDCTL_CACHE", str(tmp_path))
    x = ca.SX.sym("x", 14)
    made = transposed("rotated", [x], [ca.sin(x) * ca.sumsqr(x), ca.jacobian(ca.cos(x), x)])
    both = [MappedFunction(each, [(14,), (14, 14)]) for each in (made, native(made))]
    states = np.random.default_rng(0).normal(size=(10, 14))
    for exact, found in zip(*(each(states) for each in both), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-12)
    (library,) = tmp_path.glob("*.so")
    written = library.stat().st_mtime_ns
    native(made)
    assert library.stat().st_mtime_ns == written


def test_without_a_compiler_functions_cannot_be_compiled(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(InputError, match="C compiler"):
        native(transposed("one", [ca.SX.sym("x")], [ca.SX(1.0)]))
