"""What is wrong with a system or a run is said by an error of its own, never by a hang."""

import itertools

import casadi as ca
import numpy as np
import pytest
from hybrid.samples import ball, line

import hybridctl as hc
from hybridctl import symbolic
from hybridctl.base import errors
from hybridctl.base.checks import quote
from hybridctl.hybrid.flow import METHODS
from hybridctl.hybrid.mode import GuardSet, Outgoing

WALL = {"wall": lambda t, x, u: 2.0 - x[0]}
KEEP = hc.Reset.identity()
HUGE = 10**400  # a whole number of Python that no float can hold


def flow(field, guard=lambda t, x, u: 1.0, method="DOP853", nx=1, **options):
    """Simulate one mode with one guard for a second."""
    system = hc.HybridSystem(
        [hc.Mode("m", hc.VectorSpace(nx), field)],
        [hc.Transition("m", hc.Guard("g", guard), KEEP, "m")],
    )
    return hc.simulate(system, "m", np.ones(nx), (0.0, 2.0), method=method, **options)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mode": "water"}, errors.UnknownNameError, "water"),
        ({"mode": ["air"]}, errors.UnknownNameError, "hashable"),
        ({"x0": [1.0]}, errors.InputError, r"x0 must have shape \(2\)"),
        ({"x0": [[1.0, 2.0]]}, errors.InputError, "x0"),
        ({"x0": [1.0, np.nan]}, errors.InputError, "x0 must be finite"),
        ({"x0": [np.inf, 1.0]}, errors.InputError, "x0 must be finite"),
        ({"x0": "high"}, errors.InputError, "x0"),
        ({"x0": [-1.0, 0.0]}, errors.GuardViolatedError, "floor"),
        ({"x0": [-2e-8, 0.0]}, errors.GuardViolatedError, "floor"),
        ({"t_span": (1.0, 1.0)}, errors.InputError, "t_span must increase"),
        ({"t_span": (1.0, 0.0)}, errors.InputError, "t_span must increase"),
        ({"t_span": (0.0, np.nan)}, errors.InputError, "t_span"),
        ({"t_span": (0.0, np.inf)}, errors.InputError, "t_span"),
        ({"t_span": 5.0}, errors.InputError, "t_span"),
        ({"t_span": (0.0, 1.0, 2.0)}, errors.InputError, "t_span"),
        ({"t_span": ((0.0, 1.0), 2.0)}, errors.InputError, "t_span"),
        ({"method": "RK54"}, errors.UnknownNameError, "did you mean 'RK45'"),
        ({"method": ["RK45"]}, errors.UnknownNameError, "RK45"),
        ({"on_zeno": "ignore"}, errors.UnknownNameError, "on_zeno"),
        ({"rtol": 0.0}, errors.InputError, "rtol"),
        ({"atol": -1.0}, errors.InputError, "atol"),
        ({"rtol": None}, errors.InputError, "rtol"),
        ({"max_step": 0.0}, errors.InputError, "max_step"),
        ({"max_step": np.nan}, errors.InputError, "max_step"),
        ({"max_events": -1}, errors.InputError, "max_events"),
        ({"max_events": 1.5}, errors.InputError, "max_events"),
        ({"event_window": -1e-9}, errors.InputError, "event_window"),
        ({"options": {"max_steps": 3}}, errors.InputError, "options must be a SimulationOptions"),
        ({"policy": 3.0}, errors.InputError, "policy"),
        ({"x0": ["1", "0"]}, errors.InputError, "x0 must be an array of numbers"),
        ({"x0": np.array([1.0, 0.0j])}, errors.InputError, "x0 must be an array of numbers"),
        ({"x0": np.ma.array([1.0, 0.0], mask=[0, 1])}, errors.InputError, "x0 must be an array"),
        ({"x0": None}, errors.InputError, "x0 must be an array of numbers, got None"),
        ({"rtol": "1e-6"}, errors.InputError, "rtol must be a number"),
        ({"max_events": True}, errors.InputError, "max_events"),
        ({"system": None}, errors.InputError, "system must be a HybridSystem, got None"),
    ],
)
def test_a_wrong_argument_is_named(changes, error, message):
    usual = {"system": ball(), "mode": "air", "x0": [1.0, 0.0], "t_span": (0.0, 0.1)}
    with pytest.raises(error, match=message):
        hc.simulate(**usual | changes)


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (hc.SimulationOptions, {"guard_tolerance": 0.0}),
        (hc.SimulationOptions, {"guard_tolerance": np.nan}),
        (hc.SimulationOptions, {"first_step": 0.0}),
        (hc.SimulationOptions, {"max_steps": -1}),
        (hc.ZenoPolicy, {"takes_rest": "yes"}),
        (hc.ZenoPolicy, {"horizon": -1e-9}),
        (hc.ZenoPolicy, {"min_dwell": "short"}),
    ],
)
def test_a_wrong_setting_is_named(make, changes):
    with pytest.raises(errors.InputError, match=next(iter(changes))):
        make(**changes)


