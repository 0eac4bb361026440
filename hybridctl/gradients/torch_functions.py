"""Runs as functions of PyTorch's automatic differentiation; `torch.rollout` imports this module."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

from hybridctl.base.errors import InputError
from hybridctl.gradients.differentiable import DifferentiableFlow

Tensor: TypeAlias = Any


def _to_array(tensor: Tensor | None) -> Any:
    """Return a tensor as an array of doubles; None for None."""
    return None if tensor is None else tensor.detach().to("cpu").double().numpy().copy()


def _to_tensor(array: Any, like: Tensor) -> Tensor:
    """Return an array as a tensor of the type and device of another one."""
    return torch.as_tensor(np.array(array), dtype=like.dtype, device=like.device)


def _check_real(x0: Tensor) -> None:
    """Check that results, which have the type of x0, keep what is behind the point.

    Raises:
        InputError: The type is none of real numbers.
    """
    if not x0.is_floating_point():
        raise InputError(f"x0 must be a tensor of floating-point numbers, got {x0.dtype}")


def _loop_over_batch(function: Any, info: Any, in_dims: Any, args: Any) -> Any:
    """Return the results of a function for one member after the other, stacked."""
    members = []
    for k in range(info.batch_size):
        own = [a if d is None else a.select(d, k) for a, d in zip(args, in_dims, strict=True)]
        members.append(function.apply(*own))
    stacked = tuple(torch.stack(each) for each in zip(*members, strict=True))
    return stacked, (0,) * len(stacked)


class _AdjointSweep(torch.autograd.Function):
    """The adjoint sweep as a function of arguments and cotangents, which has no derivative."""

    @staticmethod
    def forward(flow: Any, x0: Any, u: Any, p: Any, by_states: Any, by_events: Any) -> Any:
        arguments = [_to_array(a) if a.numel() else None for a in (u, p)]
        tape = flow.recall(_to_array(x0), *arguments)
        found = tape.vjp(_to_array(by_states), _to_array(by_events))
        by_input = np.zeros(u.shape) if found.inputs is None else found.inputs
        by_parameters = found.parameters if p.numel() else np.zeros(p.shape)
        return (
            _to_tensor(found.coordinates, x0),
            _to_tensor(by_input, u),
            _to_tensor(by_parameters, p),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise InputError("a run of hybridctl has no second derivative: it would be zero")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return _loop_over_batch(_AdjointSweep, info, in_dims, args)


class _GivenRun(torch.autograd.Function):
    """The run as a function of its initial state, inputs and parameters."""

    @staticmethod
    def forward(flow: Any, x0: Any, u: Any, p: Any) -> Any:
        arguments = [_to_array(a) if a.numel() else None for a in (u, p)]
        tape = flow.recall(_to_array(x0), *arguments)
        mask = torch.as_tensor(tape.event_mask.copy(), device=x0.device)
        return _to_tensor(tape.states, x0), _to_tensor(tape.event_times, x0), mask

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.flow, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, by_states: Any, by_events: Any, _: Any) -> Any:
        return None, *_AdjointSweep.apply(ctx.flow, *ctx.saved_tensors, by_states, by_events)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        return _loop_over_batch(_GivenRun, info, in_dims, args)


class _ClosedLoopRun(torch.autograd.Function):
    """The run under a policy, as a function of initial state, parameters and weights."""

    @staticmethod
    def forward(ctx: Any, flow: Any, policy: Any, x0: Any, p: Any, *weights: Any) -> Any:
        def feedback(k: int, state: Any) -> Any:
            with torch.enable_grad():
                u = policy(_to_tensor(state, x0))
            if u.requires_grad and not weights:
                raise InputError(
                    "a policy with weights must be a torch.nn.Module, as else they would get no "
                    f"gradient, got {policy!r}"
                )
            return _to_array(u)

        tape = flow.run_policy(_to_array(x0), feedback, _to_array(p) if p.numel() else None)
        ctx.tape, ctx.policy, ctx.x0, ctx.p, ctx.weights = tape, policy, x0, p, weights
        ctx.save_for_backward(*weights)  # so that backward refuses weights changed in between
        results = tape.states, tape.event_times, tape.inputs
        mask = torch.as_tensor(tape.event_mask.copy(), device=x0.device)
        ctx.mark_non_differentiable(mask)
        return *(_to_tensor(a, x0) for a in results), mask

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_states: Any, by_events: Any, by_inputs: Any, _: Any) -> Any:
        _ = ctx.saved_tensors
        total = _to_array(by_inputs)  # what the loss takes of the inputs themselves
        states = {sample.hold: sample.state for sample in ctx.tape.samples}

        def call(states: Any) -> tuple[Any, Any]:
            points = _to_tensor(states, ctx.x0).requires_grad_()
            return points, torch.stack([ctx.policy(x) for x in points])

        def pull(k: int, by_input: Any) -> Any:
            total[k] += by_input
            with torch.enable_grad():
                points, values = call(states[k][None])
                (found,) = torch.autograd.grad(values, points, _to_tensor(total[k][None], ctx.x0))
            return _to_array(found[0])

        by_tape = _to_array(by_states), _to_array(by_events)
        found = ctx.tape.vjp(*by_tape, pull_feedback=pull)
        with torch.enable_grad():
            _, values = call(np.array([states[k] for k in sorted(states)]))
            by_values = _to_tensor(total[sorted(states)], ctx.x0)
            by_weights = (
                torch.autograd.grad(values, ctx.weights, by_values, allow_unused=True)
                if ctx.weights
                else ()
            )
        by_parameters = found.parameters if ctx.p.numel() else np.zeros(ctx.p.shape)
        by_start = _to_tensor(found.coordinates, ctx.x0), _to_tensor(by_parameters, ctx.p)
        return None, None, *by_start, *by_weights


def run_given(
    flow: DifferentiableFlow, x0: Tensor, inputs: Any, parameters: Any
) -> tuple[Tensor, ...]:
    """Return states, event times, their mask and the inputs of a run with given inputs.

    Args:
        flow: The differentiable run.
        x0: Initial state (nx,).
        inputs: Inputs (N, nu), or None.
        parameters: Values (np,) of the parameters, or None.
    """
    _check_real(x0)
    none = x0.new_zeros(0)
    u, p = (none if a is None else a for a in (inputs, parameters))
    states, times, mask = _GivenRun.apply(flow, x0, u, p)
    return states, times, mask, u


def run_closed(
    flow: DifferentiableFlow, policy: Any, x0: Tensor, parameters: Any
) -> tuple[Tensor, ...]:
    """Return states, event times, their mask and the inputs of a run under a policy.

    Args:
        flow: The differentiable run.
        policy: Function of the state (nx,) that returns the input (nu,).
        x0: Initial state (nx,).
        parameters: Values (np,) of the parameters, or None.
    """
    _check_real(x0)
    p = x0.new_zeros(0) if parameters is None else parameters
    weights = [w for w in getattr(policy, "parameters", tuple)() if w.requires_grad]
    states, times, inputs, mask = _ClosedLoopRun.apply(flow, policy, x0, p, *weights)
    return states, times, mask, inputs
