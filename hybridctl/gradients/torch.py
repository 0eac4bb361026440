"""Runs in PyTorch: `loss.backward()` through impacts.

`rollout` makes a differentiable run (`differentiable`) a function of tensors. It is simulated in
double precision on the processor, whatever the tensors are; results have the type of x0. PyTorch
is the extra `torch`. It is imported when `rollout` is first called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from hybridctl.base.errors import InputError
from hybridctl.gradients.differentiable import DifferentiableFlow

Tensor: TypeAlias = Any


class TorchRollout(NamedTuple):
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
) -> Callable[..., TorchRollout]:
    """Return a run as a function of tensors, with gradients by one adjoint sweep.

    Without a policy it is `run(x0, inputs=None, parameters=None)`, which `torch.func.vmap` takes
    as well: it runs the members one after the other. With a policy it is `run(x0,
    parameters=None)`: the policy, such as a `torch.nn.Module`, is called with the state (nx,) at
    the start of each interval of the flow's `holds`, and its input is held. The gradient by its
    weights takes the same single sweep. Second derivatives are an `InputError`.

    Args:
        flow: The differentiable run.
        policy: Function of the state (nx,) that returns the input (nu,). One with weights is a
            `torch.nn.Module`, of which these are the parameters. None for inputs that are given.

    Returns:
        The function. It raises an `InputError` for an x0 of integers, and for a policy with weights
        that is no module.

    Raises:
        InputError: PyTorch is not installed.
    """
    try:
        from hybridctl.gradients import torch_functions
    except ImportError as error:
        raise InputError("hc.torch needs PyTorch: pip install 'hybridctl[torch]'") from error

    def run_given(x0: Tensor, inputs: Any = None, parameters: Any = None) -> TorchRollout:
        return TorchRollout(*torch_functions.run_given(flow, x0, inputs, parameters))

    def run_closed(x0: Tensor, parameters: Any = None) -> TorchRollout:
        return TorchRollout(*torch_functions.run_closed(flow, policy, x0, parameters))

    return run_given if policy is None else run_closed