def test_errors_are_of_one_tree_and_also_builtins():
    every = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert all(issubclass(e, (errors.HybridctlError, errors.HybridctlWarning)) for e in every)
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.SimulationError, RuntimeError)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_field_that_is_nan_at_the_start_is_an_error(method):
    with pytest.raises(errors.IntegrationError, match=r"not finite.*'m' at t = 0 s"):
        flow(lambda t, x, u: np.full(1, np.nan), method=method)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_field_that_turns_nan_is_an_error_at_that_time(method):
    with pytest.raises(errors.IntegrationError, match=r"field .* not finite .*'m' at t = 0\.[0-5]"):
        flow(lambda t, x, u: np.full(1, np.nan if t > 0.5 else 1.0), method=method)


@pytest.mark.parametrize("method", ["DOP853", "RK45", "RK23"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_field_that_is_not_finite_beyond_a_state_is_an_error_there(method, value):
    # x = 1 + t up to x = 1.5; an explicit step shrinks until it stops short of it
    with pytest.raises(errors.IntegrationError, match=rf"field \[{value}\] .*'m' at t = 0\.5 s"):
        flow(lambda t, x, u: np.full(1, 1.0 if x[0] <= 1.5 else value), method=method)


@pytest.mark.parametrize("method", ["DOP853", "RK45", "Radau", "BDF"])
def test_escape_in_finite_time_is_an_error_at_that_time(method):
    # x' = x^2 with x(0) = 1 is 1 / (1 - t)
    with pytest.raises(errors.IntegrationError, match=r"at t = (1|0\.99999\d*) s"):
        flow(lambda t, x, u: x * x, method=method)


def test_overflow_is_an_error():
    with pytest.raises(errors.IntegrationError):
        flow(lambda t, x, u: 1e3 * x, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_guard_that_turns_nan_is_an_error_not_a_lost_event(value):
    with pytest.raises(errors.IntegrationError, match="guard 'g' of mode 'm' is"):
        flow(lambda t, x, u: np.ones(1), lambda t, x, u: value if x[0] > 1.5 else 1.0)


def test_a_guard_that_is_nan_at_the_start_is_an_error():
    with pytest.raises(errors.IntegrationError, match=r"guard 'g'.*nan at t = 0 s"):
        flow(lambda t, x, u: np.ones(1), lambda t, x, u: np.nan)


@pytest.mark.parametrize("value", ["fast", None, ["1"], np.ones(1, dtype=complex), [None], [HUGE]])
@pytest.mark.parametrize("when", [0.0, 0.5])
def test_a_field_of_no_numbers_is_an_error(value, when):
    with pytest.raises(errors.SystemDefinitionError, match=r"field of mode 'm' must return shape"):
        flow(lambda t, x, u: value if t >= when else np.ones(1))


def test_a_field_whose_shape_changes_is_an_error():
    with pytest.raises(errors.SystemDefinitionError, match=r"\(1,\), got \(2,\) at t = 0\.[5-9]"):
        flow(lambda t, x, u: np.ones(1 if t < 0.5 else 2))


@pytest.mark.parametrize("value", ["near", None, "1", 1j, [1.0, 2.0], HUGE], ids=quote)
@pytest.mark.parametrize("when", [0.0, 0.5])
def test_a_guard_of_no_number_is_an_error_that_names_it(value, when):
    with pytest.raises(errors.SystemDefinitionError, match="guard"):
        flow(lambda t, x, u: np.ones(1), lambda t, x, u: value if t >= when else 1.0)


@pytest.mark.parametrize("value", ["near", None, np.array(["1"]), np.ones(2), 1.0, [HUGE]])
def test_a_set_of_guards_of_no_numbers_is_an_error(value):
    system = hc.HybridSystem(
        lambda key: hc.Mode(key, hc.VectorSpace(1), lambda t, x, u: np.ones(1)),
        lambda key: Outgoing(
            GuardSet(("a",), lambda t, x, u: value if t >= 0.5 else np.ones(1)), lambda fired: None
        ),
    )
    with pytest.raises(errors.SystemDefinitionError, match="guards of mode 'm' must return"):
        hc.simulate(system, "m", [0.0], (0.0, 1.0))


@pytest.mark.parametrize("calls", [3, 35, 51])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("wrong", ["no number", None, [1.0, 2.0], 1.0 + 2.0j, HUGE], ids=quote)
def test_a_guard_that_is_no_number_is_an_error_of_the_system_wherever_it_is_asked(
    calls, together, wrong
):
    """At the nodes of a step, and on the pieces and in the iteration within one."""
    count = itertools.count()

    def value(t, x, u):
        return wrong if next(count) >= calls else np.sin(200.0 * x[0]) + 1.0001

    guards = GuardSet.of([hc.Guard("g", value)])
    if together:
        guards = GuardSet(("g",), lambda t, x, u: [value(t, x, u)])
    system = hc.HybridSystem(
        lambda key: hc.Mode(key, hc.VectorSpace(1), lambda t, x, u: np.ones(1)),
        lambda key: Outgoing(guards, lambda fired: None),
    )
    with pytest.raises(errors.SystemDefinitionError, match="guard"):
        hc.simulate(system, "m", [0.0], (0.0, 1.0))


@pytest.mark.parametrize("after", ["up", None, ["1"], np.ones(1, dtype=complex), [HUGE]])
def test_a_reset_that_returns_no_numbers_is_an_error(after):
    system = line(WALL, reset=hc.Reset(lambda t, x, u: after))
    with pytest.raises(errors.SystemDefinitionError, match="reset must return a state or a Jump"):
        hc.simulate(system, "go", [0.0], (0.0, 3.0))


class Odd:
    """A policy whose law or next change is no such thing."""

    def __init__(self, law=lambda t, x: np.zeros(1), change=np.inf):
        self.given, self.change = law, change

    def law(self, history):
        return self.given

    def next_change(self, history):
        return self.change


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Odd(law=None), "law of the policy must return a function.*None in mode 'go'"),
        (Odd(law=np.zeros(1)), "law of the policy must return a function"),
        (Odd(change="soon"), "next_change of the policy must be a number, got 'soon'"),
        (Odd(change=None), "next_change of the policy must be a number"),
        (Odd(change=np.nan), "next_change of the policy"),
        (Odd(change=0.0), "next_change of the policy must be after"),
    ],
)
def test_a_policy_that_is_none_is_an_error(policy, message):
    with pytest.raises(errors.InputError, match=message):
        hc.simulate(line(WALL, nu=1), "go", [0.0], (0.0, 1.0), policy)


