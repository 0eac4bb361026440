"""Central differences on a manifold, over a range of steps: the V-curve of a derivative test.

With exact derivatives the relative error falls as h^2 until rounding, about eps / h, takes over;
its least value is near eps^(2/3) = 4e-11 for functions of unit scale. A wrong derivative leaves
an error that does not depend on h.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STEPS = 10.0 ** np.arange(-2.0, -6.0, -1.0)


def central(f: Callable[[Array], Array], n: int, h: float) -> Array:
    """Jacobian (m, n) of f at 0, column by column."""
    return np.array([(f(h * e) - f(-h * e)) / (2.0 * h) for e in np.eye(n)]).T


def v_curve(f: Callable[[Array], Array], jacobian: Array) -> Array:
    """Relative error of a Jacobian at 0 against differences, for each of `STEPS`."""
    scale = max(float(np.abs(jacobian).max()), 1.0)
    return np.array(
        [np.abs(central(f, jacobian.shape[1], h) - jacobian).max() / scale for h in STEPS]
    )


def assert_derivative(
    f: Callable[[Array], Array], jacobian: Array, tolerance: float = 1e-7
) -> None:
    """The bottom of the V is below `tolerance`, and its left arm does not grow towards it."""
    errors = v_curve(f, jacobian)
    assert errors.min() <= tolerance, f"errors {errors} over steps {STEPS}"
    if errors[0] > 1e-6:
        assert errors[1] < 0.3 * errors[0] or errors[2] < 0.03 * errors[0]
