r"""Whole integrator steps as compiled functions.

A step is that of `hybrid.step`: the method DOP853 with its error estimate, the states at the
Chebyshev nodes, the guards there and their bounds. With stages x_i and weights a_ij, b_i and c_i of
the method, a step of length h may also integrate the variational equation along the same stages,

.. math:: L_i = D_x f(t + c_i h, x_i)\, (1 + h \sum_j a_{ij} L_j),

so that the transition matrix :math:`1 + h \sum_i b_i L_i` is the exact derivative of the step. On a
manifold of nx coordinates and ndx directions, the matrix is multiplied from the right by T
(nx, ndx) at the start, the derivative of the coordinates by perturbations, and from the left by a
left inverse of T at the end.

The covariance N of white noise of densities W in the state and V in the input follows the stages of

.. math:: \dot N = A N + N A^T + W + B V B^T, \quad A = D_x f, \; B = D_u f + c (B_0 - D_u f).

B_0 is the derivative of the field by the input without the constraints of the mode, and c is the
compliance of these constraints.

A step of a small field is one function of scalars. The step of a larger field calls the functions
of its field and guards, so that the step itself takes little time to build.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import casadi as ca
import numpy as np

from hybridctl.base.checks import Array
from hybridctl.hybrid.laws import HeldInput, InputLaw, LinearFeedback
from hybridctl.hybrid.model import (
    BatchedSteps,
    BatchFunction,
    CompiledStep,
    CompiledSteps,
    Diffusion,
    JumpPoint,
    JumpTerms,
    ModeModel,
    ResetModel,
    StepRequest,
    StepTransition,
)
from hybridctl.hybrid.series import FRACTIONS, TO_SERIES
from hybridctl.hybrid.tableau import DOP853_TABLEAU, LOW_WEIGHT
from hybridctl.symbolic.compiled_function import BatchedFunction, CompiledFunction
from hybridctl.symbolic.compiled_reset import CompiledReset

Expression = Any
Function = Any
StepNoise = Literal["none", "input", "both"]
"""Where a step has white noise: nowhere, in the input, or in the input and in the state."""
Stages = tuple[list[Expression], list[Expression], list[Expression]]
"""State, rate and soundness at each stage, see `_compute_stages`."""
StageRate = Callable[[int, Expression, Expression], tuple[Expression, Expression]]
"""Returns rate and soundness at a stage, for its number, its time and its state."""

_STAGES = DOP853_TABLEAU.stages
_LAW_FRACTIONS: Array = np.array([0.0, *DOP853_TABLEAU.nodes, *FRACTIONS])
"""Fractions (k,) of a step at which an input law is evaluated: all stages, then the nodes."""
_NO_LIMITS: Array = np.array([[-np.inf], [np.inf]])
"""Least and greatest input of a feedback without limits."""
_MAX_INSTRUCTIONS = 3000
"""Most instructions of field and guards, or of a reset, for which compiled functions are built.
Larger ones use the generic step, as building would take long. A choice."""
_MAX_INLINED_INSTRUCTIONS = 200
"""A function of fewer instructions is copied to each stage of a step, which costs less than its
calls. A choice."""
_MATRIX_RESULTS = {
    "step": (2, 3),
    "feedback_step": (2, 3, 4),
    "differentiated_step": (3,),
    "driven_step": (3, 4),
    "noisy_step": (3, 4),
}
"""Indices of the results that are matrices, for each function. All other results are columns."""
_NOISES: dict[str, StepNoise] = {
    "differentiated_step": "none",
    "driven_step": "input",
    "noisy_step": "both",
}
"""Noise whose covariance each differentiated step integrates."""
_LARGEST_SOUNDNESS = 1e300
"""Size of the soundness that stands for NaN. Any will do, as only the sign is used."""
_MIN_SQUARE = 1e-300
"""Added to squares that are divided by, so that an error of 0 / 0 is 0. It is far below the square
of every error that matters, and above the least number of full precision (2e-308)."""


def expand_to_scalars(function: Function) -> Function | None:
    """Return a function as operations on scalars.

    Args:
        function: A `casadi.Function` of SX or MX.

    Returns:
        The function of SX. None if a part of it has no SX form (`casadi.logsumexp`, for example),
        or if it is too large for compiled functions to be built of it.
    """
    try:
        scalars = function.expand()
    except RuntimeError:  # the error of CasADi for a part without SX form
        return None
    return scalars if scalars.n_instructions() <= _MAX_INSTRUCTIONS else None


def build_function(
    name: str, motion: Function, tangent: Function | None, free: Function | None = None
) -> Function:
    """Return the function with a name of `CompiledMode.build_function`.

    Args:
        name: One of the names that `CompiledMode.build_function` lists.
        motion: Field and guards, see `build_step`.
        tangent: Tangent of the manifold, see `build_differentiated_step`.
        free: Derivative by the input without constraints, see `build_differentiated_step`.
    """
    if name == "motion":
        return motion
    if name in _NOISES:
        return build_differentiated_step(motion, tangent, _NOISES[name], free)
    return build_step(motion) if name == "step" else build_feedback_step(motion)


class CompiledMode(ModeModel, CompiledSteps):
    """A mode with compiled steps. A subclass sets `compiled` to whether it has them.

    Each compiled function is built when it is first used.
    """

    compiled: bool

    @property
    def compiled_steps(self) -> CompiledSteps | None:
        """The mode itself, None if it has no compiled steps."""
        return self if self.compiled else None

    @property
    def parameter_values(self) -> Array | None:
        """Values (n,) of the last argument that all its functions but "motion" have in addition.

        None if there is no such argument.
        """
        return None

    @abstractmethod
    def build_function(self, name: str) -> Function:
        """Return a `casadi.Function` of this mode.

        Args:
            name: "motion" for field and guards as `build_step` takes them, without an argument for
                parameters. "step" for the function of `build_step`, "feedback_step" for that of
                `build_feedback_step`. "differentiated_step", "driven_step" or "noisy_step" for
                that of `build_differentiated_step` without noise, with noise of the input, or with
                noise of input and state.
        """

    def find_compiled_reset(self, guard: int, reset: ResetModel) -> CompiledReset | None:
        """Return the compiled reset of a guard, or None if this mode has none.

        Args:
            guard: Index of the guard.
            reset: The reset that is asked for. That of a wrapped system is another one.
        """
        return None

    def jump_terms(self, i: int, reset: ResetModel, at: JumpPoint, du: Array) -> JumpTerms | None:
        """Return the first-order terms of guard i and a reset, None if they are not compiled.

        Args:
            i: Index of the guard.
            reset: The reset.
            at: The point before the event.
            du: Rate (nu,) of the input before the event, 1/s.
        """
        compiled_reset = self.find_compiled_reset(i, reset)
        if compiled_reset is None:
            return None
        return compiled_reset(at.t, at.x, at.u, du)

    @cached_property
    def _motion_function(self) -> Function:
        return self.build_function("motion")

    def _compile(self, name: str) -> CompiledFunction:
        """Return a function of `build_function` as a compiled one."""
        return CompiledFunction(*self.describe_function(name), self.parameter_values)

    def describe_function(self, name: str) -> tuple[Function, list[tuple[int, ...]]]:
        """Return a function of `build_function`, and the shapes of its results as arrays.

        Args:
            name: Name of the function.
        """
        function = self.build_function(name)
        # CasADi writes matrices by columns: read by rows, they have their shape reversed.
        shapes: list[tuple[int, ...]] = [
            function.size_out(i)[::-1] if i in _MATRIX_RESULTS[name] else (function.numel_out(i),)
            for i in range(function.n_out())
        ]
        return function, shapes

    @cached_property
    def _step(self) -> CompiledFunction:
        return self._compile("step")

    @cached_property
    def _feedback_step(self) -> CompiledFunction:
        return self._compile("feedback_step")

    @cached_property
    def _differentiated_step(self) -> CompiledFunction:
        return self._compile("differentiated_step")

    @cached_property
    def _driven_step(self) -> CompiledFunction:
        return self._compile("driven_step")

    @cached_property
    def _noisy_step(self) -> CompiledFunction:
        return self._compile("noisy_step")

    def batched_jump(self, i: int, reset: ResetModel) -> BatchFunction | None:
        """Return the batched compiled reset of guard i, or None if this mode has none.

        Args:
            i: Index of the guard.
            reset: The reset.
        """
        compiled_reset = self.find_compiled_reset(i, reset)
        return None if compiled_reset is None else compiled_reset.batched

    @cached_property
    def batched(self) -> BatchedSteps:
        """The batched steps."""
        rate = _select_results(self._motion_function, "rate", 0)
        rates = BatchedFunction(rate, [(rate.numel_out(0),)])
        differentiated = partial(_evaluate_with_matrices, self._differentiated_step.build_batched())
        return BatchedSteps(rates, self._step.build_batched(), differentiated)

    def step(self, ahead: StepRequest, law: InputLaw) -> CompiledStep | None:
        """Return the step under an input law.

        Args:
            ahead: Start, length and tolerances of the step.
            law: A held input, or in a vector space a linear feedback.

        Returns:
            The step. None if the law is of another kind, or if the field or the guards are not
            sound at a stage or node: the caller then takes the generic step.
        """
        t, x, *scalars = ahead
        if isinstance(law, HeldInput):
            sound, error, states, guards, bounds = self._step((t, *scalars), x, law.value)
            inputs = law.at_nodes
        elif isinstance(law, LinearFeedback):
            # numpy's rows are CasADi's columns: the offsets (k, nu) are read as (nu, k), and the
            # gains (k, nu, nx) as (nx, nu k), the k transposed gains side by side.
            offsets, gains = law.find_offsets_and_gains(t + ahead.h * _LAW_FRACTIONS)
            limits = _NO_LIMITS if law.limits is None else law.limits
            columns = (
                offsets.ravel(),
                gains.ravel(),
                *np.broadcast_to(limits, (2, offsets.shape[1])),
            )
            sound, error, states, fed_back, guards, bounds = self._feedback_step(
                (t, *scalars), x, *columns
            )
            inputs = fed_back.copy()
        else:
            return None
        # Where it is not positive the other results do not hold. Not `sound[0] <= 0.0`, by which a
        # soundness of NaN would pass.
        if not sound[0] > 0.0:
            return None
        return CompiledStep(float(error[0]), states.copy(), inputs, guards.copy(), bounds.copy())

    def transition(
        self, ahead: StepRequest, u: Array, noise: Diffusion | None = None
    ) -> StepTransition | None:
        """Return a step with its derivative, and with the covariance of noise gathered on it.

        The error of the step is the largest of those of state, derivative and covariance.

        Args:
            ahead: Start, length and tolerances of the step.
            u: Input (nu,), held on the step.
            noise: Densities of white noise. If None, neither covariance nor guard bounds are
                computed.

        Returns:
            The step. None if the field is not sound at a stage.
        """
        t, x, *scalars = ahead
        arguments = (t, *scalars), x, u
        if noise is None:
            sound, error, end, columns = self._differentiated_step(*arguments)
            noise_results: list[Array] = []
        else:
            density, through_input, compliance = noise
            densities = through_input.ravel(), (compliance,)
            if density.any():
                found = self._noisy_step(*arguments, *densities, density.ravel())
            else:  # the products of the density at all stages would take a third of the time
                found = self._driven_step(*arguments, *densities)
            sound, error, end, columns, *noise_results = found
        if not sound[0] > 0.0:  # as in `step`
            return None
        # The covariance is symmetric, so that only the transition matrix is transposed.
        results = end.copy(), columns.T.copy(), *(array.copy() for array in noise_results)
        return StepTransition(float(error[0]), *results)


def _evaluate_with_matrices(step: BatchedFunction, *rows: Array) -> list[Array]:
    """Return the results of a differentiated step, with its matrices in numpy's order."""
    sound, error, end, columns = step(*rows)
    return [sound, error, end, columns.transpose(0, 2, 1)]