@pytest.mark.parametrize("shape", [(2,), (1, 1), ()])
def test_a_field_of_the_wrong_shape_is_an_error(shape):
    with pytest.raises(errors.SystemDefinitionError, match=r"field of mode 'm' must return shape"):
        flow(lambda t, x, u: np.ones(shape))


def test_a_field_of_the_wrong_shape_in_a_later_mode_is_an_error():
    space = hc.VectorSpace(1)
    modes = [
        hc.Mode("m", space, lambda t, x, u: np.ones(1)),
        hc.Mode("bad", space, lambda t, x, u: np.ones(2)),
    ]
    edge = hc.Transition("m", hc.Guard("g", WALL["wall"]), KEEP, "bad")
    with pytest.raises(errors.SystemDefinitionError, match="'bad'"):
        hc.simulate(hc.HybridSystem(modes, [edge]), "m", [0.0], (0.0, 3.0))


def test_guards_of_the_wrong_shape_are_an_error():
    system = hc.HybridSystem(
        lambda key: hc.Mode(key, hc.VectorSpace(1), lambda t, x, u: np.ones(1)),
        lambda key: Outgoing(GuardSet(("a",), lambda t, x, u: np.ones(2)), lambda fired: None),
    )
    with pytest.raises(errors.SystemDefinitionError, match="guards of mode 'm'"):
        hc.simulate(system, "m", [0.0], (0.0, 1.0))


