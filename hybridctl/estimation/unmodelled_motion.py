r"""Contaminated motion: rare disturbances besides the white noise of the flow.

The motion since the last value either had none of the `disturbances` of the process noise, or one
of kind i. With the rates :math:`\lambda_i`, :math:`\lambda = \sum_i \lambda_i` and the time T since
then,

.. math:: p(x) = e^{-\lambda T} N(\hat x^-, P^-)
          + (1 - e^{-\lambda T}) \sum_i \frac{\lambda_i}{\lambda} N(\hat x^-, P^- + D_i).

Several disturbances within T count as one. It comes at any time within T alike, so with the
covariance :math:`W_i` of a change of the state, and the field linearised at the estimate,

.. math:: D_i = \frac{1}{T} \int_0^T e^{A s}\, W_i\, e^{A^T s}\, ds,

by the formula of Gauss with two points, which is exact for the changes of velocity of a free body.

So the density of a value is a mixture with heavy tails. A value far from the prediction is
explained by a disturbance and believed, where a filter with white noise alone would reject it, or
move too little. The parts of the mixture are hypotheses: `event_hypotheses` weighs and prunes them
with the orders of events.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.linalg import expm

from hybridctl.base.checks import Array
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.noisy_system import NoisySystem
from hybridctl.hybrid.laws import InputLaw
from hybridctl.sensitivity.propagation import linearize_field_at

_GAUSS_FRACTIONS = 0.5 + np.array([-0.5, 0.5]) / math.sqrt(3.0)
"""Points of the formula of Gauss on [0, 1], with the weights 1/2."""


def log_probability_undisturbed(model: NoisySystem, e: Estimate, begun: float) -> float:
    r"""Return the log-probability :math:`-\lambda T` that there was no disturbance since a time.

    Args:
        model: The system and its noise.
        e: Estimate at the end of the time.
        begun: Begin of the time, s; -inf if it is not known. Then nothing is disturbed.
    """
    noise = model.process_noise
    if noise is None or not noise.disturbances or not -math.inf < begun < e.time:
        return 0.0
    rates = [rate for rate, _ in noise.disturbances_in(model.system.mode(e.mode))]
    return -sum(rates) * (e.time - begun)


def disturb_estimate(
    model: NoisySystem, e: Estimate, begun: float, law: InputLaw
) -> list[tuple[float, Estimate]]:
    """Return the estimate after each kind of disturbance, with its log-probability.

    Args:
        model: The system, whose process noise has disturbances in the mode of the estimate.
        e: The estimate without a disturbance.
        begun: Time before that of the estimate since when a disturbance may have come, s.
        law: Input law.
    """
    noise = model.process_noise
    assert noise is not None
    point, span = model.evaluate_at(e, law), e.time - begun
    field = linearize_field_at(point)
    flows = expm(field.state * (span * _GAUSS_FRACTIONS)[:, None, None])
    kinds = noise.disturbances_in(point.mode)
    total = sum(rate for rate, _ in kinds)
    any_log = math.log(-math.expm1(-total * span))
    found = []
    for rate, change in kinds:
        w = noise.map_to_state(point, field.input, change)
        spread = 0.5 * (flows @ w @ flows.transpose(0, 2, 1)).sum(axis=0)
        wide = replace(e, covariance=e.covariance + spread)
        found.append((any_log + math.log(rate / total), wide))
    return found