class _StepInputs(NamedTuple):
    """The arguments of a step as symbols.

    Attributes:
        scalars: t and h in s, then the relative and the absolute tolerance, (4,).
        x: State (nx,) at the start.
        u: Input (nu,).
        parameters: Further arguments of field and guards, constant on the step.
    """

    scalars: Expression
    x: Expression
    u: Expression
    parameters: list[Expression]

    @staticmethod
    def create(motion: Function) -> _StepInputs:
        """Return new symbols for the steps of a motion, which is one of `build_step`."""
        sizes = [4, *(motion.numel_in(i) for i in range(1, motion.n_in()))]
        scalars, x, u, *parameters = (ca.MX.sym("start", n) for n in sizes)
        return _StepInputs(scalars, x, u, parameters)

    @property
    def t(self) -> Expression:
        """The time at the start of the step, s."""
        return self.scalars[0]

    @property
    def h(self) -> Expression:
        """The length of the step, s; negative backward in time."""
        return self.scalars[1]

    @property
    def rtol(self) -> Expression:
        """The relative tolerance."""
        return self.scalars[2]

    @property
    def atol(self) -> Expression:
        """The absolute tolerance, in the unit of each coordinate."""
        return self.scalars[3]

    def compute_error_scale(self, x: Expression, end: Expression) -> Expression:
        """Return atol + rtol max(|x|, |end|) of each entry, for values at start and end."""
        largest: Expression = ca.fmax(ca.fabs(x), ca.fabs(end))
        return self.atol + self.rtol * largest

    def build_function(
        self,
        name: str,
        motion: Function,
        results: Sequence[Expression],
        further_inputs: Sequence[Expression],
    ) -> Function:
        """Return expressions of a step as a `casadi.Function`.

        Args:
            name: Name of the function.
            motion: The function that decides by its size. If it is small, the calls of all
                functions are replaced by their operations.
            results: The expressions.
            further_inputs: Symbols that are arguments behind `scalars` and `x`, such as `u`. Last
                come the parameters.
        """
        symbols = [self.scalars, self.x, *further_inputs, *self.parameters]
        function = ca.Function(name, symbols, [ca.densify(result) for result in results])
        is_small = motion.n_instructions() < _MAX_INLINED_INSTRUCTIONS
        return _inline_calls(function) if is_small else function