@pytest.mark.parametrize("after", [[np.nan], [1.0, 2.0], [np.inf]])
def test_a_reset_to_no_state_of_the_target_is_an_error(after):
    system = line(WALL, reset=hc.Reset(lambda t, x, u: np.array(after)))
    with pytest.raises(errors.InputError, match="state after the event"):
        hc.simulate(system, "go", [0.0], (0.0, 3.0))


@pytest.mark.parametrize(
    ("law", "message"),
    [
        (lambda t, x: np.ones(2), "shape"),
        (lambda t, x: 1.0, "shape"),
        (lambda t, x: np.full(1, np.nan), "finite"),
        (lambda t, x: "push", "numbers"),
        (lambda t, x: None, "numbers, got None at t = 0.0 in mode 'go'"),
        (lambda t, x: ["1"], "numbers"),
        (lambda t, x: np.ones(1, dtype=complex), "numbers"),
        (lambda t, x: np.ones(1 if t < 0.3 else 2), "shape"),
    ],
)
def test_a_policy_that_returns_no_input_is_an_error(law, message):
    with pytest.raises(errors.InputError, match=message):
        hc.simulate(line(WALL, nu=1), "go", [0.0], (0.0, 1.0), law)


def moved(speed=1.0):
    """A point that moves at a given speed and by its input."""
    mode = hc.Mode("go", hc.VectorSpace(1), lambda t, x, u: speed + u, nu=1)
    return hc.HybridSystem([mode], [hc.Transition("go", hc.Guard("g", WALL["wall"]), KEEP, "go")])


@pytest.mark.parametrize("system", [line(WALL, nu=1), moved()])
def test_an_input_that_turns_nan_is_an_error(system):
    with pytest.raises(errors.IntegrationError, match=r"input .* not finite"):
        hc.simulate(
            system,
            "go",
            [0.0],
            (0.0, 1.0),
            lambda t, x: np.array([np.nan if t > 0.5 else 0.0]),
        )


MODE = hc.Mode("m", hc.VectorSpace(1), lambda t, x, u: np.ones(1))
G = hc.Guard("g", lambda t, x, u: 1.0)
H = hc.Guard("h", lambda t, x, u: 1.0)


