"""Drops of public robots with and without the compiled kernel, by a run at tolerances of 1e-11.

All 160 take half an hour or more of one core; a few of them run among the slow tests.
"""

import warnings
from itertools import product

import numpy as np
import pytest
from hybridctl.robots import public

import hybridctl as hc
from hybridctl.base.errors import HybridctlWarning, ZenoError
from hybridctl.mechanics.kernel.extension import is_kernel_available
from hybridctl.mechanics.system import contact_system

pytestmark = [
    pytest.mark.skipif(not is_kernel_available(), reason="there is no compiled kernel"),
    pytest.mark.slow,
]

ROBOTS = ("solo12", "go1", "go2", "a1", "b1", "anymal", "hyq", "bolt", "talos", "icub")
DROPS = list(product(ROBOTS, ("springs", "limp"), (0.05, 0.3), (0.0, 0.15), ("raise", "rest")))
END = 0.5
# Errors below this are rounding of contacts that come and go: 100 tolerances of a run.
LEAST_ERROR = 1e-7
FEW = [drop for drop in DROPS if drop[0] in ("solo12", "bolt") and drop[2] == 0.05]


def drop_robot(drop, kernel, tolerance):
    """The last state of a run."""
    name, kind, height, tilt, on_zeno = drop
    robot = public.robot(name) if kind == "springs" else public.limp(name)
    contacts = public.contacts(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridctlWarning)
        run = hc.simulate(
            contact_system(robot, contacts, kernel=kernel),
            ("open",) * len(contacts),
            public.start(name, height, tilt, tilt),
            (0.0, END),
            on_zeno=on_zeno,
            rtol=tolerance,
            atol=tolerance,
        )
    return run.final_state


def check_drop(drop):
    """Compare the errors of both, and return them.

    The error of Python is the larger one of two tolerances: of a limp bolt a foot that touches
    for a moment changes the state by 9e-5, and whether it does changes with the tolerance, for
    Python as for the kernel.
    """
    try:
        exact, *found = (drop_robot(drop, "off", tolerance) for tolerance in (1e-11, 1e-9, 3e-10))
    except ZenoError as error:
        # Of limp quadrupeds three feet bounce in turn, in windows that shrink to a tenth and less
        # each time. Rounding decides whether a run gets past their end; with "rest" all do.
        if drop[-1] != "raise" or not error.steady:
            raise
        pytest.skip("bounces accumulate, where the run asks for an error")
    found.append(drop_robot(drop, "auto", 1e-9))  # bounces that accumulate here alone are an error
    *of_both, of_kernel = (float(np.abs(state - exact).max()) for state in found)
    of_python = max(of_both)
    assert of_kernel <= 10.0 * max(of_python, LEAST_ERROR), (drop, of_kernel, of_python)
    return of_kernel, of_python


@pytest.mark.parametrize("drop", FEW, ids=str)
def test_drops_have_the_states_of_python(drop):
    check_drop(drop)


@pytest.mark.long
@pytest.mark.parametrize("drop", [drop for drop in DROPS if drop not in FEW], ids=str)
def test_all_drops_have_the_states_of_python(drop):
    check_drop(drop)
