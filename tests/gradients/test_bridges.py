"""Runs in PyTorch and JAX: the checks of these libraries, and each against the other."""

import sys

import numpy as np
import pytest
from gradients.systems import falling_ball

import hybridctl as hc
from hybridctl.base.errors import InputError


@pytest.fixture
def torch():
    library = pytest.importorskip("torch")
    library.set_num_threads(1)
    return library


@pytest.fixture
def jax():
    library = pytest.importorskip("jax")
    library.config.update("jax_enable_x64", True)
    yield library
    library.config.update("jax_enable_x64", False)


def tensors(torch, *arrays):
    return [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]


def test_torch_gradcheck(torch):
    flow, *arguments = falling_ball(events=3)
    run = hc.torch.rollout(flow)

    def results(*given):
        found = run(*given)
        return found.states, found.event_times

    inputs = tensors(torch, *arguments)
    assert torch.autograd.gradcheck(results, inputs, eps=1e-6, atol=1e-5, rtol=1e-4)


def test_jax_check_grads(jax):
    from jax.test_util import check_grads

    flow, *arguments = falling_ball(events=3)
    run = hc.jax.rollout(flow)

    def results(*given):
        return tuple(run(*given))[:2]

    check_grads(results, arguments, order=1, modes=["rev"], eps=1e-6, atol=1e-4, rtol=1e-4)


def test_torch_and_jax_agree(torch, jax):
    flow, *arguments = falling_ball()
    inputs = tensors(torch, *arguments)
    loss = (hc.torch.rollout(flow)(*inputs).states ** 2).sum()
    loss.backward()
    run = hc.jax.rollout(flow)
    by = jax.grad(lambda *given: (run(*given).states ** 2).sum(), (0, 1, 2))
    for tensor, array in zip(inputs, jax.jit(by)(*arguments), strict=True):
        np.testing.assert_allclose(tensor.grad.numpy(), array, rtol=1e-13)


def test_single_precision_goes_in_and_comes_out(torch, jax):
    flow, *arguments = falling_ball()
    exact = flow.run(*(np.float64(np.float32(a)) for a in arguments)).states
    singles = [torch.tensor(a, dtype=torch.float32, requires_grad=True) for a in arguments]
    states = hc.torch.rollout(flow)(*singles).states
    states.sum().backward()
    assert states.dtype == singles[0].grad.dtype == torch.float32
    np.testing.assert_allclose(states.detach().numpy(), exact, rtol=1e-6)
    run, given = hc.jax.rollout(flow), [np.float32(a) for a in arguments]
    assert run(*given).states.dtype == np.float32
    assert jax.grad(lambda x: run(x, *given[1:]).states.sum())(given[0]).dtype == np.float32


def test_vmap_runs_one_member_after_the_other(torch, jax):
    flow, x0, u, p = falling_ball()
    starts = x0 + 0.01 * np.arange(3)[:, None]
    by_one = [flow.run(x, u, p) for x in starts]
    wanted = [tape.vjp(2.0 * tape.states).state for tape in by_one]

    run = hc.torch.rollout(flow)
    _, held, values = tensors(torch, x0, u, p)
    loss = torch.func.grad(lambda x: (run(x, held, values).states ** 2).sum())
    found = torch.func.vmap(loss)(torch.tensor(starts))
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-12)

    run_jax = hc.jax.rollout(flow)
    by = jax.grad(lambda x: (run_jax(x, u, p).states ** 2).sum())
    np.testing.assert_allclose(jax.vmap(by)(starts), wanted, rtol=1e-12)


def test_second_derivatives_are_refused(torch, jax):
    flow, *arguments = falling_ball()
    run, (x0, u, p) = hc.torch.rollout(flow), tensors(torch, *arguments)
    (first,) = torch.autograd.grad((run(x0, u, p).states ** 2).sum(), x0, create_graph=True)
    with pytest.raises(InputError, match="no second derivative"):
        first.sum().backward()
    run_jax = hc.jax.rollout(flow)
    first = jax.grad(lambda x: (run_jax(x, *arguments[1:]).states ** 2).sum())
    with pytest.raises(InputError, match="no second derivative"):
        jax.grad(lambda x: first(x).sum())(arguments[0])


def test_events_that_did_not_happen_are_masked(torch, jax):
    flow, *arguments = falling_ball(events=20)
    inputs = tensors(torch, *arguments)
    found = hc.torch.rollout(flow)(*inputs)
    count = len(flow.run(*arguments).trajectory.guard_events)
    assert found.event_mask.tolist() == [k < count for k in range(20)]
    found.event_times[count:].sum().backward()
    assert all((tensor.grad == 0.0).all() for tensor in inputs)
    times = hc.jax.rollout(flow)(*arguments).event_times
    np.testing.assert_array_equal(times, found.event_times.detach())
    assert np.isfinite(times).all()


def test_a_network_in_the_loop_takes_one_sweep(torch):
    """Weights and initial state against differences of the whole closed loop."""
    flow, x0, _, p = falling_ball(events=0)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    net = net.double()
    run, (start, values) = hc.torch.rollout(flow, policy=net), tensors(torch, x0, p)

    def loss():
        found = run(start, values)
        return (found.states**2).sum() + 0.1 * (found.inputs**2).sum()

    loss().backward()
    for tensor in (net[0].weight, net[2].bias, start, values):
        direction = torch.randn_like(tensor)
        ends = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                tensor += step * direction
                ends.append(loss().item())
                tensor -= step * direction
        difference = (ends[0] - ends[1]) / 2e-6
        assert (tensor.grad * direction).sum().item() == pytest.approx(
            difference, abs=1e-7, rel=1e-6
        )


def test_a_start_of_integers_is_refused(torch, jax):
    """Results have the type of x0: they would be cut off behind the point."""
    flow, _, u, p = falling_ball()
    start = np.array([0, 1, 1, 0])
    with pytest.raises(InputError, match="int64"):
        hc.torch.rollout(flow)(torch.tensor(start), *tensors(torch, u, p))
    with pytest.raises(InputError, match="int64"):
        hc.torch.rollout(flow, policy=lambda x: x[:2])(torch.tensor(start))
    with pytest.raises(InputError, match="int64"):
        hc.jax.rollout(flow)(start, u, p)
    assert hc.jax.rollout(flow)(start.tolist(), u, p).states.dtype == np.float64


def test_weights_that_would_get_no_gradient_are_refused(torch):
    """Those of a function that is no module, and those that change before the sweep."""
    flow, x0, _, p = falling_ball(events=0)
    net = torch.nn.Linear(4, 2).double()
    start, values = tensors(torch, x0, p)
    with pytest.raises(InputError, match=r"torch\.nn\.Module"):
        hc.torch.rollout(flow, policy=lambda x: net(x))(start, values)
    free = hc.torch.rollout(flow, policy=lambda x: -0.1 * x[:2])(start, values)
    free.states.sum().backward()
    assert start.grad is not None
    loss = hc.torch.rollout(flow, policy=net)(start, values).states.sum()
    with torch.no_grad():
        net.weight += 1.0
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_single_precision_of_jax_is_refused():
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(InputError, match="jax_enable_x64"):
        hc.jax.rollout(falling_ball()[0])


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_a_missing_library_is_named(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "hybridctl.gradients.torch_functions", raising=False)
    monkeypatch.delattr("hybridctl.gradients.torch_functions", raising=False)
    bridge = getattr(hc, library)
    with pytest.raises(InputError, match=rf"hybridctl\[{library}\]"):
        bridge.rollout(falling_ball()[0])
