"""The feedback that made a run: the laws of its policy, on its arcs and between its guards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from hybridctl.base.checks import Array
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.laws import DifferentiableLaw, HeldInput, InputLaw
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.policy import History, Policy
from hybridctl.hybrid.system import HybridSystem, as_policy
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.variation import Gain

_SAME_INPUT = 1e-6  # of the largest input, or of 1: the policy is the one of the run


@dataclass(frozen=True, eq=False)
class Feedback:
    """A policy as it acted in a run.

    Raises `SystemDefinitionError` where a law of it has no derivatives, `InputError` where its
    input is not that of the run.
    """

    system: HybridSystem
    trajectory: HybridTrajectory
    policy: Policy | InputLaw

    def gains(self) -> tuple[Gain, ...]:
        """The gains K(t) = -D_x u (nu, ndx) along each arc."""
        return tuple(self._gain(k) for k in range(len(self.trajectory.arcs)))

    def after(
        self, k: int, fired: tuple[Event, ...], mode: ModeKey, state: Array
    ) -> DifferentiableLaw:
        """The law after events `fired` of single guards of event k; without any, before it."""
        if not fired:
            return self._on_arc(k)
        time, past = fired[-1].time, (*self.trajectory.events[:k], *fired)
        return self._law(History(mode, time, state, past))

    def _gain(self, k: int) -> Gain:
        law, arc = self._on_arc(k), self.trajectory.arcs[k]
        for t in (arc.start, arc.end):
            x, recorded = arc.state_and_input(t)
            u = law(t, x)
            scale = 1.0 + np.abs(recorded).max(initial=0.0)
            if np.shape(u) != recorded.shape or np.abs(u - recorded).max() > _SAME_INPUT * scale:
                raise InputError(
                    f"policy must be the one of the run: at t = {t:.9g} s in mode {arc.mode!r} it "
                    f"gives {u}, but the input was {recorded}"
                )
        return partial(_gain_along, law, arc)

    def _on_arc(self, k: int) -> DifferentiableLaw:
        arc = self.trajectory.arcs[k]
        events = self.trajectory.events[:k]
        state = events[-1].state_after if events else arc(arc.start)
        return self._law(History(arc.mode, arc.start, state, events))

    def _law(self, history: History) -> DifferentiableLaw:
        law = as_policy(self.policy, self.system).law(history)
        if isinstance(self.policy, HeldInput) and isinstance(law, HeldInput):
            value, ndx = law.value, self.system.mode(history.mode).space.ndx
            return DifferentiableLaw.held(value, np.zeros_like(value), ndx)
        if isinstance(law, DifferentiableLaw):
            return law
        what = getattr(law, "__qualname__", type(law).__name__)
        raise SystemDefinitionError(
            f"the law of the policy in mode {history.mode!r} at t = {history.time:.9g} s has no "
            f"derivative by the state: it is {what!r}, and has to be a DifferentiableLaw(function, "
            "jacobian, rate).\nA law that is held, delayed or chosen by the state has none; "
            "without policy the linearization is that of the recorded input"
        )


def _gain_along(law: DifferentiableLaw, arc: Arc, t: float) -> Array:
    """The gain K = -D_x u (nu, ndx) of a law on the states of an arc."""
    return -law.jacobian(t, arc.state_and_input(t)[0])
