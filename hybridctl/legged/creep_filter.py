"""The filter of a base whose feet creep: what a log and a live stream run alike.

Point feet are filtered by `PointFeetFilter`, soles by the general `SaltedKalmanFilter`. Both see
the creep of feet by their velocities (see `creep`) and by their distances (see `foot_distances`).
Point feet rise besides where the ground gives way (see `ground_rise`), and innovations say how
noisy their positions are (see `place_noise`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hybridctl.base.checks import Array, is_finite
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.filter_state import FilterState, Hypothesis, Input, Reconciliation
from hybridctl.estimation.kalman_equations import Innovation
from hybridctl.estimation.record import Record
from hybridctl.estimation.result import FilterResult, filter_record
from hybridctl.estimation.salted_kalman_filter import SaltedKalmanFilter
from hybridctl.hybrid.laws import HeldInput
from hybridctl.legged.creep import FootMotion, complete_input, measure_creep
from hybridctl.legged.foot_distances import FootDistances, begin_distances
from hybridctl.legged.ground_rise import GroundRise, begin_rise
from hybridctl.legged.measurements import ANGLES
from hybridctl.legged.point_feet_filter import PointFeetFilter
from hybridctl.legged.system import MOST_PREPARED_FEET, LeggedBase, prepare_modes


class CreepState(NamedTuple):
    """What a `CreepFilter` keeps.

    Attributes:
        filter: State of the filter of the base.
        distances: What the distances of feet have said; None where the noise of feet is given.
        rise: What is known of the rise of feet after a touch; None where they do not rise.
        place_variance: Variance of the positions of point feet besides that of the angles, m^2.
    """

    filter: FilterState
    distances: FootDistances | None
    rise: GroundRise | None
    place_variance: float

    @property
    def time(self) -> float:
        """Time of the estimate, s."""
        return self.filter.time

    @property
    def estimate(self) -> Estimate:
        """The estimate of base and feet."""
        return self.filter.estimate


@dataclass(frozen=True, eq=False)
class CreepFilter:
    """A filter of a base that completes its inputs by how feet creep.

    Attributes:
        base: Base, feet and noise.
        filter: The filter of the base.
        motion: How the velocities of the feet in the inputs were found.
    """

    base: LeggedBase
    filter: SaltedKalmanFilter
    motion: FootMotion

    @cached_property
    def written_out(self) -> PointFeetFilter | None:
        """The same filter written out for point feet; None where a foot is a sole."""
        if any(foot.flat for foot in self.base.kinematics.feet.values()):
            return None
        gate = self.filter.measurements[ANGLES].gate
        return PointFeetFilter(self.base, self.motion.rate_variance, gate)

    def prepare(self) -> None:
        """Make all modes and contact changes before they are met, so that no sample waits."""
        if len(self.base.feet) > MOST_PREPARED_FEET:
            return
        prepare_modes(self.base, self.filter.model.system)
        if self.written_out is not None:
            self.written_out.prepare()

    def start(self, initial: Estimate) -> CreepState:
        """Return the state in which a run from an estimate begins."""
        noise = self.base.noise
        distances = begin_distances(noise) if noise.foot is None else None
        rise = None if self.written_out is None else begin_rise(noise, len(initial.covariance))
        return CreepState(self.filter.start(initial), distances, rise, noise.measured**2)

    def predict(self, state: CreepState, time: float, input: Input = None) -> CreepState:
        """Return the state at a later time.

        Args:
            state: State before.
            time: The later time, s.
            input: Input (nu,) that is held until then. With None, the state is returned as it is,
                at its own time: without an input, which begins with the inertial samples, there is
                no motion.

        Raises:
            SimulationError: Mean or covariance would not be finite.
        """
        now, distances, rise, _ = state
        if input is None or time == now.time:
            return state
        e, u, own = now.estimate, np.asarray(input), self.written_out
        if own is None or time < now.time:
            return self._predict_generally(state, time, u)
        if distances is None:
            level, steeper = self.base.noise.creep(flat=False) ** 2, 0.0
        else:
            distances = distances.follow(self.base, e, u)
            level, vertical = distances.creep.tolist()
            steeper = vertical - level
        found = own.predict(e, time, u, level, steeper, rise)
        if distances is not None:
            seen = np.zeros(len(self.base.feet))
            seen[own.mode(e.mode).numbers] = (time - now.time) * found.creep
            distances = distances.add_motion(seen)
        h, transition = now.hypotheses[0], found.transition
        events, notes = h.events, h.notes
        if now.channel is not None:  # what has come before the last value is past
            events = notes = ()
        elif h.transition is not None:
            transition = transition.dot(h.transition)
        after = Hypothesis(
            found.estimate,
            h.log_weight,
            transition=transition,
            events=events,
            notes=notes,
            fired=h.fired,
        )
        renewed = _renew(now, time, after, None)
        return CreepState(renewed, distances, found.rise, state.place_variance)

    def _predict_generally(self, state: CreepState, time: float, u: Array) -> CreepState:
        """Return the state at another time by the general filter: with soles, or back in time.

        Back in time nothing is known of how the rise goes with the estimate, so that it stays.
        """
        now, distances, rise, _ = state
        e, densities = now.estimate, None
        creep = measure_creep(self.base, e, u, self.motion)
        if distances is not None:
            distances = distances.follow(self.base, e, u)
            densities = distances.creep
            distances = distances.add_motion((time - now.time) * creep)
        u = complete_input(self.base, e, u, creep, densities)
        # A record and a live filter have checked it: as a held law it is not checked once more.
        after = self.filter.predict(now, time, HeldInput(u))
        return CreepState(after, distances, rise, state.place_variance)

    def update(
        self, state: CreepState, channel: str, value: Array, input: Input = None
    ) -> CreepState:
        """Return the state after a value of a channel, measured at the time of the state.

        Args:
            state: State before the value.
            channel: Name of a measurement or of a contact signal of the filter.
            value: The value (m,).
            input: Input (nu,), whose joint angles place a foot that touches down.

        Raises:
            SimulationError: Mean or covariance would not be finite.
        """
        own, updated = self.written_out, None
        if own is not None and channel == ANGLES:
            updated = self._correct(own, state, value)
        elif own is not None and channel in self.filter.signals and input is not None:
            updated = self._change_contact(own, state, channel, value, np.asarray(input))
        if updated is not None:
            return updated
        held, e = input if input is None else HeldInput(np.asarray(input)), state.estimate
        after = state._replace(filter=self.filter.update(state.filter, channel, value, held))
        if state.rise is None or after.estimate is e:
            return after
        return after._replace(rise=state.rise.follow(self.base.space(e.mode), e, after.estimate))

    def _correct(self, own: PointFeetFilter, state: CreepState, value: Array) -> CreepState | None:
        """Return the state after joint angles; None where the general filter has to find it.

        That is where the angles have another size or are not finite, no foot is in contact, or the
        covariance of the innovation is not positive definite.
        """
        now = state.filter
        h = now.hypotheses[0]
        known = value.shape == (len(self.base.kinematics.joints),) and is_finite(value)
        if not known or not own.mode(h.estimate.mode).feet:
            return None
        found = own.correct(h.estimate, ANGLES, value, state.rise, state.place_variance)
        if found is None:
            return None
        estimate, innovation, rise, place_variance = found
        transition, events, notes = h.transition, h.events, h.notes
        if now.channel is not None:  # what has come before the last value is past
            transition, events, notes = own.mode(h.estimate.mode).identity, (), ()
        after = Hypothesis(
            estimate,
            h.log_weight + find_evidence(innovation),
            predicted=h.estimate,
            transition=transition,
            events=events,
            notes=notes,
            innovation=innovation,
            fired=h.fired,
        )
        return CreepState(
            _renew(now, now.time, after, ANGLES), state.distances, rise, place_variance
        )

    def _change_contact(
        self, own: PointFeetFilter, state: CreepState, channel: str, value: Array, u: Array
    ) -> CreepState | None:
        """Return the state after the force of a foot; None where the general filter finds it.

        That is where the force is between the thresholds or not one number, or changes no contact.

        Args:
            own: The filter of point feet.
            state: State before the force.
            channel: Contact signal.
            value: The force (1,), N.
            u: Input (nu,), whose joint angles place a foot that touches down.
        """
        now, rise = state.filter, state.rise
        signal, h = self.filter.signals[channel], now.hypotheses[0]
        if value.shape != (1,):
            return None
        force = float(value[0])
        guard = signal.closes if force >= signal.on else signal.opens
        if signal.off < force < signal.on or guard is None:
            return None
        changed = own.change_contact(h.estimate, guard, u, state.place_variance)
        if changed is None:
            return None
        e, transition, events, notes = h.estimate, h.transition, h.events, h.notes
        if now.channel is not None:  # what has come before the last value is past
            transition, events, notes = own.mode(e.mode).identity, (), ()
        after = Hypothesis(
            changed.estimate,
            h.log_weight,
            predicted=e,
            transition=transition,
            events=(*events, changed.event),
            notes=notes,
            reconciliation=Reconciliation(e.mean, e.covariance, changed.transition),
        )
        if rise is not None:
            rise = self._change_rise(own, rise, e, guard, changed.transition)
        renewed = _renew(now, now.time, after, channel)
        return CreepState(renewed, state.distances, rise, state.place_variance)

    def _change_rise(
        self, own: PointFeetFilter, rise: GroundRise, e: Estimate, guard: str, transition: Array
    ) -> GroundRise:
        """Return the rise after a foot has touched or lifted.

        Args:
            own: The filter of point feet.
            rise: What is known before.
            e: Estimate before.
            guard: Name of the guard of the event.
            transition: Derivative (ndx+, ndx) of the state after the event by the one before.
        """
        change = own.find_contact_change(e.mode, guard)
        if change is None or change.foot is None:
            return rise.change(transition)
        return rise.touch(transition, change.foot, e.time, self.base.noise)

    def run(self, record: Record, initial: Estimate) -> FilterResult:
        """Return the result of filtering a record from an estimate on."""
        channels = [*self.filter.measurements, *self.filter.signals]
        shown = lambda state: state.filter  # noqa: E731
        return filter_record(
            record, self.start(initial), channels, self.predict, self.update, shown, None
        )


def find_evidence(innovation: Innovation) -> float:
    """Return the log-likelihood of a value, at the limit of the gate where it is beyond that."""
    beyond = 0.0 if innovation.accepted else 0.5 * (innovation.nis - innovation.limit)
    return innovation.log_likelihood + beyond


def _renew(
    state: FilterState, time: float, hypothesis: Hypothesis, channel: str | None
) -> FilterState:
    """Return a state with another hypothesis; `SimulationError` for one that is not finite."""
    return FilterState(
        time, (hypothesis,), state.beginning, channel, False, state.rejections, state.rows
    ).check_finite()
