r"""Many balls at once, in closed form: a propagation for the particle filter.

In the frame of the slope the ball of `ball` falls apart into a tangential and a normal coordinate
of constant acceleration, so that impacts, stops and the flow between them are roots and values of
parabolas for all particles together; only the events of one particle follow each other.

Noise of the force, of density W, over an arc of length T, is that of the double integrator

.. math:: \delta v = \sqrt{T} z_1, \qquad \delta q = T^{3/2} (z_1 / 2 + z_2 / \sqrt{12}), \qquad
          z_i \sim N(0, W / m^2),

exact in distribution. It is drawn where the arc of the undisturbed ball ends; the event then
happens where the disturbed one is on the slope, by its parabola. To first order that is what the
saltation matrix does to noise; the time between the two is without noise of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from hybridctl.robots import ball
from numpy.typing import ArrayLike, NDArray

from hybridctl.checks import Array, Indices, number, semidefinite
from hybridctl.errors import EventLimitError, InputError, UnknownNameError
from hybridctl.hybrid.mode import ModeKey
from hybridctl.hybrid.trajectory import Event
from hybridctl.mechanics.contact_states import CLOSED, OPEN, SLIP_MINUS, SLIP_PLUS, STICK
from hybridctl.mechanics.tolerances import STANDSTILL

_FREE, _CLOSED, _STICK, _PLUS, _MINUS = range(5)
_KEYS: tuple[ModeKey, ...] = ((OPEN,), (CLOSED,), (STICK,), (SLIP_PLUS,), (SLIP_MINUS,))
_DECAY = 20.0  # 1/s, of what keeps a particle with contact off the surface
_SIGNS = np.array([0.0, 0.0, 0.0, 1.0, -1.0])  # of the sliding velocity
_MOST_ROUNDS = 1000

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Law:
    """What moves a ball, in the frame of the slope.

    mobility (2, 2): changes of velocity in the frame by impulses along x and z, 1/kg. push and
    kick (2, 2): changes of velocity by normal draws, over one second and with an impact; None
    without noise. decay: rate at which residuals of closed contacts vanish, 1/s. offset: deviation
    of the height of the slope, m.
    """

    mobility: Array
    gravity: Array
    mass: float
    rough: bool
    friction: float
    restitution: float
    decay: float
    push: Array | None
    kick: Array | None
    offset: float
    rest: float


@dataclass(frozen=True, eq=False)
class _Happened:
    """The same event of some particles: rows (k,), times (k,), states in the frame (k, 4)."""

    rows: Indices
    times: Array
    guard: str
    modes: tuple[Indices, Indices]
    states: tuple[Array, Array]
    impulses: Array


class BallParticles:
    r"""`propagate` of a `ParticleFilter` for `ball.system`, of all particles at once.

    parameters: of the ball. force_noise (2, 2): density of a force along x and z, N^2 s.
    reset_noise (2, 2): covariance of an impulse with every impact, N^2 s^2. guard_noise: variance
    of the height at which the slope is hit, m^2; other guards have none. As `Noise` through the
    input, what a contact holds takes no noise. rest: bounces that would end within this time, in
    s, are left out, and the ball rests, as in `simulate(on_zeno="rest")` with that `zeno_horizon`.

    Particles may begin below the slope: those that fall hit it in the past, where they were on
    it, and those that rise come out of it.

    Raises `InputError` for parameters or noise that are none, and for states that do not fit the
    modes; `EventLimitError` where a particle has more than a thousand events in one interval.
    """

    def __init__(
        self,
        parameters: ball.Parameters | None = None,
        force_noise: ArrayLike | None = None,
        reset_noise: ArrayLike | None = None,
        guard_noise: float = 0.0,
        *,
        rest: float = 1e-3,
    ) -> None:
        p = parameters or ball.Parameters()
        (contact,) = ball.contacts(p)
        along = np.array([[np.cos(p.slope), -np.sin(p.slope)], [np.sin(p.slope), np.cos(p.slope)]])
        self._frame = np.kron(np.eye(2), along)
        self._law = _Law(
            along / p.mass,
            along @ np.array([0.0, -p.gravity]),
            float(p.mass),
            contact.rough,
            float(p.friction),
            float(p.restitution),
            _DECAY,
            _root("force_noise", force_noise, along / p.mass),
            _root("reset_noise", reset_noise, along / p.mass),
            float(np.sqrt(number("guard_noise", guard_noise, at_least=0.0))),
            number("rest", rest, at_least=0.0),
        )
        names = (OPEN, *((STICK, SLIP_PLUS, SLIP_MINUS) if contact.rough else (CLOSED,)))
        self._known: dict[ModeKey, int] = {(name,): _KEYS.index((name,)) for name in names}

    def __call__(
        self,
        modes: Sequence[ModeKey],
        states: Array,
        start: float,
        end: float,
        u: Array,
        rng: np.random.Generator,
    ) -> tuple[tuple[ModeKey, ...], Array, Mapping[int, tuple[Event, ...]]]:
        """Modes, states (n, 4) and events by row, at time `end`, with force u (2,) held."""
        if np.shape(states) != (len(modes), 4) or np.shape(u) != (2,):
            raise InputError(
                f"states must have shape ({len(modes)}, 4) and u (2,), got {np.shape(states)} and "
                f"{np.shape(u)}"
            )
        unknown = [key for key in dict.fromkeys(modes) if key not in self._known]
        if unknown:
            raise UnknownNameError(f"modes must be of {list(self._known)}, got {unknown}")
        codes = np.array([self._known[key] for key in modes], dtype=np.intp)
        run = _Run(self._law, codes, states @ self._frame.T, start, end, u, rng)
        run.go()
        found = tuple(_KEYS[code] for code in run.modes.tolist())
        return found, run.states @ self._frame, self._events(run, u)

    def _events(self, run: _Run, u: Array) -> dict[int, tuple[Event, ...]]:
        none, found = np.zeros(2), dict[int, list[Event]]()
        for batch in run.happened:
            before, after = (z @ self._frame for z in batch.states)
            codes = zip(*(codes.tolist() for codes in batch.modes), strict=True)
            impulses, guards = batch.impulses[:, None], (f"{ball.CONTACT} {batch.guard}",)
            for j, (row, time, (old, new)) in enumerate(
                zip(batch.rows.tolist(), batch.times.tolist(), codes, strict=True)
            ):
                own = found.setdefault(row, [])
                x = before[j], after[j]
                modes = _KEYS[old], _KEYS[new]
                own.append(Event(len(own), time, *modes, guards, *x, u, u, none, impulses[j]))
        return {row: tuple(events) for row, events in found.items()}


class _Run:
    """One interval: modes (n,), states (n, 4) in the frame, the time that is left of it (n,)."""

    def __init__(
        self,
        law: _Law,
        modes: Indices,
        states: Array,
        start: float,
        end: float,
        u: Array,
        rng: np.random.Generator,
    ) -> None:
        self.law, self.rng = law, rng
        self.end, self.length = end, end - start
        self.modes, self.states = modes, states
        self.left = np.full(len(modes), self.length)
        self.acceleration = law.gravity + law.mobility @ u
        self.happened: list[_Happened] = []

    def go(self) -> None:
        """To the end of the interval, one event of each particle after the other."""
        self._begin()
        for _ in range(_MOST_ROUNDS):
            rows = np.flatnonzero(self.left > 0.0)
            if not rows.size:
                return
            until = self._until(rows)
            ends = until < self.left[rows]
            self._travel(rows, np.where(ends, until, self.left[rows]))
            open_ = self.modes[rows] == _FREE
            self._hit(rows[ends & open_])
            self._stop(rows[ends & ~open_])
        raise EventLimitError(
            f"a particle has more than {_MOST_ROUNDS} events by t = {self.end:.9g} s"
        )

    def _begin(self) -> None:
        """Modes that the input allows: closed contacts open or slip where it has changed."""
        rows = np.flatnonzero(self.modes != _FREE)
        before, z = self.modes[rows], self.states[rows]
        after = self._selected(before, z[:, 2])
        self.modes[rows] = after
        for guard, found in (
            ("opens", after == _FREE),
            ("slips+", (before == _STICK) & (after == _PLUS)),
            ("slips-", (before == _STICK) & (after == _MINUS)),
        ):
            modes, same = (before[found], after[found]), z[found]
            self._note(rows[found], guard, modes, (same, same), np.zeros(len(same)))

    def _selected(self, modes: Indices, speeds: Array) -> Indices:
        """How contacts that are closed flow on, by sliding velocity and acceleration."""
        tangential, normal = self.acceleration
        if normal > 0.0:
            return np.full(len(modes), _FREE)
        if not self.law.rough:
            return np.full(len(modes), _CLOSED)
        slow = (modes == _STICK) | (np.abs(speeds) <= STANDSTILL)
        holds = abs(tangential) <= -self.law.friction * normal
        slides = np.where(np.where(slow, tangential, speeds) > 0.0, _PLUS, _MINUS)
        return np.where(slow & holds, _STICK, slides)

    def _slide(self, modes: Indices) -> Array:
        """Tangential acceleration (k,)."""
        tangential, normal = self.acceleration
        friction = _SIGNS[modes] * self.law.friction * normal
        return np.where(modes == _STICK, 0.0, tangential + friction)

    def _until(self, rows: Indices) -> Array:
        """The time to the next event (k,), negative for one that should have happened."""
        z, modes = self.states[rows], self.modes[rows]
        fall = landing(z[:, 1], z[:, 3], float(self.acceleration[1]))
        rate = self._slide(modes)
        brakes = (_SIGNS[modes] != 0.0) & (rate * z[:, 2] < 0.0)
        stop = np.where(brakes, -z[:, 2] / np.where(brakes, rate, 1.0), np.inf)
        return np.where(modes == _FREE, fall, stop)

    def _travel(self, rows: Indices, times: Array) -> None:
        """Flow and noise over these times (k,); before the interval without noise."""
        before = np.maximum(self.left[rows] - self.length, 0.0)
        self._flow(rows, times)
        if self.law.push is None:
            return
        draws = self.rng.standard_normal((2, len(rows), 2)) @ self.law.push.T
        first, second = (self._free(self.modes[rows], draw) for draw in draws)
        t = np.maximum(times - before, 0.0)[:, None]
        self.states[rows, :2] += t**1.5 * (0.5 * first + second / np.sqrt(12.0))
        self.states[rows, 2:] += np.sqrt(t) * first

    def _flow(self, rows: Indices, t: Array) -> None:
        """The undisturbed flow over these times (k,)."""
        self.left[rows] -= t
        modes = self.modes[rows]
        s, h, v, w = self.states[rows].T
        rate, normal, decay = self._slide(modes), float(self.acceleration[1]), self.law.decay
        airborne, stuck = modes == _FREE, modes == _STICK
        fade = np.exp(-decay * np.where(airborne, 0.0, t))
        halt = fade**2
        along = np.where(stuck, v * _faded(2.0 * decay, t, halt), v * t + 0.5 * rate * t**2)
        speed = np.where(stuck, v * halt, v + rate * t)
        pull = w + decay * h
        height = np.where(airborne, h + w * t + 0.5 * normal * t**2, (h + pull * t) * fade)
        climb = np.where(airborne, w + normal * t, (w - decay * pull * t) * fade)
        self.states[rows] = np.column_stack([s + along, height, speed, climb])

    def _free(self, modes: Indices, draws: Array) -> Array:
        """The part of a push (k, 2) along the frame that contacts let through."""
        sliding = draws[:, 0] + _SIGNS[modes] * self.law.friction * draws[:, 1]
        sliding = np.where(modes == _STICK, 0.0, sliding)
        return np.where(
            (modes == _FREE)[:, None], draws, np.column_stack([sliding, np.zeros(len(modes))])
        )

    def _shifted(self, rows: Indices, times: Array) -> Bools:
        """Flow to where a disturbed event happens; False if that is after the interval."""
        self._flow(rows, times)
        late = self.left[rows] < 0.0
        self._flow(rows[late], self.left[rows[late]])
        return ~late

    def _hit(self, rows: Indices) -> None:
        """Impacts, of particles that noise has not turned upwards."""
        normal = float(self.acceleration[1])
        offset = self.law.offset * self.rng.standard_normal(len(rows)) if self.law.offset else 0.0
        height, climb = self.states[rows, 1] + offset, self.states[rows, 3]
        sunk = climb**2 < 2.0 * normal * height
        falls = sunk | (climb <= 0.0)
        shift = np.where(sunk | (climb >= 0.0), 0.0, landing(height, climb, normal))
        rows, shift = rows[falls], shift[falls]
        self._bounce(rows[self._shifted(rows, shift)])

    def _bounce(self, rows: Indices) -> None:
        """Newton's restitution and Coulomb's friction; plastic where the ball comes to rest."""
        law, z = self.law, self.states[rows]
        e, speed = law.restitution, np.maximum(-z[:, 3], 0.0)
        up = e * speed
        rests = 2.0 * up <= law.rest * (1.0 - e) * max(-float(self.acceleration[1]), 0.0)
        up = np.where(rests, 0.0, up)
        grip = law.friction * (speed + up)
        after = z.copy()
        after[:, 2] -= np.clip(z[:, 2], -grip, grip)
        after[:, 3] = up
        modes = np.where(rests, self._selected(np.full(len(rows), _PLUS), after[:, 2]), _FREE)
        if law.kick is not None:
            kicks = self.rng.standard_normal((len(rows), 2)) @ law.kick.T
            after[:, 2:] += self._free(modes, kicks)
        self._note(rows, "closes", (self.modes[rows], modes), (z, after), law.mass * (speed + up))
        self.states[rows], self.modes[rows] = after, modes

    def _stop(self, rows: Indices) -> None:
        """Sliding ends."""
        shift = -self.states[rows, 2] / self._slide(self.modes[rows])
        rows = rows[self._shifted(rows, shift)]
        z = self.states[rows]
        after = z.copy()
        after[:, 2] = 0.0
        modes = self._selected(self.modes[rows], after[:, 2])
        self._note(rows, "sticks", (self.modes[rows], modes), (z, after), np.zeros(len(rows)))
        self.states[rows], self.modes[rows] = after, modes

    def _note(
        self,
        rows: Indices,
        guard: str,
        modes: tuple[Indices, Indices],
        states: tuple[Array, Array],
        impulses: Array,
    ) -> None:
        if rows.size:
            times = self.end - self.left[rows]
            self.happened.append(_Happened(rows, times, guard, modes, states, impulses))


def _root(name: str, covariance: ArrayLike | None, mobility: Array) -> Array | None:
    """What takes normal draws to changes of velocity; None without noise."""
    if covariance is None:
        return None
    values, vectors = np.linalg.eigh(semidefinite(name, covariance, 2))
    root = mobility @ (vectors * np.sqrt(np.maximum(values, 0.0)))
    return root if root.any() else None


def landing(h: Array, v: Array, a: float) -> Array:
    """The time (k,) at which h + v t + a t^2 / 2 falls through zero.

    Negative for those that are below and fall. Of those whose parabola stays below zero: the time
    of its highest point. Infinite for those that never fall through it.
    """
    discriminant = v**2 - 2.0 * a * h
    root = np.sqrt(np.maximum(discriminant, 0.0))
    falls = v < 0.0
    soon = 2.0 * h / np.where(falls, root - v, 1.0)
    later = (v + root) / -a if a < 0.0 else np.full_like(h, np.inf)
    top = -v / a if a < 0.0 else np.full_like(h, np.inf)
    return np.where(discriminant < 0.0, top, np.where(falls, soon, later))


def _faded(rate: float, t: Array, fade: Array) -> Array:
    """The integral of exp(-rate t), with `fade` its value at t."""
    return (1.0 - fade) / rate if rate > 0.0 else t
