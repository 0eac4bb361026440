r"""Piecewise-linear jump of simultaneous guards: one linear piece for each order of firing.

n guards reach zero together on the nominal trajectory. On a perturbed one they fire one after the
other, as micro-events. Let S be the set of guards that have fired; it names a *phantom mode*, the
mode between two micro-events, in which no nominal trajectory stays. The jump of a guard
:math:`j \notin S` is that of one event, evaluated in the phantom mode at the nominal event:

.. math::
    \delta t_j = a_{S,j}\, \delta x + b_{S,j}\, \delta u, \qquad
    \delta x' = D_x R\, \delta x + D_u R\, \delta u - (f^+ - \dot R)\, \delta t_j .

The guard with the least :math:`\delta t_j` fires, :math:`\delta x'` replaces :math:`\delta x`, and
so on until all have fired, [Bder] (61), (62). Here perturbations are carried back to the nominal
time after each micro-event, so that resets, inputs and changes of dimension are served too, [RS]
(4.33), (4.46).

On the cone of perturbations with one order of firing the jump is linear, and its matrix is the
product of saltation matrices, [Bder] (57). `PiecewiseLinearJump.pieces` lists the cones, up to n!
of them, with their matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import null_space
from scipy.optimize import linprog

from hybridctl.base.checks import Array, Indices, check_array
from hybridctl.base.errors import InputError, SystemDefinitionError
from hybridctl.sensitivity.saltation import JumpGains

GAIN_ROUNDING = 4.0 * float(np.finfo(np.float64).eps)
"""Relative error of gains that are known to rounding: a few operations. A choice."""
EVENT_ACCURACY = 1e-9
"""Relative error of gains at a simulated event: the default tolerance of simulations."""
_TIE = 1e-13
"""Difference of event times that counts as a tie, relative to a bound of their terms.

The bound is the largest gain times the sum of the absolute entries of the perturbation. A choice
between rounding and the accuracy of events."""
_MIN_BALL_RADIUS = 1e-6
"""Least distance of a point from the planes of a cone that has an interior.

The point is in the cube [-1, 1]^n, and the distance counts up to 1 (`find_interior_point`).
`linprog` is accurate to 1e-7. In `lineality` it is the singular value, relative to the largest, up
to which a direction lies in all planes."""
_MAX_CACHED_MODES = 8192
"""Number of phantom modes that are kept, and of jumps: the last ones used.