@pytest.mark.parametrize(
    ("modes", "transitions", "message"),
    [
        ([], [], "at least one mode"),
        ([MODE, MODE], [], "mode keys must differ"),
        ([MODE], [hc.Transition("m", G, KEEP, "n")], "target 'n'"),
        ([MODE], [hc.Transition("n", G, KEEP, "m")], "source 'n'"),
        ([MODE], [hc.Transition("m", G, KEEP, "m")] * 2, "two transitions"),
        (
            [MODE],
            [hc.Transition("m", g, KEEP, "m") for g in (G, hc.Guard("g", G.value))],
            "two guards named 'g'",
        ),
        ([MODE], [hc.Transition("m", [G, H], KEEP, "m")], "no transition for 'g' alone"),
        ([MODE], lambda key: None, "both as lists or as functions"),
        (lambda key: MODE, [], "both as lists or as functions"),
        (MODE, [], "modes must be a list or a function, got Mode"),
        (None, [], "modes must be a list or a function, got None"),
        ([MODE, None], [], r"modes\[1\] must be a Mode, got None"),
        ([MODE], None, "transitions must be a list or a function"),
        ([MODE], [G], r"transitions\[0\] must be a Transition"),
    ],
)
def test_a_graph_that_is_none_is_not_accepted(modes, transitions, message):
    with pytest.raises(errors.SystemDefinitionError, match=message):
        hc.HybridSystem(modes, transitions)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hc.Mode("m", None, MODE.field), "space of mode 'm' must be a space.*None"),
        (lambda: hc.Mode("m", 2, MODE.field), "space of mode 'm'"),
        (lambda: hc.Mode("m", MODE.space, None), "field of mode 'm' must be a function, got None"),
        (lambda: hc.Mode("m", MODE.space, np.ones(1)), "field of mode 'm' must be a function"),
        (lambda: hc.Mode("m", MODE.space, MODE.field, jacobian=1), "jacobian of mode 'm'"),
        (lambda: hc.Guard("g", 1.0), "value of guard 'g' must be a function, got 1.0"),
        (lambda: hc.Guard(G.value, "g"), "name of a guard must be text"),
        (lambda: hc.Guard("g", G.value, jacobian=np.eye(1)), "jacobian of guard 'g'"),
        (lambda: hc.Reset(np.eye(1)), "map of a reset must be a function"),
        (lambda: hc.Reset(KEEP.map, np.eye(1)), "jacobian of a reset must be a function"),
        (lambda: hc.Transition("m", "g", KEEP, "m"), "transition from 'm' needs a Guard, got 'g'"),
        (lambda: hc.Transition("m", [G, None], KEEP), "needs a Guard, got None"),
        (lambda: hc.Transition("m", None, KEEP), "needs a Guard, got None"),
        (lambda: hc.Transition("m", G, lambda t, x, u: x), "needs a Reset"),
        (lambda: hc.Transition("m", G, KEEP, rest=KEEP), "rest of .* must be an Edge or None"),
    ],
)
def test_parts_of_other_types_are_not_accepted(make, message):
    with pytest.raises(errors.SystemDefinitionError, match=message):
        make()


@pytest.mark.parametrize("key", [["up", "down"], {"up": 1}, np.zeros(2)])
def test_keys_of_modes_have_to_be_hashable(key):
    x, message = ca.SX.sym("x"), "must be hashable, such as a text"
    up = symbolic.SymbolicMode("up", x, [1.0])
    for make in (
        lambda: hc.Mode(key, hc.VectorSpace(1), MODE.field),
        lambda: hc.Transition(key, G, KEEP, "m"),
        lambda: hc.Transition("m", G, KEEP, key),
        lambda: symbolic.hybrid_system([symbolic.SymbolicMode(key, x, [1.0])], []),
        lambda: symbolic.hybrid_system([up], [symbolic.SymbolicTransition(key, "g", x, "up")]),
        lambda: symbolic.hybrid_system([up], [symbolic.SymbolicTransition("up", "g", x, key)]),
    ):
        with pytest.raises(errors.InputError, match=message):
            make()
    with pytest.raises(errors.InputError, match=r"give the tuple \('a',\)"):
        hc.Mode(["a"], hc.VectorSpace(1), MODE.field)


def test_parts_that_are_none_are_not_accepted():
    with pytest.raises(errors.SystemDefinitionError, match="no guard"):
        hc.Transition("m", [], KEEP, "m")
    with pytest.raises(errors.SystemDefinitionError, match="differ"):
        GuardSet(("a", "a"), lambda t, x, u: np.ones(2))
    with pytest.raises(errors.InputError, match="nu"):
        hc.Mode("m", hc.VectorSpace(1), MODE.field, nu=-1)


def test_a_jump_to_a_mode_that_does_not_exist_is_an_error():
    system = line(WALL, reset=hc.Reset(lambda t, x, u: hc.Jump(x, "nowhere")))
    with pytest.raises(errors.UnknownNameError, match="nowhere"):
        hc.simulate(system, "go", [0.0], (0.0, 3.0))


def test_a_reset_that_decides_no_mode_where_it_has_to_is_an_error():
    system = hc.HybridSystem([MODE], [hc.Transition("m", hc.Guard("w", WALL["wall"]), KEEP, None)])
    with pytest.raises(errors.SystemDefinitionError, match="must return one"):
        hc.simulate(system, "m", [0.0], (0.0, 3.0))
