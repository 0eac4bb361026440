r"""Parameter sensitivity: how the final state of a run depends on named parameters.

A parameter p is a state that stays constant, :math:`\dot p = 0`. In (x, p) the variational equation
and the jump of an event are

.. math::
    \dot z = A z + B\, \delta u + D_p f\, \delta p, \qquad
    \delta t = -(D_x g\, \delta x^- + D_p g\, \delta p) / \dot g, \qquad
    \delta x^+ = D_x R\, \delta x^- + D_p R\, \delta p - (f^+ - \dot R)\, \delta t .

So everything that takes a system and a run (linearization, simultaneous events, moments, feedback)
serves parameters, too. `augment_with_parameters` returns both in (x, p), where p is the *change*
from the nominal value: it is recorded as zero, and only its derivatives are used. The derivatives
by p come from a `parameter_models.ParameterModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, check_array, check_instance, check_member
from hybridctl.base.errors import InputError
from hybridctl.base.spaces import Space, compute_difference_jacobians
from hybridctl.hybrid.arc import Arc
from hybridctl.hybrid.mapped import Change, MappedMode, MappedPoint
from hybridctl.hybrid.model import (
    FieldJacobian,
    GuardJacobian,
    Held,
    JumpPoint,
    ModeKey,
    ModeModel,
    PointProperty,
    ResetBorder,
    ResetJacobian,
)
from hybridctl.hybrid.system import HybridSystem, MappedSystem
from hybridctl.hybrid.trajectory import Event, HybridTrajectory
from hybridctl.sensitivity.linearization import Linearization, PhantomGains, linearize
from hybridctl.sensitivity.parameter_models import (
    GuardOffsets,
    ParameterModel,
    ParameterPoint,
    check_derivative_shape,
)
from hybridctl.sensitivity.propagation import Gain, InputChange
from hybridctl.sensitivity.saltation import (
    JumpGains,
    evaluate_event_sides,
    find_guard_index,
    find_reset_border,
    get_differentiable_reset,
    linearize_crossing,
)
from hybridctl.sensitivity.simultaneous import PhantomInput, Simultaneous


@dataclass(frozen=True, eq=False)
class ParameterSensitivity:
    """The first-order map of changes dp of parameters, dx0 of the state and du of the input.

    Attributes:
        names: Names of the parameters.
        linearization: Linearization in (x, p). Its moments are joint ones of state and parameters,
            and its jumps have the pieces of simultaneous events.
    """

    names: tuple[str, ...]
    linearization: Linearization

    @property
    def matrix(self) -> Array:
        """The derivative D_p x(end) (ndx+, np) at a fixed initial state.

        An `InputError` if a jump is piecewise linear and its pieces differ.
        """
        n = len(self.names)
        return self.linearization.state_transition[:-n, -n:]

    def __call__(
        self,
        dp: Mapping[str, float] | ArrayLike,
        dx0: ArrayLike | None = None,
        input_change: InputChange | None = None,
    ) -> Array:
        """Return the perturbation of the final state.

        Args:
            dp: Changes (np,) of the parameters in the order of `names`, m of them in rows, or
                changes by name, 0 for those left out.
            dx0: Perturbation (ndx,) of the initial state, or m of them in rows. None for none. One
                row of either goes with all rows of the other.
            input_change: Change du(t) (nu,) of the input. None for no change.

        Returns:
            The perturbation (ndx+,), or (m, ndx+). Wrong shapes raise an `InputError`.
        """
        joint = self._join(dp, dx0)
        return self.linearization(joint, input_change)[..., : -len(self.names)]

    def derivative(
        self,
        dp: Mapping[str, float] | ArrayLike,
        dx0: ArrayLike | None = None,
        input_change: InputChange | None = None,
    ) -> Array:
        """Return the one-sided derivative along directions; see `Linearization.derivative`.

        Args:
            dp: See a call.
            dx0: See a call.
            input_change: See a call.

        Returns:
            The derivative (ndx+,), or (m, ndx+).
        """
        joint = self._join(dp, dx0)
        return self.linearization.derivative(joint, input_change)[..., : -len(self.names)]

    def closed_loop(
        self, gains: Sequence[Gain | ArrayLike], phantom_gains: PhantomGains | None = None
    ) -> ParameterSensitivity:
        """Return the map under feedback of the state.

        Args:
            gains: Gain (nu, ndx) of each arc, or a function of time.
            phantom_gains: See `Linearization.closed_loop`.
        """
        n = len(self.names)
        padded = [
            partial(_pad_gain_at, f"gains[{k}]", gain, n)
            if callable(gain)
            else _pad_gain(f"gains[{k}]", gain, n)
            for k, gain in enumerate(gains)
        ]
        phantom = None if phantom_gains is None else partial(_pad_phantom_gain, phantom_gains, n)
        return replace(self, linearization=self.linearization.closed_loop(padded, phantom))

    def _join(self, dp: Mapping[str, float] | ArrayLike, dx0: ArrayLike | None) -> Array:
        """Return perturbations (..., ndx + np) of state and parameters.

        Raises:
            InputError: A shape is wrong, or state and parameters have different numbers of rows.
        """
        n, changes = len(self.names), self._check_changes(dp)
        ndx = self.linearization.trajectory.arcs[0].space.ndx - n
        start = np.zeros(ndx) if dx0 is None else check_array("dx0", dx0)
        if start.shape[-1:] != (ndx,) or start.ndim > 2:
            raise InputError(f"dx0 must have shape ({ndx},) or (m, {ndx}), got {start.shape}")
        try:
            rows = np.broadcast_shapes(start.shape[:-1], changes.shape[:-1])
        except ValueError as error:
            raise InputError(
                f"dx0 and dp must have as many rows, got shapes {start.shape} and {changes.shape}"
            ) from error
        both = [np.broadcast_to(a, (*rows, a.shape[-1])) for a in (start, changes)]
        return np.concatenate(both, axis=-1)

    def _check_changes(self, dp: Mapping[str, float] | ArrayLike) -> Array:
        """Return changes (..., np) of the parameters in the order of `names`.

        Raises:
            InputError: Their shape is wrong; or a name is unknown.
        """
        n = len(self.names)
        if isinstance(dp, Mapping):
            values = np.zeros(n)
            for name, value in dp.items():
                values[self.names.index(check_member("parameter", name, self.names))] = value
            dp = values
        changes = check_array("dp", dp)
        if changes.ndim not in (1, 2) or changes.shape[-1] != n:
            raise InputError(f"dp must have shape ({n},) or (m, {n}), got {changes.shape}")
        return changes


def parameter_sensitivity(
    system: HybridSystem,
    trajectory: HybridTrajectory,
    derivatives: ParameterModel,
    *,
    merge: float | None = None,
    phantom_input: PhantomInput = "pushing",
    simultaneous: Simultaneous = "in turn",
    rtol: float = 1e-9,
    atol: float = 1e-9,
) -> ParameterSensitivity:
    """Return how the final state of a run depends on parameters, to first order.

    Args:
        system: The hybrid system that was simulated.
        trajectory: The run.
        derivatives: Derivatives of the system by the parameters.
        merge: See `linearize`.
        phantom_input: See `linearize`.
        simultaneous: See `linearize`.
        rtol: See `linearize`.
        atol: See `linearize`.

    Returns:
        The map. It raises the errors of `linearize`. Derivatives of the wrong shape are a
        `SystemDefinitionError`, and resets at a border that parameters may move an `InputError`.
    """
    check_instance("derivatives", derivatives, ParameterModel)  # type: ignore[type-abstract]
    lin = linearize(
        *augment_with_parameters(system, trajectory, derivatives),
        merge=merge,
        phantom_input=phantom_input,
        simultaneous=simultaneous,
        rtol=rtol,
        atol=atol,
    )
    return ParameterSensitivity(derivatives.names, lin)


def _pad_gain(name: str, gain: ArrayLike, n: int) -> Array:
    """Return a gain (nu, ndx) with zeros for n parameters: (nu, ndx + n)."""
    k = check_array(name, gain, (None, None))
    return np.hstack((k, np.zeros((len(k), n))))


def _pad_gain_at(name: str, gain: Gain, n: int, t: float) -> Array:
    """Return `_pad_gain` of a gain at a time in s; a function of the module can be pickled."""
    return _pad_gain(f"{name}({t})", gain(t), n)


def _pad_phantom_gain(gains: PhantomGains, n: int, k: int, fired: frozenset[int]) -> Array:
    """Return `_pad_gain` of the gain in a phantom mode of event k after guards have fired."""
    return _pad_gain(f"phantom_gains({k}, {sorted(fired)})", gains(k, fired), n)


# The system and the run in (x, p)


def augment_with_parameters(
    system: HybridSystem, trajectory: HybridTrajectory, derivatives: ParameterModel
) -> tuple[HybridSystem, HybridTrajectory]:
    """Return a system and its run in (x, p).

    Args:
        system: The hybrid system.
        trajectory: A run of it.
        derivatives: Derivatives of the system by the parameters.

    Returns:
        The system and the run, with the same inputs. The run has the system as its `source` only if
        it was known to be of `system`; else `linearize` compares both. They lack the
        Jacobians that the system lacks. It raises the errors of `check_start`. When they are
        evaluated, derivatives of the wrong shape
        raise a `SystemDefinitionError`, and resets at a border that parameters may move an
        `InputError`.
    """
    n = len(derivatives.names)
    check_start(system, trajectory, derivatives)
    augmented = _AugmentedSystem(system, derivatives)
    return augmented, HybridTrajectory(
        tuple(_augment_arc(arc, n) for arc in trajectory.arcs),
        tuple(_augment_event(event, n) for event in trajectory.events),
        source=augmented if trajectory.source is system else None,
    )


def check_start(
    system: HybridSystem, trajectory: HybridTrajectory, derivatives: ParameterModel
) -> None:
    """Check that the initial state of a run stays in its mode with other parameters.

    Args:
        system: The hybrid system.
        trajectory: A run of it.
        derivatives: Derivatives of the system by the parameters.

    Raises:
        InputError: The run begins in a mode whose constraints the parameters change.
    """
    if not derivatives.moves_constraints:
        return
    first = trajectory.arcs[0]
    if system.mode(first.mode).held is not None:
        raise InputError(
            f"parameters {derivatives.names} change the constraints of mode {first.mode!r}, in "
            "which the run begins: its initial state would leave the mode; begin before the contact"
        )


def augment_with_guard_offsets(system: HybridSystem, event: Event) -> tuple[HybridSystem, Event]:
    """Return a system and one of its events in (x, w): guard i of the event fires at g + w_i = 0.

    Args:
        system: The hybrid system.
        event: An event of it, with at least one guard.

    Returns:
        The system and the event, with w recorded as zero. The border of a reset stays where it is.
    """
    offsets = GuardOffsets(event.guards)
    return _AugmentedSystem(system, offsets), _augment_event(event, len(event.guards))


def linearize_guard_with_parameters(
    system: HybridSystem, event: Event, derivatives: ParameterModel
) -> JumpGains | None:
    """Return the first-order jump of an event of one guard in (x, p), by the terms in x.

    It is `jump_derivative` of the system and event of `augment_with_parameters`, without these.

    Args:
        system: The hybrid system.
        event: An event of it, with one guard.
        derivatives: Derivatives of the system by the parameters.

    Returns:
        The jump. None where its reset is at a border, or where the guard is not what falls through
        zero (`ResetModel.differentiate_departure`): these are known in (x, p) alone. It raises the
        errors of `linearize_guard`.
    """
    (guard,), (before, after) = event.guards, evaluate_event_sides(system, event)
    mode, at = before.mode, before.jump_point(event.report)
    i, reset = find_guard_index(mode, guard), get_differentiable_reset(system, mode, guard)
    if find_reset_border(system, guard, before, after, event.report) is not None:
        return None
    if reset.differentiate_departure(at) is not None:
        return None
    jump = linearize_crossing(system, guard, before, after, report=event.report)
    change = _Augmentation(derivatives, mode.key, event.guards)
    by_guard = derivatives.differentiate_guards([before.point], [i])[0]
    by_reset = derivatives.differentiate_reset(*change.edge, at)
    if by_reset is not None:
        change.check_shape("a reset", by_reset, len(jump.field_change))
    return jump.with_parameters(by_reset, -by_guard / before.guard_rate(guard))


@dataclass(frozen=True)
class _AugmentedSpace:
    """A state space with n parameters appended."""

    space: Space
    n: int

    @property
    def nx(self) -> int:
        return self.space.nx + self.n

    @property
    def ndx(self) -> int:
        return self.space.ndx + self.n

    def integrate(self, x: Array, dx: Array) -> Array:
        state = self.space.integrate(x[: -self.n], dx[: -self.n])
        return np.concatenate((state, x[-self.n :] + dx[-self.n :]))

    def difference(self, x0: Array, x1: Array) -> Array:
        state = self.space.difference(x0[: -self.n], x1[: -self.n])
        return np.concatenate((state, x1[-self.n :] - x0[-self.n :]))

    def difference_jacobians(self, x0: Array, x1: Array) -> tuple[Array, Array]:
        by_first, by_second = -np.eye(self.ndx), np.eye(self.ndx)
        parts = compute_difference_jacobians(self.space, x0[: -self.n], x1[: -self.n])
        by_first[: -self.n, : -self.n], by_second[: -self.n, : -self.n] = parts
        return by_first, by_second

    def rate(self, x: Array, dx: Array) -> Array:
        return np.concatenate((self.space.rate(x[: -self.n], dx[: -self.n]), dx[-self.n :]))

    def transport(self, dx: Array) -> Array:
        result = np.zeros((self.ndx, self.ndx))
        result[: -self.n, : -self.n] = self.space.transport(dx[: -self.n])
        return result

    def normalize(self, x: Array) -> Array:
        return np.concatenate((self.space.normalize(x[: -self.n]), x[-self.n :]))

    def check(self, name: str, x: Array) -> None:
        self.space.check(name, x[: -self.n])


class _AugmentedPoint(MappedPoint):
    """A point in (x, p): the inner derivatives, with those by p appended."""

    mode: _AugmentedMode

    @PointProperty
    def by_parameters(self) -> ParameterPoint:
        """The derivatives by parameters at the inner point."""
        return self.mode.change.derivatives.calc(self.inner)

    @PointProperty
    def field(self) -> Array:
        return np.concatenate((self.inner.field, np.zeros(self.mode.change.n)))

    @PointProperty
    def field_jacobian(self) -> FieldJacobian:
        d, by_p, c = self.inner.field_jacobian, self.by_parameters.field, self.mode.change
        d_x = c.append(d.state, c.check_shape("the field", by_p, len(d.state)))
        p_rows = np.zeros((c.n, d_x.shape[1]))
        p_input = np.zeros((c.n, d.input.shape[1]))
        return FieldJacobian(np.vstack((d_x, p_rows)), np.vstack((d.input, p_input)))

    @PointProperty
    def free_input(self) -> Array:
        inner = self.inner.free_input
        return np.vstack((inner, np.zeros((self.mode.change.n, inner.shape[1]))))

    @PointProperty
    def guard_jacobian(self) -> GuardJacobian:
        return self._append_parameters(self.inner.guard_jacobian, slice(None))

    def guard_row(self, i: int) -> GuardJacobian:
        return self._append_parameters(self.inner.guard_row(i), i)

    def _append_parameters(self, inner: GuardJacobian, rows: int | slice) -> GuardJacobian:
        """Return inner derivatives of some guards with those by the parameters appended.

        Args:
            inner: Derivatives of these guards.
            rows: Index of one guard of the mode, or the slice of several.
        """
        by_p, c = self.by_parameters.guards, self.mode.change
        by_p = c.check_shape("the guards", by_p, len(self.mode.guard_names))
        return inner._replace(state=c.append(inner.state, by_p[rows]))


class _AugmentedMode(MappedMode):
    """A mode in (x, p): parameters are states that stay constant."""

    change: _Augmentation
    point = _AugmentedPoint

    def __init__(self, inner: ModeModel, change: _Augmentation) -> None:
        super().__init__(inner, change)
        self.space = _AugmentedSpace(inner.space, change.n)
        if inner.held is not None:
            self.held = self._augment_held(inner.held)
        if inner.project is not None:
            self.project = partial(self._project, inner.project)

    # Methods with partial arguments, not closures, so that modes can be pickled.

    def _project(self, project: Callable[[Array], Array], x: Array) -> Array:
        return self.change.to_outer_state(project(self.change.remove_parameters(x)), x)

    def _augment_held(self, inner: Held) -> Held:
        """Return the constraint of the inner mode in (x, p)."""
        jacobian, refuse = inner.jacobian, inner.refuse
        return replace(
            inner,
            residuals=partial(self._compute_residuals, inner.residuals),
            jacobian=None if jacobian is None else partial(self._differentiate_residuals, jacobian),
            refuse=None if refuse is None else partial(self._refuse, refuse),
        )

    def _compute_residuals(self, residuals: Callable[[Array], Array], x: Array) -> Array:
        return residuals(self.change.remove_parameters(x))

    def _differentiate_residuals(self, jacobian: Callable[[Array], Array], x: Array) -> Array:
        return self.change.append(jacobian(self.change.remove_parameters(x)))

    def _refuse(
        self, refuse: Callable[[str, ModeKey, Array], None], what: str, key: ModeKey, x: Array
    ) -> None:
        refuse(what, key, self.change.remove_parameters(x))


@dataclass(frozen=True, eq=False)
class _Augmentation(Change):
    """The change of modes and resets to (x, p): parameters are states that stay constant.

    Attributes:
        derivatives: Derivatives by the parameters.
        key: Key of the mode.
        fired: Guards by which a reset is reached; none for a mode.
    """

    derivatives: ParameterModel
    key: ModeKey
    fired: tuple[str, ...] = ()
    mode_class = _AugmentedMode

    @property
    def n(self) -> int:
        return len(self.derivatives.names)

    @property
    def edge(self) -> tuple[ModeKey, tuple[str, ...]]:
        return self.key, self.fired

    def remove_parameters(self, x: Array) -> Array:
        return x[: -self.n]

    def to_inner(self, t: float, x: Array, u: Array) -> tuple[float, Array, Array]:
        return t, self.remove_parameters(x), u

    def to_outer_state(self, inner: Array, x: Array) -> Array:
        return np.concatenate((inner, x[-self.n :]))

    def map_reset_jacobian(self, inner: ResetJacobian, at: JumpPoint) -> ResetJacobian:
        by_p = self.derivatives.differentiate_reset(*self.edge, self.to_inner_jump(at))
        return self.augment_reset(inner, by_p)

    def map_departure(self, inner: GuardJacobian, at: JumpPoint) -> GuardJacobian | None:
        """Return the derivatives of a departure by (x, p), None where those by p are not known."""
        inner_at = self.to_inner_jump(at)
        by_p = self.derivatives.differentiate_departure(*self.edge, inner_at)
        return None if by_p is None else inner._replace(state=self.append(inner.state, by_p))

    def map_border(self, inner: ResetBorder, at: JumpPoint) -> ResetBorder:
        """Return the border in (x, p).

        Raises:
            InputError: Parameters may move it.
        """
        if self.derivatives.moves_borders:
            raise InputError(
                f"the reset at t = {at.t:.9g} s is at the border of {inner.name!r}, where it has "
                "no derivatives by parameters"
            )
        distance = np.append(inner.distance.state, np.zeros(self.n))
        return inner._replace(
            distance=inner.distance._replace(state=distance),
            positive=self.augment_reset(inner.positive),
            negative=self.augment_reset(inner.negative),
        )

    def augment_reset(self, d: ResetJacobian, by_p: Array | None = None) -> ResetJacobian:
        """Return the Jacobian of a reset in (x, p), which keeps p.

        Args:
            d: Jacobian of the reset in x.
            by_p: Its derivatives by the parameters, (ndx+, np). None for zero.

        Raises:
            SystemDefinitionError: `by_p` has another shape.
        """
        n, (rows, columns) = self.n, d.state.shape
        time, state = np.zeros(rows + n), np.zeros((rows + n, columns + n))
        by_input = np.zeros((rows + n, d.input.shape[1]))
        time[:rows], by_input[:rows], state[:rows, :columns] = d.time, d.input, d.state
        if by_p is not None:
            state[:rows, columns:] = self.check_shape("a reset", by_p, rows)
        np.einsum("ii->i", state[rows:, columns:])[:] = 1.0
        return ResetJacobian(time, state, by_input)

    def append(self, d_x: Array, by_p: Array | None = None) -> Array:
        """Return derivatives by x with those by p appended.

        Args:
            d_x: Derivatives (m, ndx); or those of one quantity (ndx,).
            by_p: Derivatives (m, np), or (np,). None for zeros, of (m, ndx) only.
        """
        return np.hstack((d_x, np.zeros((len(d_x), self.n)) if by_p is None else by_p))

    def check_shape(self, what: str, value: Array, rows: int) -> Array:
        """Return derivatives by parameters after a check of their shape (rows, np).

        Raises:
            SystemDefinitionError: The shape is wrong.
        """
        return check_derivative_shape(what, self.key, value, (rows, self.n))


class _AugmentedSystem(MappedSystem):
    """A system in (x, p)."""

    def __init__(self, inner: HybridSystem, derivatives: ParameterModel) -> None:
        change = partial(_Augmentation, derivatives)
        super().__init__(inner, change, change)
        self._n = len(derivatives.names)

    def consistent_mode(self, x: ArrayLike, u: ArrayLike | None = None) -> ModeKey:
        """Return the mode in which the state without its parameters flows on.

        Args:
            x: State and parameters (nx + np,).
            u: Input (nu,). None for the default of the inner system.
        """
        return super().consistent_mode(check_array("x", x, (None,))[: -self._n], u)

    def pushed(self, wrench: object) -> HybridSystem:
        """Refuse a wrench: the derivatives by parameters are of a system that is not pushed.

        Raises:
            InputError: Always.
        """
        raise InputError(
            "wrench must be None in a system with parameters, whose derivatives do not know it: "
            "push the system first, and give the derivatives of that"
        )


def _augment_arc(arc: Arc, n: int) -> Arc:
    """Return an arc in (x, p), with p = 0."""
    steps, order, _ = arc.states.shape
    states = np.concatenate((arc.states, np.zeros((steps, order, n))), axis=2)
    states.flags.writeable = False
    return replace(arc, space=_AugmentedSpace(arc.space, n), states=states)


def _augment_event(event: Event, n: int) -> Event:
    """Return an event in (x, p), with p = 0."""
    states = [np.append(x, np.zeros(n)) for x in (event.state_before, event.state_after)]
    for x in states:
        x.flags.writeable = False
    return replace(event, state_before=states[0], state_after=states[1])