def build_step(motion: Function) -> Function:
    """Return the function of a step under a held input.

    Args:
        motion: A `casadi.Function` (t, x, u) -> (rate (nx,) of the coordinates, guards (n,),
            soundness) of dense SX. Where the scalar soundness is not positive, the other results
            are not valid. Further arguments become the last ones of the step.

    Returns:
        A `casadi.Function` of (t, h, rtol, atol), with the start t and the length h of the step in
        s, and of x (nx,) and u (nu,). Its results are soundness, error in units of the tolerance,
        states (nx, 8) at the nodes, guards (n, 8) there and their lower bounds (n,). The step is
        sound if all evaluations on it are, see `find_least_soundness`.
    """
    start = _StepInputs.create(motion)
    sound, error, states, _, *guards = _compute_step(motion, start, lambda i, x: start.u)
    return start.build_function("step", motion, [sound, error, states, *guards], [start.u])


def build_feedback_step(motion: Function) -> Function:
    """Return the function of a step under the input u = b - K x, cut to limits.

    Args:
        motion: Field and guards, see `build_step`.

    Returns:
        A `casadi.Function` of (t, h, rtol, atol) and x as in `build_step`, b (nu, k), the
        transposed K (nx, nu k) side by side, least and greatest input (nu,). b and K are at the k
        times of all stages, then of all nodes. Its results are those of `build_step`, with the
        inputs (nu, 8) at the nodes after the states.
    """
    start = _StepInputs.create(motion)
    nx, nu, k = start.x.numel(), start.u.numel(), len(_LAW_FRACTIONS)
    shapes = (nu, k), (nx, nu * k), (nu, 1), (nu, 1)
    offsets, gains, least, most = (ca.MX.sym("law", *shape) for shape in shapes)

    def law(i: int, x: Expression) -> Expression:
        """Return the input (nu,) at the i-th time of `_LAW_FRACTIONS`."""
        u = offsets[:, i] - ca.mtimes(gains[:, nu * i : nu * (i + 1)].T, x)
        return ca.fmin(ca.fmax(u, least), most)

    results = _compute_step(motion, start, law)
    return start.build_function("fed", motion, results, (offsets, gains, least, most))


