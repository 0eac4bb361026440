"""Runs in JAX: `jax.grad` through impacts.

`rollout` makes a differentiable run (`differentiable`) a function of JAX's arrays, by a callback:
`jax.jit`, `jax.grad` and `jax.vmap` (one member after the other) take it. It is simulated in double
precision on the processor; results have the type of x0. JAX is the extra `jax`. It is imported when
`rollout` is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hybridctl.base.errors import InputError
from hybridctl.gradients.differentiable import DifferentiableFlow
from hybridctl.gradients.tape import Tape

JaxArray: TypeAlias = Any


class JaxRollout(NamedTuple):
    """What a run returns, as arrays of the type of x0.

    Attributes:
        states: States (n, nx) at the times of the flow.
        event_times: Times of its first events, s; of one that did not happen, the end of the span.
        event_mask: Which of these events happened; their gradient is zero where they did not.
    """

    states: JaxArray
    event_times: JaxArray
    event_mask: JaxArray


def rollout(flow: DifferentiableFlow) -> Callable[..., JaxRollout]:
    """Return a run as a function of arrays, with gradients by one adjoint sweep.

    It is `run(x0, inputs=None, parameters=None)`. All its states have the size of x0. A second
    derivative is an error: JAX refuses it, or an `InputError` says so.

    Args:
        flow: The differentiable run.

    Returns:
        The function. It raises an `InputError` for an x0 of integers.

    Raises:
        InputError: JAX is not installed, or computes in single precision.
    """
    try:
        import jax
        import jax.numpy as jnp
    except ImportError as error:
        raise InputError("hc.jax needs JAX: pip install 'hybridctl[jax]'") from error
    if not jax.config.jax_enable_x64:
        raise InputError(
            "hc.jax needs double precision, which JAX has after "
            'jax.config.update("jax_enable_x64", True) at the start of the program'
        )

    host = _Host(flow)

    def shape_like(a: Any, shape: Any = None) -> Any:
        return jax.ShapeDtypeStruct(a.shape if shape is None else shape, a.dtype)

    @jax.custom_vjp
    def sweep(*arguments: Any) -> Any:
        shapes = tuple(shape_like(a) for a in arguments[:3])
        return jax.pure_callback(host.call_sweep, shapes, *arguments, vmap_method="sequential")

    def refuse(*_: Any) -> Any:
        raise InputError("a run of hybridctl has no second derivative: it would be zero")

    sweep.defvjp(refuse, refuse)

    @jax.custom_vjp
    def run(x0: Any, u: Any, p: Any) -> Any:
        count = (flow.event_count,)
        states = shape_like(x0, (len(flow.times), *x0.shape))
        shapes = states, shape_like(x0, count), jax.ShapeDtypeStruct(count, np.bool_)
        return jax.pure_callback(host.call_run, shapes, x0, u, p, vmap_method="sequential")

    def run_forward(x0: Any, u: Any, p: Any) -> Any:
        return run(x0, u, p), (x0, u, p)

    def run_backward(kept: Any, cotangents: Any) -> Any:
        by_states, by_events, _ = cotangents
        return sweep(*kept, by_states, by_events)

    run.defvjp(run_forward, run_backward)

    def rolled(x0: Any, inputs: Any = None, parameters: Any = None) -> JaxRollout:
        x0 = jnp.asarray(x0, None if hasattr(x0, "dtype") else jnp.float64)
        if not jnp.issubdtype(x0.dtype, jnp.floating):
            raise InputError(f"x0 must be an array of floating-point numbers, got {x0.dtype}")
        u, p = (
            jnp.zeros(0, x0.dtype) if a is None else jnp.asarray(a) for a in (inputs, parameters)
        )
        return JaxRollout(*run(x0, u, p))

    return rolled


@dataclass(frozen=True)
class _Host:
    """The run and its sweep as functions of numpy's arrays, which callbacks call.

    Attributes:
        flow: The differentiable run.
    """

    flow: DifferentiableFlow

    def call_run(self, x0: Any, u: Any, p: Any) -> Any:
        """Return states, event times and their mask."""
        tape, kind = self._recall(x0, u, p), np.asarray(x0).dtype
        return tape.states.astype(kind), tape.event_times.astype(kind), tape.event_mask

    def call_sweep(self, x0: Any, u: Any, p: Any, by_states: Any, by_events: Any) -> Any:
        """Return the gradients by x0, u and p, given cotangents of states and event times."""
        cotangents = (np.asarray(a, np.float64) for a in (by_states, by_events))
        found = self._recall(x0, u, p).vjp(*cotangents)
        by_input = np.zeros(np.shape(u)) if found.inputs is None else found.inputs
        by_parameters = found.parameters if np.size(p) else np.zeros(np.shape(p))
        each = zip((found.coordinates, by_input, by_parameters), (x0, u, p), strict=True)
        return tuple(np.asarray(a, np.asarray(like).dtype) for a, like in each)

    def _recall(self, x0: Any, u: Any, p: Any) -> Tape:
        arguments = (np.asarray(a, np.float64) if np.size(a) else None for a in (u, p))
        return self.flow.recall(np.asarray(x0, np.float64), *arguments)
