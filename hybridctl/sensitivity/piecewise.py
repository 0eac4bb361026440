r"""The first-order jump of simultaneous guards: piecewise linear, one piece for each order.

n guards reach zero together on the nominal trajectory; on a perturbed one they fire one after the
other. With :math:`S` the guards that have fired and :math:`j \notin S` another one, its jump in the
mode that holds between them (a *phantom* mode, evaluated at the nominal event) is

.. math::
    \delta t_j = a_{S,j}\, \delta x + b_{S,j}\, \delta u, \qquad
    \delta x' = D_x R\, \delta x + D_u R\, \delta u - (f^+ - \dot R)\, \delta t_j .

The guard with the least :math:`\delta t_j` fires, :math:`\delta x'` replaces :math:`\delta x`, and
so on until all have fired: [Bder] (61), (62), with deviations carried back to the nominal time, so
that resets, inputs and changes of dimension are served too, [RS] (4.33), (4.46).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import Array, Indices, check_array
from hybridctl.base.errors import InputError
from hybridctl.sensitivity.gains import JumpGains
from hybridctl.sensitivity.pieces import (
    EVENT_ACCURACY,
    ROUNDING,
    Micro,
    PhantomModes,
    Piece,
    Times,
    alike,
    common_lineality,
    search,
    through,
)

_TIE = 1e-13  # of the size of its terms: that much a time may be off by rounding


class Passage(NamedTuple):
    """What becomes of one direction, or of m of them in rows.

    state (d+,): the deviation after all guards. orders (n,): the guards as they fired. times (n,):
    the shifts of the event times, s per unit, in the same order.
    """

    state: Array
    orders: Indices
    times: Array


class OrderGains(NamedTuple):
    """The linear map of one order: state (d+, d), and inputs[i] (d+, nu) of micro-event i."""

    state: Array
    inputs: tuple[Array, ...]


class PiecewiseLinearJump:
    r"""The jump of n guards that fire together, as a function of the deviation before them.

    guards: their names. micro(fired, j): the first-order jump of guard j (0 to n-1) in the phantom
    mode in which the guards `fired` have fired; asked for when needed, and kept. All guards of one
    phantom mode act on the same dimension. times(fired), if given, returns the time_state (k, d)
    and time_input (k, nu) of the guards that are left, in ascending order, so that `micro` is asked
    for guards that do fire only.

    A call takes O(n^2 d) time and O(d) memory for each direction if the resets are the identity.
    Times that agree to rounding are a tie, and of tied guards the one that was declared first
    fires. Where the jumps commute to first order, as they do without resets, the answer does not
    depend on this; `order` does.
    """

    def __init__(self, guards: Sequence[str], micro: Micro, times: Times | None = None) -> None:
        self._modes = PhantomModes(guards, micro, times)

    @property
    def guards(self) -> tuple[str, ...]:
        """The names of the guards."""
        return self._modes.guards

    @property
    def dimension(self) -> int:
        """The dimension d of the deviations before the event."""
        return len(self._modes.mode(frozenset()).time_state.T)

    @property
    def input_dimension(self) -> int:
        """The number nu of inputs."""
        return len(self._modes.mode(frozenset()).time_input.T)

    def __call__(
        self,
        dx: ArrayLike,
        du: ArrayLike | None = None,
        *,
        inputs: Sequence[ArrayLike] | None = None,
    ) -> Array:
        """The deviation (d+,) after the event for dx (d,), or (m, d+) for m of them in rows.

        du (nu,) or (m, nu): change of the input, the same at all micro-events. Or inputs: n such
        arrays, one for each micro-event in the order of firing, as in [RS] (4.33); feedback that
        is held off after the first has zeros from the second on. Raises `InputError`.
        """
        return self.follow(dx, du, inputs=inputs).state

    def jump(self, fired: frozenset[int], j: int) -> JumpGains:
        """The first-order jump of guard j in the phantom mode in which `fired` have fired."""
        return self._modes.jump(fired, j)

    def fed_back(self, gain: Callable[[frozenset[int]], Array]) -> PiecewiseLinearJump:
        """The jump where the input changes by -K dx besides, with K = gain(fired) (nu, d)."""
        return PiecewiseLinearJump(self.guards, partial(_fed_back, self, gain))

    def after(self, fired: Iterable[int]) -> PiecewiseLinearJump:
        """The jump of the guards that are left where `fired` have fired, in their order."""
        done = frozenset(fired)
        left = [j for j in range(len(self.guards)) if j not in done]

        def micro(then: frozenset[int], j: int) -> JumpGains:
            return self.jump(done | {left[i] for i in then}, left[j])

        return PiecewiseLinearJump([self.guards[j] for j in left], micro)

    def order(
        self,
        dx: ArrayLike,
        du: ArrayLike | None = None,
        *,
        inputs: Sequence[ArrayLike] | None = None,
    ) -> tuple[int, ...]:
        """The guards in the order in which they fire for one direction dx (d,)."""
        dx = check_array("dx", dx, (self.dimension,))
        return tuple(int(j) for j in self.follow(dx, du, inputs=inputs).orders)

    def follow(
        self,
        dx: ArrayLike,
        du: ArrayLike | None = None,
        *,
        inputs: Sequence[ArrayLike] | None = None,
    ) -> Passage:
        """The deviation after the event, the order and the times, for one dx or for many.

        Directions with the same set of fired guards are moved together.
        """
        state = _directions("dx", dx, self.dimension)
        single, state = state.ndim == 1, np.atleast_2d(state)
        count, n = len(state), len(self.guards)
        steps = self._steps(du, inputs, count)
        orders, times = np.empty((count, n), dtype=np.intp), np.empty((count, n))
        groups: _Groups = {frozenset(): [(np.arange(count), state)]}
        for k in range(n):
            following: _Groups = {}
            for fired, parts in groups.items():
                index, state = _joined(parts)
                u = None if steps is None else steps[k][index]
                for j, chosen, t, after in self._fire(fired, state, u):
                    rows = index[chosen]
                    orders[rows, k], times[rows, k] = j, t
                    following.setdefault(fired | {j}, []).append((rows, after))
            groups = following
        index, state = _joined(groups[frozenset(range(n))])
        result = np.empty_like(state)
        result[index] = state
        if single:
            return Passage(result[0], orders[0], times[0])
        return Passage(result, orders, times)

    def gains(self, order: Sequence[int]) -> OrderGains:
        """The products G_n ... G_1 and, for micro-event i, G_n ... G_{i+1} J_i, [RS] (4.33)."""
        columns, width, inputs = np.eye(self.dimension), self.dimension, self.input_dimension
        fired: frozenset[int] = frozenset()
        for j in self._permutation(order):
            jump = self._modes.jump(fired, j)
            columns = np.hstack([through(jump, columns), jump.input])
            fired = fired | {j}
        cuts = [width + inputs * i for i in range(len(self.guards))]
        state, *rest = np.split(columns, cuts, axis=1)
        return OrderGains(state, tuple(rest))

    def matrix(self, order: Sequence[int]) -> Array:
        """The product (d+, d) of the saltation matrices in this order, [Bder] (57)."""
        return self.gains(order).state

    def pieces(self, *, accuracy: float = ROUNDING) -> tuple[Piece, ...]:
        """All orders whose cone has an interior, with their matrices; up to n! of them.

        Found by a search over the orders that drops a beginning as soon as no direction has it,
        at one linear program for about each piece. Together the cones cover the directions, and
        their interiors do not meet. Guards that are tied in all directions (two equal ones) fire
        as they were declared and add no pieces. Pieces with the same matrix stay apart, as their
        union need not be convex: see `distinct`. accuracy: relative, of the gains.
        """
        return tuple(search(self._modes, accuracy))

    def is_linear(self, *, accuracy: float = EVENT_ACCURACY) -> bool:
        """Whether all pieces are one linear map of dx and du.

        accuracy: of the largest entry of that map. Fields that are equal on both sides of an event
        differ by the rounding of its state, which stiff contacts multiply, so that what is left of
        their difference has no accurate digit, and its entries are small beside that largest one.
        """
        pieces = self.pieces(accuracy=accuracy)
        return alike([np.hstack([piece.matrix, piece.input]) for piece in pieces], accuracy)

    def lineality(self) -> Array:
        """An orthonormal basis (d, k) of the directions l that lie in all cones, as -l does.

        For these B(dx + l) = B(dx) + B(l), whatever dx.
        """
        return common_lineality(self.pieces())

    def _fire(
        self, fired: frozenset[int], state: Array, u: Array | None
    ) -> Iterator[tuple[int, Indices, Array, Array]]:
        """Each next guard, the rows of `state` for which it is next, its times, the new state."""
        mode = self._modes.mode(fired)
        times = mode.time_state @ state.T
        size = mode.state_size * (np.abs(state) @ np.ones(state.shape[1]))
        if u is not None:
            times += mode.time_input @ u.T
            size += mode.input_size * (np.abs(u) @ np.ones(u.shape[1]))
        first = (times <= times.min(axis=0) + _TIE * size).argmax(axis=0)
        for position, j in enumerate(mode.left):
            chosen = np.flatnonzero(first == position)
            if chosen.size:
                t, jump = times[position, chosen], self._modes.jump(fired, j)
                after = state[chosen]
                if jump.reset_state is not None:
                    after = after @ jump.reset_state.T
                after -= t[:, None] * jump.field_change
                if u is not None:
                    after += u[chosen] @ jump.reset_input.T
                yield j, chosen, t, after

    def _permutation(self, order: Sequence[int]) -> tuple[int, ...]:
        if sorted(order) != list(range(len(self.guards))):
            raise InputError(
                f"order must have each of 0 to {len(self.guards) - 1} once, got {tuple(order)}"
            )
        return tuple(order)

    def _steps(
        self, du: ArrayLike | None, inputs: Sequence[ArrayLike] | None, count: int
    ) -> list[Array] | None:
        """The change of the input (m, nu) at each micro-event."""
        n = len(self.guards)
        if du is not None and inputs is not None:
            raise InputError("give du, the same at all micro-events, or inputs, but not both")
        if du is not None:
            return [self._step("du", du, count)] * n
        if inputs is None:
            return None
        if len(inputs) != n:
            raise InputError(
                f"inputs must have one entry for each of {n} guards, got {len(inputs)}"
            )
        return [self._step(f"inputs[{k}]", u, count) for k, u in enumerate(inputs)]

    def _step(self, name: str, value: ArrayLike, count: int) -> Array:
        u = _directions(name, value, self.input_dimension)
        if u.ndim == 2 and len(u) != count:
            raise InputError(f"{name} must have one row for each of {count} dx, got {len(u)}")
        return np.broadcast_to(u, (count, self.input_dimension))


def _fed_back(
    piecewise: PiecewiseLinearJump,
    gain: Callable[[frozenset[int]], Array],
    fired: frozenset[int],
    j: int,
) -> JumpGains:
    return piecewise.jump(fired, j).fed_back(gain(fired))


_Groups = dict[frozenset[int], list[tuple[Indices, Array]]]


def _directions(name: str, value: ArrayLike, width: int) -> Array:
    """One direction (width,), or at least one in rows."""
    result = check_array(name, value)
    if result.ndim not in (1, 2) or result.shape[-1] != width or 0 in result.shape[:-1]:
        raise InputError(f"{name} must have shape ({width},) or (m, {width}), got {result.shape}")
    return result


def _joined(parts: list[tuple[Indices, Array]]) -> tuple[Indices, Array]:
    if len(parts) == 1:
        return parts[0]
    index, state = zip(*parts, strict=True)
    return np.concatenate(index), np.concatenate(state)