def _compute_step(
    motion: Function,
    start: _StepInputs,
    law: Callable[[int, Expression], Expression],
    known: Stages | None = None,
) -> tuple[Expression, ...]:
    """Return the results of `build_feedback_step` as expressions.

    Args:
        motion: Field and guards, see `build_step`.
        start: Symbols of the arguments.
        law: Returns the input (nu,) at the i-th time of `_LAW_FRACTIONS` and a state (nx,).
        known: The first stages, if they are known.

    Returns:
        Soundness, error in units of the tolerance, states (nx, 8), inputs (nu, 8), guards (n, 8),
        and lower bounds (n,) of the guards.
    """
    t, h, x, parameters = start.t, start.h, start.x, start.parameters
    rate = _select_results(motion, "rate", 0, 2)
    guards = _select_results(motion, "guards", 1, 2)
    states, rates, sound = _compute_stages(
        start, x, lambda i, t, y: rate(t, y, law(i, y), *parameters), known=known
    )
    end = states[_STAGES]
    # The first and the last node are start and end; the dense output has all between.
    nodes = [x, *(x + h * _sum(row, rates) for row in DOP853_TABLEAU.dense[1:-1]), end]
    inputs = [law(len(states) + i, node) for i, node in enumerate(nodes)]
    at_nodes = zip(FRACTIONS, nodes, inputs, strict=True)
    sampled = [guards(t + h * c, *at, *parameters) for c, *at in at_nodes]
    values = ca.horzcat(*(value for value, _ in sampled))
    # The bound of `hybrid.step`: c_0 - |c_1| - 2 sum |c_k| of the Chebyshev coefficients.
    first, second, *others = ca.horzsplit(ca.mtimes(values, ca.DM(TO_SERIES.T)))
    bounds = first - ca.fabs(second) - 2.0 * ca.sum2(ca.fabs(ca.horzcat(*others)))
    sound = find_least_soundness([*sound, *(least for _, least in sampled)])
    error = _compute_error(start, start.compute_error_scale(x, end), rates)
    return sound, error, ca.horzcat(*nodes), ca.horzcat(*inputs), values, bounds


