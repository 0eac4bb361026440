r"""A whole integrator step as one compiled function.

Whole steps are those of `hybrid.step`: DOP853 with its error, the states at the Chebyshev nodes,
the guards there and their bounds; and, beside the stages k_i, those of the variational equation
along them,

.. math:: L_i = D_x f(t + c_i h, x_i)\, (1 + h \sum_j a_{ij} L_j),

so that the transition matrix 1 + h sum b_i L_i is the exact derivative of the step. On a manifold
it stands between T (nx, ndx), the derivative of coordinates by perturbations, at the start, and a
left inverse of T at the end. The covariance N of noise of density W, and of V in the input, that is
gathered on the step comes along the same stages, by

.. math:: \dot N = A N + N A^T + W + B V B^T, \quad A = D_x f, \; B = D_u f + c (B_0 - D_u f),

with B_0 what an input does where nothing is held, and c the compliance of what is.

A step of a small field is one function of scalars; that of a larger one calls its field and guards,
so that it is made in no time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.laws import HeldInput, InputLaw, LinearFeedback
from hybridctl.hybrid.many import Many, ManySteps
from hybridctl.hybrid.model import (
    Diffusion,
    JumpPoint,
    JumpTerms,
    ModeModel,
    ResetModel,
    StepAhead,
    StepTransition,
    WholeStep,
)
from hybridctl.hybrid.series import FRACTIONS, TO_SERIES
from hybridctl.hybrid.tableau import DOP853_TABLEAU, LOW_WEIGHT
from hybridctl.symbolic.compiled_function import Compiled, MappedFunction
from hybridctl.symbolic.compiled_reset import CompiledJump

Expression = Any
Function = Any
Rate = Callable[[int, Expression, Expression], tuple[Expression, Expression]]

_STAGES = DOP853_TABLEAU.stages
_INPUTS: Array = np.array([0.0, *DOP853_TABLEAU.nodes, *FRACTIONS])  # where a law is asked
_UNLIMITED: Array = np.array([[-np.inf], [np.inf]])
_LARGEST = 3000  # instructions of field and guards of a step that is made unasked
_INLINED = 200  # instructions of a function: copies of a smaller one cost less than calls of it
_MATRICES = {"step": (2, 3), "fed": (2, 3, 4), "varied": (3,), "noisy": (3, 4)}  # of the results
_LEAST = 1e-300  # keeps the error of a step that is exact from being 0 / 0


def expanded(function: Function) -> Function | None:
    """A function as scalars.

    None for one of MX of which not all can be expanded to SX, and for one that is too large to
    make whole steps or jumps of unasked.
    """
    try:
        scalars = function.expand()
    except RuntimeError:  # CasADi's, for what has no SX
        return None
    return scalars if scalars.n_instructions() <= _LARGEST else None


def made(
    name: str, motion: Function, tangent: Function | None, free: Function | None = None
) -> Function:
    """A compiled function of whole steps of a motion: see `CompiledMode.make`."""
    if name == "motion":
        return motion
    if name in ("varied", "noisy"):
        return varied_step(motion, tangent, name == "noisy", free)
    return whole_step(motion) if name == "step" else fed_step(motion)


class CompiledMode(ModeModel):
    """A mode that takes whole steps, where it is `compiled`, by functions made at first use."""

    @property
    def numbers(self) -> Array | None:
        """The last argument (n,) of its functions, where they have one more than these say."""
        return None

    @abstractmethod
    def make(self, name: str) -> Function:
        """A function by its name: "motion", of which whole steps are, or one of these.

        That is "step", "fed", "varied" or "noisy": see `whole_step`, `fed_step`, `varied_step`.
        """

    def jump_of(self, i: int, reset: ResetModel) -> CompiledJump | None:
        """The jump of guard i by a reset, if it is one of those that this mode is compiled with."""
        return None

    def jump_terms(self, i: int, reset: ResetModel, at: JumpPoint, du: Array) -> JumpTerms:
        """What guard i and a reset do to first order."""
        jump = self.jump_of(i, reset)
        if jump is None:
            return super().jump_terms(i, reset, at, du)
        return jump(at.t, at.x, at.u, du)

    @cached_property
    def motion(self) -> Function:
        """The function (t, x, u) -> rate (nx,), guards (n,), whether they are sound."""
        return self.make("motion")

    def _compiled(self, name: str) -> Compiled:
        """A function of `make`: some of its results are matrices, the others columns."""
        made = self.make(name)
        shapes: list[tuple[int, ...]] = [
            made.size_out(i)[::-1] if i in _MATRICES[name] else (made.numel_out(i),)
            for i in range(made.n_out())
        ]
        return Compiled(made, shapes, self.numbers)

    @cached_property
    def _step(self) -> Compiled:
        return self._compiled("step")

    @cached_property
    def _fed(self) -> Compiled:
        return self._compiled("fed")

    @cached_property
    def _varied(self) -> Compiled:
        return self._compiled("varied")

    @cached_property
    def _noisy(self) -> Compiled:
        return self._compiled("noisy")

    def many_jumps(self, i: int, reset: ResetModel) -> Many | None:
        """The jump of guard i by a reset that this mode is compiled with, from many points."""
        jump = self.jump_of(i, reset)
        return None if jump is None else jump.many

    @cached_property
    def many(self) -> ManySteps | None:
        """The steps from many points at once, where it is compiled."""
        if not self.compiled:
            return None
        rate = _part(self.motion, "rate", 0)
        rates = MappedFunction(rate, [(rate.numel_out(0),)])
        return ManySteps(rates, self._step.mapped(), partial(_matrices, self._varied.mapped()))

    def step(self, ahead: StepAhead, law: InputLaw) -> WholeStep | None:
        """The step under a held input, or in a vector space a feedback; None where not sound."""
        if not self.compiled:
            return None
        t, x, *numbers = ahead
        if isinstance(law, HeldInput):
            sound, error, states, guards, bounds = self._step((t, *numbers), x, law.value)
            inputs = law.at_nodes
        elif isinstance(law, LinearFeedback):
            offsets, gains = law.along(t + ahead.h * _INPUTS)
            limits = _UNLIMITED if law.limits is None else law.limits
            columns = (
                offsets.ravel(),
                gains.ravel(),
                *np.broadcast_to(limits, (2, offsets.shape[1])),
            )
            sound, error, states, fed, guards, bounds = self._fed((t, *numbers), x, *columns)
            inputs = fed.copy()
        else:
            return None
        if not sound[0] > 0.0:
            return None
        return WholeStep(float(error[0]), states.copy(), inputs, guards.copy(), bounds.copy())

    def transition(
        self, ahead: StepAhead, u: Array, noise: Diffusion | None = None
    ) -> StepTransition | None:
        """A step with its derivative, and noise; their entries count for the error too."""
        if not self.compiled:
            return None
        t, x, *numbers = ahead
        at = (t, *numbers), x, u
        if noise is None:
            sound, error, end, columns = self._varied(*at)
            more: list[Array] = []
        else:
            density, through_input, compliance = noise
            gathered = density.ravel(), through_input.ravel(), (compliance,)
            sound, error, end, columns, *more = self._noisy(*at, *gathered)
        if not sound[0] > 0.0:
            return None
        found = end.copy(), columns.T.copy(), *(a.copy() for a in more)
        return StepTransition(float(error[0]), *found)


def _matrices(varied: MappedFunction, *rows: Array) -> list[Array]:
    """The results of a varied step, with matrices in the order of C."""
    sound, error, end, columns = varied(*rows)
    return [sound, error, end, columns.transpose(0, 2, 1)]


class _StepInputs(NamedTuple):
    """The inputs of a step, as symbols: t, h, rtol and atol in `scalars`, x and u.

    numbers: what a motion has further for arguments, the same on the whole step.
    """

    scalars: Expression
    x: Expression
    u: Expression
    numbers: list[Expression]

    @staticmethod
    def of(motion: Function) -> _StepInputs:
        sizes = [4, *(motion.numel_in(i) for i in range(1, motion.n_in()))]
        scalars, x, u, *numbers = (ca.MX.sym("start", n) for n in sizes)
        return _StepInputs(scalars, x, u, numbers)

    @property
    def t(self) -> Expression:
        """The time at which the step begins, s."""
        return self.scalars[0]

    @property
    def h(self) -> Expression:
        """The length of the step, s."""
        return self.scalars[1]

    def scale(self, x: Expression, end: Expression) -> Expression:
        """What the error of each entry is measured by."""
        largest: Expression = ca.fmax(ca.fabs(x), ca.fabs(end))
        return self.scalars[3] + self.scalars[2] * largest

    def function(
        self,
        name: str,
        motion: Function,
        results: Sequence[Expression],
        more: Sequence[Expression],
    ) -> Function:
        """The results as a function of (t, h, rtol, atol), x, and more symbols, such as u."""
        symbols = [self.scalars, self.x, *more, *self.numbers]
        made = ca.Function(name, symbols, [ca.densify(r) for r in results])
        return _inlined(made) if motion.n_instructions() < _INLINED else made


def whole_step(motion: Function) -> Function:
    """A step: soundness, error, states (nx, 8) at the nodes, guards (n, 8) there, their bounds.

    motion: a Function (t, x, u) -> (rate (nx,) of the coordinates, guards (n,), sound) of dense SX,
    or one with further arguments, which are then the last ones of the step;
    where the scalar `sound` is not positive the others are not what they should be. The step is
    sound where all its evaluations are.
    """
    start = _StepInputs.of(motion)
    sound, error, states, _, *guards = _stepped(motion, start, lambda i, x: start.u)
    return start.function("step", motion, [sound, error, states, *guards], [start.u])


def fed_step(motion: Function) -> Function:
    """A step under u = b - K x, cut to limits: of (t, h, rtol, atol), x, b, K, and both limits.

    b (nu, k) and K (nx, nu k), transposed, at the stages and nodes. The results are those of
    `whole_step`, with the inputs (nu, 8) after the states.
    """
    start = _StepInputs.of(motion)
    nx, nu, k = start.x.numel(), start.u.numel(), len(_INPUTS)
    shapes = (nu, k), (nx, nu * k), (nu, 1), (nu, 1)
    offsets, gains, least, most = (ca.MX.sym("law", *shape) for shape in shapes)

    def law(i: int, x: Expression) -> Expression:
        u = offsets[:, i] - ca.mtimes(gains[:, nu * i : nu * (i + 1)].T, x)
        return ca.fmin(ca.fmax(u, least), most)

    return start.function(
        "fed", motion, _stepped(motion, start, law), (offsets, gains, least, most)
    )


def _stepped(
    motion: Function, start: _StepInputs, law: Callable[[int, Expression], Expression]
) -> tuple[Expression, ...]:
    """The results of a step: soundness, error, states, inputs and guards at the nodes, bounds.

    law: the input at the i-th of `_INPUTS` and a state.
    """
    t, h, x, more = start.t, start.h, start.x, start.numbers
    rate, guards = _part(motion, "rate", 0, 2), _part(motion, "guards", 1, 2)
    states, rates, sound = _stages(start, x, lambda i, t, y: rate(t, y, law(i, y), *more))
    end = states[_STAGES]
    nodes = [x, *(x + h * _sum(row, rates) for row in DOP853_TABLEAU.dense[1:-1]), end]
    inputs = [law(len(states) + i, node) for i, node in enumerate(nodes)]
    at_nodes = zip(FRACTIONS, nodes, inputs, strict=True)
    sampled = [guards(t + h * c, *at, *more) for c, *at in at_nodes]
    values = ca.horzcat(*(value for value, _ in sampled))
    first, second, *others = ca.horzsplit(ca.mtimes(values, ca.DM(TO_SERIES.T)))
    bounds = first - ca.fabs(second) - 2.0 * ca.sum2(ca.fabs(ca.horzcat(*others)))
    sound = ca.mmin(ca.vertcat(*sound, *(least for _, least in sampled)))
    error = _error(start, start.scale(x, end), rates)
    return sound, error, ca.horzcat(*nodes), ca.horzcat(*inputs), values, bounds


def varied_step(
    motion: Function, tangent: Function | None, noisy: bool, free: Function | None = None
) -> Function:
    """A step: soundness, error, end state (nx,), and its derivative (ndx, ndx) by the start.

    tangent: a Function x -> (T (nx, ndx), its left inverse (ndx, nx)), None in a vector space.
    noisy: the covariance (ndx, ndx) of the noise gathered on it, and bounds (n,) of the guards, are
    further results, for densities (ndx, ndx) and (nu, nu) and a compliance behind the other
    arguments. free: a Function x -> (nx, nu), what inputs do where nothing is held.
    """
    start = _StepInputs.of(motion)
    n, u = start.x.numel(), start.u
    varied = _with_slopes(motion, noisy)
    tangent = _flat(n) if tangent is None else tangent
    columns = ca.MX(tangent(start.x)[0])
    ndx = columns.size2()
    of_state, of_input = (ca.MX.sym("noise", k, k) for k in (ndx, u.numel()))
    compliance = ca.MX.sym("compliance")

    def rate(i: int, time: Expression, state: Expression) -> tuple[Expression, Expression]:
        value, slope, *by_input, sound = varied(time, state[:, 0], u, *start.numbers)
        turned = ca.mtimes(slope, state[:, 1:])
        if noisy:
            along, spread = tangent(state[:, 0])[0], turned[:, ndx:]
            spread += spread.T + along @ of_state @ along.T
            through = by_input[0]
            if free is not None:
                through += compliance * (free(state[:, 0], *start.numbers) - through)
            spread += through @ of_input @ through.T
            turned = ca.horzcat(turned[:, :ndx], spread)
        return ca.horzcat(value, turned), sound

    nothing = ca.MX(ca.DM.zeros(n, n if noisy else 0))
    begin = ca.densify(ca.horzcat(start.x, columns, nothing))
    states, rates, sound = _stages(start, begin, rate, _STAGES)
    end, back = states[_STAGES], tangent(states[_STAGES][:, 0])[1]
    errors = []
    for part in (slice(0, 1), slice(1, 1 + ndx)):
        scale = start.scale(begin[:, part], end[:, part])
        errors.append(_error(start, scale, [rate[:, part] for rate in rates]))
    results = [ca.mmin(ca.vertcat(*sound)), end[:, 0], ca.mtimes(back, end[:, 1 : 1 + ndx])]
    if not noisy:
        results.insert(1, ca.fmax(*errors))
        return start.function("varied", varied, results, [u])
    gathered = end[:, 1 + ndx :]
    deviations = ca.sqrt(ca.fabs(ca.diag(gathered)))
    # what is held gathers no more than rounding: deviations below atol count as atol
    scale = start.scalars[2] * (deviations @ deviations.T + start.scalars[3] ** 2) + _LEAST
    errors.append(_error(start, scale, [rate[:, 1 + ndx :] for rate in rates]))
    *_, bounds = _stepped(motion, start, lambda i, x: u)
    results += [back @ gathered @ back.T, bounds]
    results.insert(1, ca.mmax(ca.vertcat(*errors)))
    return start.function("noisy", varied, results, (u, of_state, of_input, compliance))


def _flat(n: int) -> Function:
    """The tangent of a vector space."""
    unit = ca.DM.eye(n)
    return ca.Function("flat", [ca.SX.sym("x", n)], [unit, unit])


def _inlined(made: Function) -> Function:
    """A function of scalars, each of them evaluated once."""
    scalars = made.expand()
    symbols = scalars.sx_in()
    return ca.Function(made.name(), symbols, ca.cse(list(scalars(*symbols))))


def _part(motion: Function, name: str, *which: int) -> Function:
    """A function of only some of the results of a motion."""
    symbols = motion.sx_in()
    results = motion(*symbols)
    return ca.Function(name, symbols, ca.cse([results[i] for i in which]))


def _with_slopes(motion: Function, by_input: bool) -> Function:
    """Rate, its derivative (nx, nx), that (nx, nu) by the input if wanted, and soundness."""
    t, x, u, *numbers = motion.sx_in()
    rate, _, sound = motion(t, x, u, *numbers)
    slopes = [ca.densify(ca.jacobian(rate, by)) for by in ((x, u) if by_input else (x,))]
    return ca.Function("varied", [t, x, u, *numbers], ca.cse([rate, *slopes, sound]))


def _stages(
    start: _StepInputs, x: Expression, rate: Rate, last: int | None = None
) -> tuple[list[Expression], list[Expression], list[Expression]]:
    """States and rates at the stages of a step from x, the last one its end, and their soundness.

    All stages by default, with those of the dense output. rate: of the stage's number, time, state.
    """
    first, least = rate(0, start.t, x)
    states, rates, sound = [x], [first], [least]
    for row, node in zip(DOP853_TABLEAU.rows[:last], DOP853_TABLEAU.nodes, strict=False):
        states.append(x + start.h * _sum(row, rates))
        value, least = rate(len(rates), start.t + node * start.h, states[-1])
        rates.append(value)
        sound.append(least)
    return states, rates, sound


def _error(start: _StepInputs, scale: Expression, rates: Sequence[Expression]) -> Expression:
    """The error of a step in units of `scale`, as `Tableau.error` has it."""
    main, low = (ca.sumsqr(_sum(row, rates) / scale) for row in DOP853_TABLEAU.errors)
    below = ca.sqrt((main + LOW_WEIGHT * low + _LEAST) * scale.numel())
    return ca.fabs(start.h) * main / below


def _sum(weights: Array, terms: Sequence[Expression]) -> Expression:
    """The weighted sum of terms, of which there may be more than weights."""
    kept = [(w, term) for w, term in zip(weights.tolist(), terms, strict=False) if w]
    columns = ca.horzcat(*(ca.vec(term) for _, term in kept))
    total = ca.mtimes(columns, ca.DM([w for w, _ in kept]))
    return ca.reshape(total, terms[0].shape)
