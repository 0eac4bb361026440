"""Functions that become machine code while they are called."""

import os
import shutil
import sys
import threading
import time
from itertools import count

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import cube

import hybridctl as hc
from hybridctl.base import compilable
from hybridctl.base.compilable import CompilableFunction
from hybridctl.base.function_cache import load_or_build, make_key
from hybridctl.mechanics import contact_system
from hybridctl.symbolic import compiled_function
from hybridctl.symbolic.compiled_function import BatchedFunction, CompiledFunction

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """A folder of its own for kept functions, and compilation as users have it."""
    monkeypatch.setenv("HYBRIDCTL_CACHE", str(tmp_path))
    monkeypatch.delenv("HYBRIDCTL_COMPILE", raising=False)
    return tmp_path


def spiral(name="spiral"):
    """A function of two columns: a sum of sines and products, and their derivatives."""

    def build():
        x, p = ca.SX.sym("x", 3), ca.SX.sym("p", 2)
        made = p[0] * ca.sin(x) * ca.sumsqr(x) + ca.exp(-p[1] * x) / 3.0
        return ca.Function(name, [x, p], [made, ca.jacobian(made, x)])

    return load_or_build(make_key(name), build)


def wait_for(condition):
    """Wait until a condition is true; the test fails if it is not within five minutes."""
    end = time.monotonic() + 300.0
    while not condition():
        assert time.monotonic() < end, "nothing has happened for five minutes"
        time.sleep(0.02)


def compile_and_wait(function):
    """Have a function compiled in the background, and wait until that process has ended."""
    function.compile_in_background()
    wait_for(lambda: not compilable._is_busy())