def build_differentiated_step(
    motion: Function, tangent: Function | None, noise: StepNoise, free: Function | None = None
) -> Function:
    """Return the function of a step under a held input with its derivative by the start.

    Args:
        motion: Field and guards, see `build_step`.
        tangent: A `casadi.Function` x -> (T (nx, ndx), its left inverse (ndx, nx)) of a manifold.
            None in a vector space.
        noise: White noise whose covariance is integrated too.
        free: A `casadi.Function` of x, and of the further arguments of `motion` if it has any. It
            returns the derivative (nx, nu) of the field by the input without the constraints of the
            mode. None if the mode has no constraints.

    Returns:
        A `casadi.Function` of (t, h, rtol, atol), x and u as in `build_step`, with noise of its
        density (nu, nu) in the input and the compliance, and with noise of the state of its density
        (ndx, ndx), too. Its results are soundness, error in units of the tolerance, end state (nx,)
        and derivative (ndx, ndx), and with noise the covariance (ndx, ndx) and the lower bounds
        (n,) of the guards.
    """
    start, noisy = _StepInputs.create(motion), noise != "none"
    n, u = start.x.numel(), start.u
    field = _build_field_with_derivatives(motion, noisy)
    tangent = _build_flat_tangent(n) if tangent is None else tangent
    columns = ca.MX(tangent(start.x)[0])
    ndx = columns.size2()
    of_state, of_input = (ca.MX.sym("noise", k, k) for k in (ndx, u.numel()))
    compliance = ca.MX.sym("compliance")

    # The state of the integration is [x, x's derivative (nx, ndx), covariance (nx, nx) if noisy].
    def rate(i: int, time: Expression, state: Expression) -> tuple[Expression, Expression]:
        """Return the rate of that state, of its shape, and the soundness of the field."""
        value, by_state, *by_input, sound = field(time, state[:, 0], u, *start.parameters)
        matrix_rate = ca.mtimes(by_state, state[:, 1:])
        if noisy:
            spread = matrix_rate[:, ndx:]
            spread += spread.T
            if noise == "both":
                along = tangent(state[:, 0])[0]
                spread += along @ of_state @ along.T
            through = by_input[0]
            if free is not None:
                through += compliance * (free(state[:, 0], *start.parameters) - through)
            spread += through @ of_input @ through.T
            matrix_rate = ca.horzcat(matrix_rate[:, :ndx], spread)
        return ca.horzcat(value, matrix_rate), sound

    no_covariance = ca.MX(ca.DM.zeros(n, n if noisy else 0))
    begin = ca.densify(ca.horzcat(start.x, columns, no_covariance))
    states, rates, sound = _compute_stages(start, begin, rate, _STAGES)
    end, back = states[_STAGES], tangent(states[_STAGES][:, 0])[1]
    errors = []
    for part in (slice(0, 1), slice(1, 1 + ndx)):
        scale = start.compute_error_scale(begin[:, part], end[:, part])
        errors.append(_compute_error(start, scale, [rate[:, part] for rate in rates]))
    results = [find_least_soundness(sound), end[:, 0], ca.mtimes(back, end[:, 1 : 1 + ndx])]
    if not noisy:
        results.insert(1, ca.fmax(*errors))
        return start.build_function("varied", field, results, [u])
    covariance = end[:, 1 + ndx :]
    # Rounding may leave a variance of zero slightly negative.
    deviations = ca.sqrt(ca.fabs(ca.diag(covariance)))
    # An entry's error is relative to rtol times the product of the standard deviations of its row
    # and column, to which atol^2 is added: directions that constraints hold gather only rounding
    # errors, which would shorten the step otherwise.
    scale = start.rtol * (deviations @ deviations.T + start.atol**2) + _MIN_SQUARE
    errors.append(_compute_error(start, scale, [rate[:, 1 + ndx :] for rate in rates]))
    # The dense output, for the guards, has a few stages more, of the state alone.
    own = [state[:, 0] for state in states], [rate[:, 0] for rate in rates], sound
    *_, bounds = _compute_step(motion, start, lambda i, x: u, own)
    results += [back @ covariance @ back.T, bounds]
    results.insert(1, ca.mmax(ca.vertcat(*errors)))
    further = (u, of_input, compliance, *([of_state] if noise == "both" else []))
    return start.build_function("noisy", field, results, further)


