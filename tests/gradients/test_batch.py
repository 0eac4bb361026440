"""Gradients of many runs: each is that of its member, in this process and in others."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from gradients.systems import falling_ball, loss

from hybridctl.base.errors import InputError, SimulationError
from hybridctl.gradients import RunLoss
from hybridctl.gradients.batch import _SharedRun


def members(count):
    flow, x0, u, p = falling_ball()
    steps = np.arange(count)
    starts = x0 + 0.01 * steps[:, None]
    inputs = u + 0.1 * np.cos(steps)[:, None, None]
    return flow, starts, inputs, p * (1.0 + 0.01 * steps)[:, None]


def assert_each_is_its_own(found, flow, starts, inputs, values):
    for k in range(len(starts)):
        tape = flow.run(starts[k], inputs[k], values[k])
        value, *cotangents = loss(tape)
        wanted = tape.vjp(*cotangents)
        assert found.values[k] == value
        np.testing.assert_array_equal(found.states[k], wanted.state)
        np.testing.assert_array_equal(found.coordinates[k], wanted.coordinates)
        np.testing.assert_array_equal(found.inputs[k], wanted.inputs)
        np.testing.assert_array_equal(found.parameters[k], wanted.parameters)


def test_each_member_has_its_own_gradient():
    flow, *arguments = members(3)
    found = flow.differentiate_batch(loss, *arguments)
    found.check()
    assert_each_is_its_own(found, flow, *arguments)


def test_processes_give_the_same():
    flow, *arguments = members(5)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = flow.differentiate_batch(loss, *arguments, executor=pool)
    assert_each_is_its_own(found, flow, *arguments)


def test_a_process_keeps_the_last_flow_that_it_was_sent():
    """Parts and batches after the first one find the modes that it has made."""
    flow, *_ = members(1)
    same = pickle.dumps(_SharedRun(flow.run))
    assert pickle.loads(same) is pickle.loads(same)
    other = pickle.dumps(_SharedRun(falling_ball(times=(0.1,))[0].run))
    assert pickle.loads(other) is not pickle.loads(same)


def test_runs_change_no_pickled_form():
    """Workers keep the modes of a flow that the parent runs, too, between batches."""
    flow, *given = falling_ball(times=(0.1,), parameters=("friction:slope", "mass:ball"))
    first, nominal = pickle.dumps(flow.run), flow.nominal_parameters
    flow.run(given[0]).vjp(np.ones((1, 4)))
    flow.run(given[0], None, 1.01 * nominal).vjp(np.ones((1, 4)))
    assert pickle.dumps(flow.run) == first


def test_inputs_and_parameters_of_all_members_are_given_once():
    flow, starts, inputs, values = members(2)
    one = flow.differentiate_batch(loss, starts, inputs[0], values[0])
    both = [inputs[0]] * 2, [values[0]] * 2
    other = flow.differentiate_batch(loss, starts, *both)
    np.testing.assert_array_equal(one.inputs, other.inputs)
    np.testing.assert_array_equal(one.parameters, other.parameters)
    nominal = flow.differentiate_batch(loss, starts)
    assert nominal.inputs is None
    assert nominal.parameters.shape == (2, 3)


def test_a_member_that_fails_leaves_the_others():
    """The second start is below the slope: it has no run."""
    flow, starts, inputs, values = members(3)
    starts[1, 1] = -1.0
    found = flow.differentiate_batch(loss, starts, inputs, values)
    assert list(found.errors) == [1]
    assert np.isnan(found.values).tolist() == [False, True, False]
    assert np.isnan(found.states).all(axis=1).tolist() == [False, True, False]
    assert np.isfinite(found.inputs[[0, 2]]).all()
    with pytest.raises(SimulationError, match="1 of 3 members have no gradient; member 1: "):
        found.check()
    starts[:] = starts[1]
    none = flow.differentiate_batch(loss, starts, inputs, values)
    assert len(none.errors) == 3
    assert np.isnan(none.parameters).all()


def test_shapes_are_checked():
    flow, starts, inputs, values = members(2)
    with pytest.raises(InputError, match="x0"):
        flow.differentiate_batch(loss, starts[0], inputs, values)
    with pytest.raises(InputError, match="inputs"):
        flow.differentiate_batch(loss, starts, inputs[:1], values)
    with pytest.raises(InputError, match="one member"):
        flow.differentiate_batch(loss, starts[:0], None, None)


def test_faults_of_the_caller_are_no_errors_of_members():
    flow, starts, inputs, values = members(2)
    for name, wrong in (
        ("inputs", (starts, inputs[:, :-1], values)),
        ("parameters", (starts, inputs, values[:, :-1])),
        ("parameters", (starts, inputs, values + 1j)),
    ):
        with pytest.raises(InputError, match=name):
            flow.differentiate_batch(loss, *wrong)

    def fail(tape):
        return RunLoss(0.0, np.zeros(3))

    with pytest.raises(InputError, match="states of the loss"):
        flow.differentiate_batch(fail, starts, inputs, values)