def test_a_function_changes_to_machine_code_while_it_is_called(kept, monkeypatch):
    """Its results are the same before and after, to the bit, at one point and at many."""
    monkeypatch.setattr(compiled_function, "_FIRST_CHECK", 3)
    monkeypatch.setattr(compiled_function, "_NEXT_CHECK", 2)
    monkeypatch.setattr(compiled_function, "_SHARE_OF_COMPILATION", 0.0)
    values, shapes = np.array([0.7, 0.3]), [(3,), (3, 3)]
    points = np.random.default_rng(0).normal(size=(300, 3))
    exact = BatchedFunction(spiral(), shapes, values)(points)
    single = CompiledFunction(CompilableFunction(spiral()), shapes, values.copy())
    wide = BatchedFunction(CompilableFunction(spiral()), shapes, values.copy())
    for k, point in enumerate(points):
        for one, other in zip(single(point), exact, strict=True):
            np.testing.assert_array_equal(one, other[k])
        if k == 100:
            wait_for(lambda: not compilable._is_busy())
    assert list(kept.glob("*.so"))
    for _ in range(2):  # the second time by machine code
        for one, other in zip(wide(points), exact, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_function_is_compiled_after_a_share_of_the_time_that_this_takes(monkeypatch):
    """An evaluation of four points takes 1 ms by this clock, and compilation 1 s.

    So 0.06 s are spent after 240 points, and the first look after that is at the 300th.
    """
    ticks, calls, begun = count(), 0, []
    monkeypatch.setattr(compiled_function, "_FIRST_CHECK", 100)
    monkeypatch.setattr(compiled_function, "_NEXT_CHECK", 100)
    monkeypatch.setattr(compiled_function, "_SHARE_OF_COMPILATION", 0.06)
    monkeypatch.setattr(compiled_function, "perf_counter", lambda: 1e-3 * next(ticks))
    monkeypatch.setattr(CompilableFunction, "compilation_time", 1.0)
    monkeypatch.setattr(CompilableFunction, "compile_in_background", lambda _: begun.append(calls))
    wide = CompiledFunction(CompilableFunction(spiral(), 4), [(4, 3), (4, 3, 3)], np.ones(8))
    while not begun:
        calls += 1
        wide(np.ones(12))
    assert begun == [75]


def test_a_toss_is_the_same_to_the_bit_while_its_functions_change(kept, monkeypatch):
    """States, times and gradients of runs before functions are compiled, amid that, and after."""
    parameters = cube.CubeParameters()
    start = np.array([0, 0, 0.15, 0.1, 0.05, 0.02, 0.99, 0.5, 0.0, 0.0, 1.0, 2.0, 0.5])
    start[3:7] /= np.linalg.norm(start[3:7])

    def run(terms):
        tossed = contact_system(cube.robot(parameters), cube.contacts(parameters), terms=terms)
        names = ("friction", "mass:cube")
        flow = hc.differentiable(tossed, ("open",) * 8, (0.0, 0.2), parameters=names, kink="mean")
        tape = flow.run(start)
        gradient = tape.vjp(tape.states)
        times = [event.time for event in tape.trajectory.events]
        return np.concatenate((times, tape.states[-1], gradient.state, gradient.parameters))

    exact = run("generated")
    monkeypatch.setattr(compiled_function, "_FIRST_CHECK", 2)
    monkeypatch.setattr(compiled_function, "_NEXT_CHECK", 2)
    monkeypatch.setattr(compiled_function, "_SHARE_OF_COMPILATION", 0.0)
    for _ in range(4):
        np.testing.assert_array_equal(run("auto"), exact)
    wait_for(lambda: not compilable._is_busy())
    assert list(kept.glob("*.so"))
    np.testing.assert_array_equal(run("native"), exact)


def test_one_process_compiles_a_function_of_several(kept):
    function = CompilableFunction(spiral())
    mark = next(kept.glob("*.casadi")).with_suffix(".compiling")
    mark.touch()  # as by another process that compiles it
    compile_and_wait(function)
    assert not list(kept.glob("*.so"))
    old = time.time() - 2.0 * compilable._MARK_AGE  # it was killed
    os.utime(mark, (old, old))
    compile_and_wait(function)
    assert function.find_machine_code() is not None


def test_threads_have_one_function_compiled_at_a_time(kept):
    functions = [CompilableFunction(spiral(f"spiral_{k}")) for k in range(12)]
    threads = [threading.Thread(target=each.compile_in_background) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compilable._running) == 1
    wait_for(lambda: not compilable._is_busy())
    assert len(list(kept.glob("*.so"))) == 1


def test_a_compiler_that_fails_is_not_asked_again(kept, monkeypatch, caplog):
    compiler = kept / "failing-cc"
    compiler.write_text(f"#!/bin/sh\necho asked >> {kept / 'log'}\nexit 1\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    function = CompilableFunction(spiral())
    for _ in range(2):
        compile_and_wait(function)
    assert (kept / "log").read_text() == "asked\n"
    assert "spiral is not compiled for now" in caplog.text
    assert function.find_machine_code() is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("HYBRIDCTL_COMPILE", "off"), ("HYBRIDCTL_CACHE", "off"), ("CC", "no-such-compiler")],
)
def test_nothing_is_compiled_where_that_is_not_wanted_or_not_possible(
    kept, monkeypatch, name, value
):
    function = CompilableFunction(spiral())
    monkeypatch.setenv(name, value)
    compile_and_wait(function)
    assert function.find_machine_code() is None
    assert not [*kept.glob("*.so"), *kept.glob("*.compiling")]


@pytest.mark.parametrize(
    ("name", "value"), [("executable", ""), ("executable", "/opt/host/bin/host"), ("frozen", True)]
)
def test_nothing_is_compiled_where_python_cannot_be_started(kept, monkeypatch, name, value):
    """A frozen program, or one that embeds Python, would start itself anew."""
    function = CompilableFunction(spiral())
    monkeypatch.setattr(sys, name, value, raising=False)
    compile_and_wait(function)
    assert not list(kept.glob("*.compiling"))


def test_nothing_is_compiled_while_that_is_paused(kept):
    function = CompilableFunction(spiral())
    with compilable.pause_compilation():
        compile_and_wait(function)
    assert not list(kept.glob("*.compiling"))
    compile_and_wait(function)
    assert function.find_machine_code() is not None


@pytest.mark.parametrize("setting", ["all", "often"])
def test_functions_are_compiled_at_their_first_call_where_that_is_asked_for(
    kept, monkeypatch, setting
):
    """A short run calls none of them often enough otherwise."""
    monkeypatch.setenv("HYBRIDCTL_COMPILE", setting)
    parameters = cube.CubeParameters()
    tossed = contact_system(cube.robot(parameters), cube.contacts(parameters)[:1])
    start = np.array([0, 0, 0.3, 0, 0, 0, 1.0, 0, 0, 0, 0, 0, 0])
    hc.simulate(tossed, ("open",), start, (0.0, 0.01))
    assert bool(list(kept.glob("*.so"))) == (setting == "all")