def find_least_soundness(values: Sequence[Expression]) -> Expression:
    """Return the least of some values of soundness; one that is NaN counts as -1e300.

    Args:
        values: Scalars; each is positive where the results that it belongs to hold.
    """
    # The minimum alone passes over NaN; `fmax` replaces it by its other argument.
    return ca.mmin(ca.fmax(ca.vertcat(*values), -_LARGEST_SOUNDNESS))


def _build_flat_tangent(n: int) -> Function:
    """Return the tangent of a vector space of dimension n: two identities."""
    unit = ca.DM.eye(n)
    return ca.Function("flat", [ca.SX.sym("x", n)], [unit, unit])


def _inline_calls(function: Function) -> Function:
    """Return a function as operations on scalars, each of them evaluated once."""
    scalars = function.expand()
    symbols = scalars.sx_in()
    return ca.Function(function.name(), symbols, ca.cse(list(scalars(*symbols))))


def _select_results(motion: Function, name: str, *indices: int) -> Function:
    """Return a function of only some of the results of a motion."""
    symbols = motion.sx_in()
    results = motion(*symbols)
    return ca.Function(name, symbols, ca.cse([results[i] for i in indices]))


def _build_field_with_derivatives(motion: Function, by_input: bool) -> Function:
    """Return rate, its derivatives (nx, nx) by the state and (nx, nu) by the input, soundness.

    The derivative by the input is left out where `by_input` is false.
    """
    t, x, u, *parameters = motion.sx_in()
    rate, _, sound = motion(t, x, u, *parameters)
    variables = (x, u) if by_input else (x,)
    derivatives = [ca.densify(ca.jacobian(rate, variable)) for variable in variables]
    results = ca.cse([rate, *derivatives, sound])
    return ca.Function("varied", [t, x, u, *parameters], results)


