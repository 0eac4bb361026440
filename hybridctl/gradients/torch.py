"""Runs in PyTorch: `loss.backward()` through impacts.

`rollout` makes a differentiable run (`differentiable`) a function of tensors. It is simulated in
double precision on the processor, whatever the tensors are; results have the type of x0. PyTorch
is the extra `torch`. It is imported when `rollout` is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hybridctl.base.errors import InputError
from hybridctl.gradients.differentiable import DifferentiableFlow

Tensor: TypeAlias = Any


class Rollout(NamedTuple):
    """What a run returns, as tensors of the type of x0.

    Attributes:
        states: States (n, nx) at the times of the flow.
        event_times: Times of its first events, s; of one that did not happen, the end of the span.
        event_mask: Which of these events happened; their gradient is zero where they did not.
        inputs: Inputs (N, nu) that were held.
    """

    states: Tensor
    event_times: Tensor
    event_mask: Tensor
    inputs: Tensor


def rollout(
    flow: DifferentiableFlow, policy: Callable[[Tensor], Tensor] | None = None
) -> Callable[..., Rollout]:
    """Return a run as a function of tensors, with gradients by one adjoint sweep.

    Without a policy it is `run(x0, inputs=None, parameters=None)`, which `torch.func.vmap` takes
    as well: it runs the members one after the other. With a policy it is `run(x0,
    parameters=None)`: the policy, such as a `torch.nn.Module`, is called with the state (nx,) at
    the start of each interval of the flow's `holds`, and its input is held. The gradient by its
    weights takes the same single sweep. Second derivatives are an `InputError`.

    Args:
        flow: The differentiable run.
        policy: Function of the state (nx,) that returns the input (nu,). None for inputs that are
            given.

    Returns:
        The function.

    Raises:
        InputError: PyTorch is not installed.
    """
    run = _make_functions()
    if policy is None:
        return lambda x0, inputs=None, parameters=None: run.given(flow, x0, inputs, parameters)
    return lambda x0, parameters=None: run.closed(flow, policy, x0, parameters)


class _Functions(NamedTuple):
    """The functions of both kinds of runs, by given inputs and under a policy."""

    given: Callable[..., Rollout]
    closed: Callable[..., Rollout]


def _import_torch() -> Any:
    """Return the library.

    Raises:
        InputError: It is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise InputError("hc.torch needs PyTorch: pip install 'hybridctl[torch]'") from error
    return torch


def _to_array(tensor: Tensor | None) -> Any:
    """Return a tensor as an array of doubles; None for None."""
    return None if tensor is None else tensor.detach().to("cpu").double().numpy().copy()