n guards have 2^n phantom modes and n 2^(n-1) jumps: all modes of up to 13 guards are kept, and all
jumps of up to 10."""

MicroJump = Callable[[frozenset[int], int], JumpGains]
"""The jump of a guard j, given the set of guards that have fired before it."""
MicroTimes = Callable[[frozenset[int]], tuple[Array, Array]]
"""Rows time_state (k, d) and time_input (k, nu) of the k guards left, given those that fired."""


class PhantomMode(NamedTuple):
    """The k guards that have not fired in a phantom mode, and when each would fire.

    Attributes:
        left: Indices of the guards, ascending.
        time_state: Derivatives (k, d) of their event times by the state, s per unit.
        time_input: Derivatives (k, nu) of their event times by the input, s per unit.
        state_size: Largest absolute entry of `time_state`.
        input_size: Largest absolute entry of `time_input`.
    """

    left: tuple[int, ...]
    time_state: Array
    time_input: Array
    state_size: float
    input_size: float


class Passage(NamedTuple):
    """A perturbation after all guards, with the order and the times of their firing.

    Attributes:
        state: Perturbation (d+,) after the event, or m of them in rows.
        orders: Indices (n,) of the guards as they fire, or (m, n).
        times: Shifts (n,) of their event times in the same order, s, or (m, n).
    """

    state: Array
    orders: Indices
    times: Array


class OrderGains(NamedTuple):
    """The linear map of one order of firing.

    Attributes:
        state: Derivative (d+, d) by the perturbation before the event.
        inputs: Derivatives (d+, nu) by the change of the input at each micro-event, in the order
            of firing.
    """

    state: Array
    inputs: tuple[Array, ...]


class PiecewiseLinearJump:
    r"""The jump of n guards that fire together, as a function of the perturbation before them.

    A call takes O(n^2 d) time and O(d) memory for each perturbation if the resets are the identity.
    Event times that agree to rounding are a tie, and of tied guards the one that was declared first
    fires. If the jumps commute to first order, as they do without resets, this choice changes only
    `order`, not the result.

    Args:
        guards: Names of the guards.
        micro: The jump of guard j (0 to n-1) in the phantom mode of the guards that have fired. It
            is called when it is needed, for up to 10 guards once each: `_MAX_CACHED_MODES` jumps
            are kept. All guards of a phantom mode act on the same dimension.
        times: Event times of the guards left in a phantom mode, so that `micro` is called only for
            guards that do fire. None to read them from the jumps.

    Attributes:
        guards: Names of the guards.

    Raises:
        InputError: There is no guard, or two have the same name.
    """

    def __init__(
        self, guards: Sequence[str], micro: MicroJump, times: MicroTimes | None = None
    ) -> None:
        self.guards = tuple(guards)
        if not self.guards or len(set(self.guards)) != len(self.guards):
            raise InputError(f"guards must be one or more different names, got {self.guards}")
        self._micro, self._times = micro, times
        self._get_jump = lru_cache(_MAX_CACHED_MODES)(self._evaluate_jump)
        self._get_mode = lru_cache(_MAX_CACHED_MODES)(self._evaluate_mode)

    def __reduce__(self) -> tuple[Any, ...]:
        return PiecewiseLinearJump, (self.guards, self._micro, self._times)

    @property
    def dimension(self) -> int:
        """The dimension d of the perturbations before the event."""
        return len(self._get_mode(frozenset()).time_state.T)

    @property
    def input_dimension(self) -> int:
        """The number nu of inputs."""
        return len(self._get_mode(frozenset()).time_input.T)

    def __call__(
        self,
        dx: ArrayLike,
        du: ArrayLike | None = None,
        *,
        inputs: Sequence[ArrayLike] | None = None,
    ) -> Array:
        """Return the perturbation after the event.

        Args:
            dx: Perturbation (d,) before the event, or m of them in rows (m, d).
            du: Change (nu,) or (m, nu) of the input, the same at all micro-events.
            inputs: Changes (nu,) or (m, nu) of the input at each micro-event in the order of
                firing, in place of du, [RS] (4.33). A feedback that is switched off by the first
                micro-event has zeros from the second on.

        Returns:
            The perturbation (d+,), or (m, d+).

        Raises:
            InputError: An argument has a wrong shape.
        """
        return self.follow(dx, du, inputs=inputs).state

    def order(
        self,
        dx: ArrayLike,
        du: ArrayLike | None = None,
        *,
        inputs: Sequence[ArrayLike] | None = None,
    ) -> tuple[int, ...]:
        """Return the guards in the order in which they fire for one perturbation.

        Args:
            dx: Perturbation (d,) before the event.
            du: See a call.
            inputs: See a call.

        Returns:
            The indices (n) of the guards.

        Raises:
            InputError: An argument has a wrong shape.
        """
        dx = check_array("dx", dx, (self.dimension,))
        return tuple(int(j) for j in self.follow(dx, du, inputs=inputs).orders)

    def follow(
        self,
        dx: ArrayLike,
        du: ArrayLike | None = None,
        *,
        inputs: Sequence[ArrayLike] | None = None,
    ) -> Passage:
        """Return perturbations after the event, with the order and the times of firing.

        Perturbations with the same set of fired guards are computed together.

        Args:
            dx: See a call.
            du: See a call.
            inputs: See a call.

        Returns:
            The passage of one perturbation, or of m in rows.

        Raises:
            InputError: An argument has a wrong shape.
        """
        given = _check_rows("dx", dx, self.dimension)
        state = np.atleast_2d(given)
        count, n = len(state), len(self.guards)
        changes = self._check_inputs(du, inputs, count)
        orders, times = np.empty((count, n), dtype=np.intp), np.empty((count, n))
        # All perturbations with one set of fired guards are in the same phantom mode, whatever
        # their order was. There are up to 2^n sets, but n! orders.
        groups: _Groups = {frozenset(): [(np.arange(count), state)]}
        for k in range(n):
            following: _Groups = {}
            for fired, parts in groups.items():
                index, state = _join_parts(parts)
                u = None if changes is None else changes[k][index]
                for j, chosen, t, after in self._fire_next(fired, state, u):
                    rows = index[chosen]
                    orders[rows, k], times[rows, k] = j, t
                    following.setdefault(fired | {j}, []).append((rows, after))
            groups = following
        index, state = _join_parts(groups[frozenset(range(n))])
        result = np.empty_like(state)
        result[index] = state
        if given.ndim == 1:
            return Passage(result[0], orders[0], times[0])
        return Passage(result, orders, times)

    def jump(self, fired: frozenset[int], j: int) -> JumpGains:
        """Return the jump of guard j in the phantom mode of the guards in `fired`.

        Args:
            fired: Indices of the guards that have fired.
            j: Index of the guard, one of the others.

        Returns:
            The gains.

        Raises:
            SystemDefinitionError: They have sizes that do not fit.
        """
        return self._get_jump(fired, j)

    def with_feedback(self, gain: Callable[[frozenset[int]], Array]) -> PiecewiseLinearJump:
        """Return the jump under the feedback du = -K dx.

        Args:
            gain: Gain K (nu, d) in the phantom mode of the guards that have fired.
        """
        return PiecewiseLinearJump(self.guards, partial(_close_micro_jump, self, gain))

    def remaining_jump(self, fired: Iterable[int]) -> PiecewiseLinearJump:
        """Return the jump of the guards that are left where some have fired.

        Args:
            fired: Indices of those that have fired, not all.

        Returns:
            The jump of the others, in the order of declaration.

        Raises:
            InputError: None is left.
        """
        done = frozenset(fired)
        left = [j for j in range(len(self.guards)) if j not in done]

        def micro(later: frozenset[int], j: int) -> JumpGains:
            """Return the jump of guard j, an index into those left, after those in `later`."""
            return self.jump(done | {left[i] for i in later}, left[j])

        return PiecewiseLinearJump([self.guards[j] for j in left], micro)

    def order_gains(self, order: Sequence[int]) -> OrderGains:
        r"""Return the linear map of one order of firing, [RS] (4.33).

        With the gains G, J of each micro-event it is :math:`G_n \cdots G_1` and, for the input at
        micro-event i, :math:`G_n \cdots G_{i+1} J_i`.

        Args:
            order: Each of 0 to n-1 once.

        Returns:
            The map, whether or not a perturbation has this order.

        Raises:
            InputError: The order is no permutation of the guards.
        """
        if sorted(order) != list(range(len(self.guards))):
            raise InputError(
                f"order must have each of 0 to {len(self.guards) - 1} once, got {tuple(order)}"
            )
        columns, width, inputs = np.eye(self.dimension), self.dimension, self.input_dimension
        fired: frozenset[int] = frozenset()
        for j in order:
            jump = self._get_jump(fired, j)
            columns = np.hstack([_apply_saltation(jump, columns), jump.input])
            fired = fired | {j}
        cuts = [width + inputs * i for i in range(len(self.guards))]
        state, *rest = np.split(columns, cuts, axis=1)
        return OrderGains(state, tuple(rest))

    def matrix(self, order: Sequence[int]) -> Array:
        """Return the product (d+, d) of the saltation matrices in one order, [Bder] (57).

        Args:
            order: Each of 0 to n-1 once, else an `InputError` is raised.
        """
        return self.order_gains(order).state

    def pieces(self, *, accuracy: float = GAIN_ROUNDING) -> tuple[Piece, ...]:
        """Return all pieces: each order of firing whose cone has an interior, up to n! of them.

        The search drops a beginning of an order as soon as no perturbation has it, and solves about
        one linear program for each piece. Together the cones cover all perturbations, but for cones
        that are thinner than `_MIN_BALL_RADIUS`; their interiors do not meet. Guards that are tied
        for all perturbations, such as two equal ones, fire as they were declared and add no pieces.
        Pieces with the same matrix stay apart, as their union need not be convex; see
        `group_equal_pieces`.

        Args:
            accuracy: Relative error of the gains. Guards whose times differ by no more than it
                makes are tied.

        Returns:
            The pieces, ordered as their orders are (lexicographically).
        """
        first = self._get_mode(frozenset())
        width = first.time_state.shape[1]
        start = np.eye(width, width + first.time_input.shape[1])
        prefix = _OrderPrefix((), start, start, start[:0], np.zeros(start.shape[1]))
        return tuple(self._search_pieces(prefix, width, accuracy))

    def is_linear(self, *, accuracy: float = EVENT_ACCURACY) -> bool:
        """Return whether all pieces are one linear map of dx and du.

        Args:
            accuracy: Difference that counts as none, relative to the largest entry of the map, and
                relative error of the gains in `pieces`.
                Fields that are equal on both sides of an event differ by the rounding of its state,
                which stiff contacts multiply. Small entries may then be rounding alone, so all
                differences are compared with the largest entry, not each with its own.
        """
        pieces = self.pieces(accuracy=accuracy)
        return are_equal_maps(
            [np.hstack([piece.matrix, piece.input]) for piece in pieces], accuracy
        )

    def lineality(self) -> Array:
        """Return an orthonormal basis (d, k) of the perturbations l with l and -l in all cones.

        For these B(dx + l) = B(dx) + B(l), whatever dx is, if the input is not changed.
        """
        rows = np.vstack([normalize_rows(piece.cone) for piece in self.pieces()])
        if not rows.any():
            return np.eye(rows.shape[1])
        return np.asarray(null_space(rows, rcond=_MIN_BALL_RADIUS))

    def _evaluate_jump(self, fired: frozenset[int], j: int) -> JumpGains:
        """Return the jump of guard j after those in `fired`.

        Raises:
            SystemDefinitionError: The sizes of its gains do not fit together.
        """
        jump = self._micro(fired, j)
        before, after, inputs = len(jump.time_state), len(jump.field_change), len(jump.time_input)
        reset = (after, before) if jump.reset_state is None else jump.reset_state.shape
        fits = reset == (after, before) and jump.reset_input.shape == (after, inputs)
        if not fits or (jump.reset_state is None and after != before):
            raise SystemDefinitionError(
                f"the gains of {self._describe(fired, j)} must fit together, but time_state has "
                f"size {before}, time_input {inputs}, field_change {after}, reset_state {reset} "
                f"and reset_input {jump.reset_input.shape}"
            )
        return jump

    def _evaluate_mode(self, fired: frozenset[int]) -> PhantomMode:
        """Return the phantom mode after some guards.

        Args:
            fired: Guards that have fired.

        Returns:
            The mode. With `times` no jump is evaluated for it.

        Raises:
            SystemDefinitionError: Its guards act on different numbers of states or inputs.
        """
        left = tuple(j for j in range(len(self.guards)) if j not in fired)
        if self._times is not None:
            state, inputs = self._times(fired)
        else:
            jumps = [self.jump(fired, j) for j in left]
            for j, jump in zip(left, jumps, strict=True):
                size, first = ((len(g.time_state), len(g.time_input)) for g in (jump, jumps[0]))
                if size != first:
                    raise SystemDefinitionError(
                        f"the gains of {self._describe(fired, j)} act on {size} states and "
                        f"inputs, but those of guard {self.guards[left[0]]!r} there on {first}"
                    )
            state = np.stack([jump.time_state for jump in jumps])
            inputs = np.stack([jump.time_input for jump in jumps])
        sizes = (float(np.abs(gain).max(initial=0.0)) for gain in (state, inputs))
        return PhantomMode(left, state, inputs, *sizes)

    def _describe(self, fired: frozenset[int], j: int) -> str:
        """Return a micro-event in words, for messages."""
        return f"guard {self.guards[j]!r} after {[self.guards[i] for i in sorted(fired)]}"

    def _fire_next(
        self, fired: frozenset[int], state: Array, u: Array | None
    ) -> Iterator[tuple[int, Indices, Array, Array]]:
        """Yield each guard that fires next for some perturbations.

        Args:
            fired: Guards that have fired.
            state: Perturbations (m, d) in this phantom mode.
            u: Changes (m, nu) of the input. None for no change.

        Yields:
            The guard, the rows of `state` for which it is next, its times there, and the
            perturbations after it.
        """
        mode = self._get_mode(fired)
        times = mode.time_state @ state.T
        size = mode.state_size * (np.abs(state) @ np.ones(state.shape[1]))
        if u is not None:
            times += mode.time_input @ u.T
            size += mode.input_size * (np.abs(u) @ np.ones(u.shape[1]))
        # Of tied guards the first in the order of declaration.
        first = (times <= times.min(axis=0) + _TIE * size).argmax(axis=0)
        for position, j in enumerate(mode.left):
            chosen = np.flatnonzero(first == position)
            if chosen.size:
                t, jump = times[position, chosen], self._get_jump(fired, j)
                # dx' = D_xR dx + D_uR du - (f+ - Rdot) dt; without D_xR the reset is the identity.
                after = state[chosen]
                if jump.reset_state is not None:
                    after = after @ jump.reset_state.T
                after -= t[:, None] * jump.field_change
                if u is not None:
                    after += u[chosen] @ jump.reset_input.T
                yield j, chosen, t, after

    def _search_pieces(self, prefix: _OrderPrefix, width: int, accuracy: float) -> Iterator[Piece]:
        """Yield the pieces whose order begins with a prefix.

        Args:
            prefix: The beginning of an order.
            width: Dimension d of the perturbations before the event.
            accuracy: Relative error of the gains.

        Yields:
            The pieces.
        """
        order, columns, size = prefix.order, prefix.columns, prefix.size
        if len(order) == len(self.guards):
            (matrix, by_input), (cone, input_cone) = (
                np.split(whole, [width], axis=1) for whole in (columns, prefix.cone)
            )
            yield Piece(order, matrix, by_input, cone, input_cone, size)
            return
        fired = frozenset(order)
        mode = self._get_mode(fired)
        times, sizes = mode.time_state @ columns, np.abs(mode.time_state) @ size
        times[:, width:] += mode.time_input
        sizes[:, width:] += np.abs(mode.time_input)
        # `sizes` are the sums of the absolute terms of `times`, entry by entry, and `limits` is how
        # far rounding may put `times` wrong.
        limits = accuracy * _count_roundings(len(self.guards), columns.shape[1]) * sizes
        for position, j in enumerate(mode.left):
            rivals = np.delete(mode.left, position)
            delays = np.delete(times - times[position], position, axis=0)
            limit = np.delete(limits + limits[position], position, axis=0)
            tied = (np.abs(delays) <= limit).all(axis=1)
            if (rivals[tied] < j).any():  # of tied guards the one declared first fires
                continue
            # Delays of tied guards are rounding, and no boundary of the cone.
            cone = np.vstack([prefix.cone, delays[~tied]])
            interior = find_interior_point(cone, prefix.interior)
            if interior is not None:
                jump = self._get_jump(fired, j)
                after = _apply_jump(jump, columns, width)
                bound = _apply_jump(_bound_terms(jump), size, width)
                longer = _OrderPrefix((*order, j), after, bound, cone, interior)
                yield from self._search_pieces(longer, width, accuracy)

    def _check_inputs(
        self, du: ArrayLike | None, inputs: Sequence[ArrayLike] | None, count: int
    ) -> list[Array] | None:
        """Return the changes of the input (count, nu) at the micro-events; None for no change.

        Raises:
            InputError: Their number or shape is wrong, or both `du` and `inputs` are given.
        """
        n = len(self.guards)
        if du is not None and inputs is not None:
            raise InputError("give du, the same at all micro-events, or inputs, but not both")
        if du is not None:
            return [self._check_input("du", du, count)] * n
        if inputs is None:
            return None
        if len(inputs) != n:
            raise InputError(
                f"inputs must have one entry for each of {n} guards, got {len(inputs)}"
            )
        return [self._check_input(f"inputs[{k}]", u, count) for k, u in enumerate(inputs)]

    def _check_input(self, name: str, value: ArrayLike, count: int) -> Array:
        """Return a change of the input as (count, nu), one row for each perturbation.

        Raises:
            InputError: The shape is wrong.
        """
        u = _check_rows(name, value, self.input_dimension)
        if u.ndim == 2 and len(u) != count:
            raise InputError(f"{name} must have one row for each of {count} dx, got {len(u)}")
        return np.broadcast_to(u, (count, self.input_dimension))


def _close_micro_jump(
    piecewise: PiecewiseLinearJump,
    gain: Callable[[frozenset[int]], Array],
    fired: frozenset[int],
    j: int,
) -> JumpGains:
    """Return the jump of guard j under feedback; a function of the module can be pickled."""
    return piecewise.jump(fired, j).with_feedback(gain(fired))


_Groups = dict[frozenset[int], list[tuple[Indices, Array]]]
"""For each set of fired guards, the rows of the perturbations there, and these in parts."""


def _check_rows(name: str, value: ArrayLike, width: int) -> Array:
    """Return one perturbation (width,), or at least one in rows, as an array.

    Raises:
        InputError: The shape is wrong.
    """
    result = check_array(name, value)
    if result.ndim not in (1, 2) or result.shape[-1] != width or 0 in result.shape[:-1]:
        raise InputError(f"{name} must have shape ({width},) or (m, {width}), got {result.shape}")
    return result


def _join_parts(parts: list[tuple[Indices, Array]]) -> tuple[Indices, Array]:
    """Return the rows (m,) and the perturbations (m, d) of all parts of a group."""
    if len(parts) == 1:
        return parts[0]
    index, state = zip(*parts, strict=True)
    return np.concatenate(index), np.concatenate(state)


# Pieces


@dataclass(frozen=True, eq=False)
class Piece:
    """A cone of perturbations for which the guards fire in one order, and the linear map there.

    For dx and a du that is the same at all micro-events, the perturbation after the event is
    matrix @ dx + input @ du where cone @ dx + input_cone @ du >= 0 in all rows.

    Attributes:
        order: Indices of the guards as they fire.
        matrix: Derivative (d+, d) by the perturbation before the event.
        input: Derivative (d+, nu) by the change of the input.
        cone: Normals (r, d) of the cone by the perturbation.
        input_cone: Normals (r, nu) of the cone by the change of the input.
        size: Sums (d+, d + nu) of the absolute terms of [matrix, input], which bound its rounding.
    """

    order: tuple[int, ...]
    matrix: Array
    input: Array
    cone: Array
    input_cone: Array
    size: Array


def group_equal_pieces(
    pieces: Sequence[Piece], *, accuracy: float = GAIN_ROUNDING
) -> tuple[tuple[Piece, ...], ...]:
    """Return the pieces in groups that have the same linear map.

    A product of n matrices of gains with relative errors e is off by at most about n d e times the
    product of their absolute values, entry by entry.

    Args:
        pieces: The pieces of one jump.
        accuracy: Relative error of the gains.
    """
    groups: list[list[Piece]] = []
    for piece in pieces:
        for group in groups:
            first = group[0]
            change = np.hstack([piece.matrix - first.matrix, piece.input - first.input])
            limit = accuracy * _count_roundings(len(piece.order), piece.size.shape[1])
            if (np.abs(change) <= limit * (piece.size + first.size)).all():
                group.append(piece)
                break
        else:
            groups.append([piece])
    return tuple(tuple(group) for group in groups)


def are_equal_maps(maps: Sequence[Array], accuracy: float) -> bool:
    """Return whether maps differ from the first by at most this part of its largest entry.

    Args:
        maps: Maps of one shape, at least one.
        accuracy: Difference of an entry that counts as none, relative to that largest entry.
    """
    first, *others = maps
    limit = accuracy * np.abs(first).max(initial=0.0)
    return all(np.abs(other - first).max(initial=0.0) <= limit for other in others)


class _OrderPrefix(NamedTuple):
    """The beginning of an order of firing.

    Attributes:
        order: Guards that have fired.
        columns: Its linear map (d_k, d + nu) of (dx, du).
        size: Sums (d_k, d + nu) of the absolute terms of `columns`.
        cone: Normals (r, d + nu) of the perturbations with this beginning.
        interior: A point (d + nu,) well inside the cone.
    """

    order: tuple[int, ...]
    columns: Array
    size: Array
    cone: Array
    interior: Array


def _apply_saltation(jump: JumpGains, columns: Array) -> Array:
    """Return G @ columns, in O(d) for each column if the reset is the identity."""
    after = columns if jump.reset_state is None else jump.reset_state @ columns
    return after - np.outer(jump.field_change, jump.time_state @ columns)


def _apply_jump(jump: JumpGains, columns: Array, width: int) -> Array:
    """Return the map (d+, width + nu) of dx and du after a jump at which the same du acts."""
    after = _apply_saltation(jump, columns)
    after[:, width:] += jump.input
    return after


def _bound_terms(jump: JumpGains) -> JumpGains:
    """Return the gains of absolute values: a bound of the terms that cancel in a jump.

    `_apply_jump` subtracts `field_change` times the event time: with a minus sign it adds up.
    """
    return JumpGains(
        time_state=np.abs(jump.time_state),
        time_input=np.abs(jump.time_input),
        reset_state=None if jump.reset_state is None else np.abs(jump.reset_state),
        reset_input=np.abs(jump.reset_input),
        field_change=-np.abs(jump.field_change),
        reset_rate=np.abs(jump.reset_rate),
    )


def _count_roundings(guards: int, width: int) -> int:
    """Return how many roundings an entry of a product of gains has: each factor is a sum."""
    return guards * (width + 2)


def normalize_rows(rows: Array) -> Array:
    """Return the rows with length 1; rows of zeros stay zero."""
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(size > 0.0, size, 1.0)


def find_interior_point(cone: Array, guess: Array | None = None) -> Array | None:
    """Return a point well inside the cone rows @ z >= 0.

    Args:
        cone: Normals (r, n) of the cone, in rows.
        guess: A point (n,) that is returned if it is well inside. None to try the origin, which is
            well inside only if there are no rows.

    Returns:
        The guess. Else the point of the cube [-1, 1]^n with the largest distance from the nearest
        plane of the cone, distances above 1 counting as 1. None if
        that distance is below `_MIN_BALL_RADIUS`, so that the cone has no interior, or if neither
        method of `linprog` ends.
    """
    rows, width = normalize_rows(cone), cone.shape[1]
    guess = np.zeros(width) if guess is None else guess
    if (rows @ guess >= _MIN_BALL_RADIUS).all():
        return guess
    # The simplex method may give up on rows that are nearly parallel.
    for method in ("highs", "highs-ipm"):
        found = linprog(
            np.append(np.zeros(width), -1.0),
            A_ub=np.hstack([-rows, np.ones((len(rows), 1))]),
            b_ub=np.zeros(len(rows)),
            bounds=[(-1.0, 1.0)] * width + [(0.0, 1.0)],
            method=method,
        )
        if found.x is not None:
            return np.asarray(found.x[:width]) if found.x[width] >= _MIN_BALL_RADIUS else None
    return None
