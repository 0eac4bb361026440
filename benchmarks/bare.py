"""Pinocchio's own calls that no evaluation of contacts can do without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pinocchio as pin


def terms(model: Any, data: Any, q: np.ndarray, v: np.ndarray) -> None:
    """Mass, bias and the motion of all joints."""
    pin.crba(model, data, q)
    pin.nonLinearEffects(model, data, q, v)
    pin.computeJointJacobiansTimeVariation(model, data, q, v)


def term_derivatives(model: Any, data: Any, q: np.ndarray, v: np.ndarray) -> None:
    """Mass, bias and the motion of all joints, with their derivatives."""
    terms(model, data, q, v)
    pin.computeRNEADerivatives(model, data, q, v, v)
    pin.computeForwardKinematicsDerivatives(model, data, q, v, v)