@cache
def _make_functions() -> _Functions:
    """Return the functions, made of classes of PyTorch, which is imported now."""
    torch = _import_torch()

    def convert(array: Any, like: Tensor) -> Tensor:
        return torch.as_tensor(np.array(array), dtype=like.dtype, device=like.device)

    def loop_over_batch(function: Any, info: Any, in_dims: Any, args: Any) -> Any:
        """Return the results of a function for one member after the other, stacked."""
        members = []
        for k in range(info.batch_size):
            own = [a if d is None else a.select(d, k) for a, d in zip(args, in_dims, strict=True)]
            members.append(function.apply(*own))
        stacked = tuple(torch.stack(each) for each in zip(*members, strict=True))
        return stacked, (0,) * len(stacked)

    class Backward(torch.autograd.Function):
        """The adjoint sweep as a function of arguments and cotangents, which has no derivative."""

        @staticmethod
        def forward(flow: Any, x0: Any, u: Any, p: Any, by_states: Any, by_events: Any) -> Any:
            arguments = [_to_array(a) if a.numel() else None for a in (u, p)]
            tape = flow.recall(_to_array(x0), *arguments)
            found = tape.vjp(_to_array(by_states), _to_array(by_events))
            by_input = np.zeros(u.shape) if found.inputs is None else found.inputs
            by_parameters = found.parameters if p.numel() else np.zeros(p.shape)
            return convert(found.coordinates, x0), convert(by_input, u), convert(by_parameters, p)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise InputError("a run of hybridctl has no second derivative: it would be zero")

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return loop_over_batch(Backward, info, in_dims, args)

    class Forward(torch.autograd.Function):
        """The run as a function of its initial state, inputs and parameters."""

        @staticmethod
        def forward(flow: Any, x0: Any, u: Any, p: Any) -> Any:
            arguments = [_to_array(a) if a.numel() else None for a in (u, p)]
            tape = flow.recall(_to_array(x0), *arguments)
            mask = torch.as_tensor(tape.event_mask.copy(), device=x0.device)
            return convert(tape.states, x0), convert(tape.event_times, x0), mask

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.flow, *tensors = inputs
            ctx.save_for_backward(*tensors)
            ctx.mark_non_differentiable(output[2])

        @staticmethod
        def backward(ctx: Any, by_states: Any, by_events: Any, _: Any) -> Any:
            return None, *Backward.apply(ctx.flow, *ctx.saved_tensors, by_states, by_events)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return loop_over_batch(Forward, info, in_dims, args)

    class ClosedLoop(torch.autograd.Function):
        """The run under a policy, as a function of initial state, parameters and weights."""

        @staticmethod
        def forward(ctx: Any, flow: Any, policy: Any, x0: Any, p: Any, *weights: Any) -> Any:
            def feedback(k: int, state: Any) -> Any:
                return _to_array(policy(convert(state, x0)))

            tape = flow.run_policy(_to_array(x0), feedback, _to_array(p) if p.numel() else None)
            ctx.tape, ctx.policy, ctx.x0, ctx.p, ctx.weights = tape, policy, x0, p, weights
            results = tape.states, tape.event_times, tape.inputs
            mask = torch.as_tensor(tape.event_mask.copy(), device=x0.device)
            ctx.mark_non_differentiable(mask)
            return *(convert(a, x0) for a in results), mask

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, by_states: Any, by_events: Any, by_inputs: Any, _: Any) -> Any:
            total = _to_array(by_inputs)  # what the loss takes of the inputs themselves

            def call(states: Any) -> tuple[Any, Any]:
                points = convert(states, ctx.x0).requires_grad_()
                return points, torch.stack([ctx.policy(x) for x in points])

            def pull(k: int, by_input: Any) -> Any:
                total[k] += by_input
                with torch.enable_grad():
                    points, values = call(states[k][None])
                    (found,) = torch.autograd.grad(values, points, convert(total[k][None], ctx.x0))
                return _to_array(found[0])

            states = {sample.index: sample.state for sample in ctx.tape.samples}
            by_tape = _to_array(by_states), _to_array(by_events)
            found = ctx.tape.vjp(*by_tape, pull_feedback=pull)
            with torch.enable_grad():
                _, values = call(np.array([states[k] for k in sorted(states)]))
                by_values = convert(total[sorted(states)], ctx.x0)
                by_weights = (
                    torch.autograd.grad(values, ctx.weights, by_values, allow_unused=True)
                    if ctx.weights
                    else ()
                )
            by_parameters = found.parameters if ctx.p.numel() else np.zeros(ctx.p.shape)
            by_start = convert(found.coordinates, ctx.x0), convert(by_parameters, ctx.p)
            return None, None, *by_start, *by_weights

    def given(flow: DifferentiableFlow, x0: Tensor, inputs: Any, parameters: Any) -> Rollout:
        none = x0.new_zeros(0)
        u, p = (none if a is None else a for a in (inputs, parameters))
        states, times, mask = Forward.apply(flow, x0, u, p)
        return Rollout(states, times, mask, u)

    def closed(flow: DifferentiableFlow, policy: Any, x0: Tensor, parameters: Any) -> Rollout:
        p = x0.new_zeros(0) if parameters is None else parameters
        weights = [w for w in getattr(policy, "parameters", tuple)() if w.requires_grad]
        states, times, inputs, mask = ClosedLoop.apply(flow, policy, x0, p, *weights)
        return Rollout(states, times, mask, inputs)

    return _Functions(given, closed)