def _compute_stages(
    start: _StepInputs,
    x: Expression,
    rate: StageRate,
    last: int | None = None,
    known: Stages | None = None,
) -> Stages:
    """Return states, rates and soundness at the stages of a step.

    Args:
        start: Symbols of the arguments.
        x: State at the start, a column or matrix.
        rate: The rate at a stage, of the shape of `x`.
        last: Number of the last stage. If None, those of the dense output are included. The end of
            the step is stage `_STAGES`.
        known: The first stages, if they are known. The lists are not changed.

    Returns:
        Lists by the number of the stage, which is 0 for the start: states and rates of the shape of
        `x`, in units of the state (per s), and the scalar soundness.
    """
    if known is None:
        first, least = rate(0, start.t, x)
        states, rates, sound = [x], [first], [least]
    else:
        states, rates, sound = map(list, known)
    # `nodes` has entries for all stages, `rows` is cut at the last one.
    left = slice(len(states) - 1, last)
    for row, node in zip(
        DOP853_TABLEAU.rows[left], DOP853_TABLEAU.nodes[left.start :], strict=False
    ):
        states.append(x + start.h * _sum(row, rates))
        value, least = rate(len(rates), start.t + node * start.h, states[-1])
        rates.append(value)
        sound.append(least)
    return states, rates, sound


def _compute_error(
    start: _StepInputs, scale: Expression, rates: Sequence[Expression]
) -> Expression:
    """Return the error of a step in units of `scale`, as `Tableau.error` computes it."""
    main, low = (ca.sumsqr(_sum(row, rates) / scale) for row in DOP853_TABLEAU.errors)
    below = ca.sqrt((main + LOW_WEIGHT * low + _MIN_SQUARE) * scale.numel())
    return ca.fabs(start.h) * main / below


def _sum(weights: Array, terms: Sequence[Expression]) -> Expression:
    """Return the weighted sum of the first terms."""
    # Without the terms of weight zero the function has fewer instructions.
    weighted = [(w, term) for w, term in zip(weights.tolist(), terms, strict=False) if w]
    columns = ca.horzcat(*(ca.vec(term) for _, term in weighted))
    total = ca.mtimes(columns, ca.DM([w for w, _ in weighted]))
    return ca.reshape(total, terms[0].shape)
