"""Generated terms against Pinocchio's, on random robots; their derivatives; threads and files."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pinocchio as pin
import pytest
from differences import assert_derivative
from hybridctl.robots import five_link

from hybridctl.base.errors import InputError
from hybridctl.mechanics import Contact, Robot
from hybridctl.mechanics.contacts.contact_kinematics import ContactSet
from hybridctl.mechanics.contacts.surfaces import Plane
from hybridctl.mechanics.multibody.bodies import read_tree
from hybridctl.mechanics.terms.expression_terms import ExpressionTerms
from hybridctl.mechanics.terms.general_terms import GeneralTerms
from hybridctl.symbolic import compiled_function
from mechanics.models import ROUGH
from mechanics.random_robots import random_robot

# Both ways do the same few thousand operations on numbers of unit size, in another order; the
# worst of 200 robots differs by 2e-12 of the largest entry.
AGREE = 1e-10
SEEDS = [
    *range(16),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(16, 36)),
    *(pytest.param(seed, marks=[pytest.mark.slow, pytest.mark.long]) for seed in range(36, 216)),
]


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setenv("HYBRIDCTL_CACHE", "off")


@dataclass
class Point:
    """A robot with contacts at random arguments of everything that can be asked."""

    robot: Robot
    contacts: ContactSet
    seed: int

    def __post_init__(self):
        rng, robot = np.random.default_rng(self.seed), self.robot
        self.q = robot.integrate(robot.neutral(), rng.normal(size=robot.nv))
        self.v, self.a = rng.normal(size=(2, robot.nv))
        self.u = rng.normal(size=robot.nu)
        self.forces = rng.normal(size=len(self.contacts.owner))
        self.terms = ExpressionTerms(robot, self.contacts)
        self.other = GeneralTerms(robot, self.contacts)


def point_of(seed: int) -> Point:
    pin.seed(seed)
    robot, contacts = random_robot(np.random.default_rng(seed))
    return Point(robot, ContactSet(robot, contacts), seed)


def assert_agree(generated, expected, what):
    scale = max(float(np.abs(expected).max(initial=0.0)), 1.0)
    np.testing.assert_allclose(generated, expected, rtol=0, atol=AGREE * scale, err_msg=what)


def check_values(p: Point):
    now, expected = p.terms.values(p.q, p.v, p.u), p.other.values(p.q, p.v, p.u)
    for name in now._fields:
        assert_agree(getattr(now, name), getattr(expected, name), name)


def check_derivatives(p: Point):
    now = p.terms.derivatives(p.q, p.v, p.a, p.forces)
    expected = p.other.derivatives(p.q, p.v, p.a, p.forces)
    for name in now._fields:
        assert_agree(getattr(now, name), getattr(expected, name), name)


def check_impulse_derivatives(p: Point):
    now = p.terms.impulse_derivatives(p.q, p.a, p.forces)
    expected = p.other.impulse_derivatives(p.q, p.a, p.forces)
    for name in now._fields:
        assert_agree(getattr(now, name), getattr(expected, name), name)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_robots_have_the_terms_that_pinocchio_gives(seed):
    p = point_of(seed)
    check_values(p)
    check_derivatives(p)
    check_impulse_derivatives(p)


@pytest.mark.parametrize("name", ROUGH)
def test_models_have_the_terms_that_pinocchio_gives(name):
    dynamics = ROUGH[name][0]()
    p = Point(dynamics.robot, dynamics.contact_set, 3)
    check_values(p)
    check_derivatives(p)
    check_impulse_derivatives(p)


@pytest.mark.parametrize("seed", [1, 5, 8])
def test_derivatives_are_those_of_the_values(seed):
    """By q and v together, at fixed acceleration and forces; the tangents' own turning is known.

    What the rows of tangents call an acceleration holds the tangents in their surface, so that
    only the equations of motion and the rates are differences of values.
    """
    p = point_of(seed)
    nv, terms = p.robot.nv, p.terms

    def moved(dz):
        q = p.robot.integrate(p.q, dz[:nv])
        now = terms.values(q, p.v + dz[nv:], p.u)
        equations = now.mass @ p.a - now.drive - now.jacobian.T @ p.forces
        return np.concatenate((equations, now.rates))

    equations, _, rates = terms.derivatives(p.q, p.v, p.a, p.forces)
    assert_derivative(moved, np.vstack([equations, rates]))


def test_without_contacts_there_are_no_rows():
    robot, _ = random_robot(np.random.default_rng(0))
    terms = ExpressionTerms(robot, ContactSet(robot, []))
    q, v, u, none = robot.neutral(), np.ones(robot.nv), np.ones(robot.nu), np.zeros(0)
    now = terms.values(q, v, u)
    assert_agree(now.drive, robot.actuation @ u - robot.bias(q, v), "drive")
    assert now.jacobian.shape == (0, robot.nv)
    by_state, accelerations, _ = terms.derivatives(q, v, v, none)
    assert by_state.shape == (robot.nv, 2 * robot.nv)
    assert accelerations.shape == (0, 2 * robot.nv)


def test_results_hold_until_the_next_call_and_cannot_be_written():
    p = point_of(2)
    first = p.terms.values(p.q, p.v, p.u).drive
    kept = first.copy()
    p.terms.derivatives(p.q, p.v, p.a, p.forces)
    np.testing.assert_array_equal(first, kept)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1.0
    with pytest.raises(ValueError, match="broadcast"):
        p.terms.values(np.append(p.q, 0.0), p.v, p.u)


def _drives(p: Point, velocities) -> np.ndarray:
    return np.array([p.terms.values(p.q, v, p.u).drive for v in velocities])


def test_threads_do_not_disturb_each_other():
    p = point_of(7)
    rng = np.random.default_rng(7)
    work = rng.normal(size=(4, 2000, p.robot.nv))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda velocities: _drives(p, velocities), work))
    for drives, velocities in zip(found, work, strict=True):
        np.testing.assert_array_equal(drives, _drives(p, velocities))


def _mass(terms: ExpressionTerms, *at) -> np.ndarray:
    return terms.values(*at).mass.copy()


def test_terms_go_to_fresh_processes(processes):
    p = point_of(3)
    at = p.q, p.v, p.u
    expected = _mass(p.terms, *at)
    np.testing.assert_array_equal(_mass(pickle.loads(pickle.dumps(p.terms)), *at), expected)
    np.testing.assert_array_equal(processes.submit(_mass, p.terms, *at).result(), expected)


class _Hollow:
    curved = False

    def distance(self, r):
        return r[:, 2]

    def normal(self, r):
        return np.tile([0.0, 0.0, 1.0], (len(r), 1))


def test_a_surface_without_an_expression_is_refused():
    with pytest.raises(InputError, match="Plane, Sphere or Terrain"):
        Contact("c", "cube", _Hollow())


@pytest.fixture
def directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HYBRIDCTL_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def _made(p: Point, monkeypatch) -> list[str]:
    """The names of the functions that a new object makes for its values."""
    names = []
    build = compiled_function.build_transposed_function
    monkeypatch.setattr(
        "hybridctl.mechanics.terms.expression_terms.build_transposed_function",
        lambda name, *rest: (names.append(name), build(name, *rest))[1],
    )
    mass = _mass(ExpressionTerms(p.robot, p.contacts), p.q, p.v, p.u)
    assert_agree(mass, p.robot.mass_matrix(p.q), "mass")
    return names


def test_functions_are_kept_and_made_anew_if_their_file_is_damaged(directory, monkeypatch):
    p = point_of(4)
    assert _made(p, monkeypatch) == ["values"]
    assert _made(p, monkeypatch) == []
    (file,) = directory.iterdir()
    text = file.read_text()
    for damaged in ("", text[: len(text) // 2], text[:-9] + "x" + text[-8:], "\N{SNOWMAN}"):
        file.write_text(damaged, encoding="utf-8")
        assert _made(p, monkeypatch) == ["values"]
        assert _made(p, monkeypatch) == []


def test_robots_that_differ_in_numbers_alone_share_a_file(directory, monkeypatch):
    p, heavier = point_of(4), point_of(4)
    model = heavier.robot._model
    for i, placement in list(enumerate(model.jointPlacements))[1:]:
        model.inertias[i] = pin.Inertia.Random()
        model.jointPlacements[i] = pin.SE3(placement.rotation, 1.3 * placement.translation)
    heavier.robot._tree = read_tree(model)
    assert _made(p, monkeypatch) == ["values"]
    assert _made(heavier, monkeypatch) == []
    assert len(list(directory.iterdir())) == 1


def test_slopes_and_steps_of_the_ground_share_a_file(directory, monkeypatch):
    """Gravity and the place of a plane are numbers, but for entries that are zero."""
    made = []
    for lean, height in ((0.1, 0.2), (0.2, -0.1), (-0.3, 0.4)):
        robot = five_link.robot(tilt=lean)
        ground = Plane((3.0, -1.0, height), (0.0, 0.0, 1.0))
        p = Point(robot, ContactSet(robot, [Contact("foot", "left_foot", ground)]), 9)
        made += _made(p, monkeypatch)
        at = p.q, p.v, p.u
        for name, values in p.other.values(*at)._asdict().items():
            assert_agree(getattr(p.terms.values(*at), name), values, name)
    assert made == ["values"]


def test_another_structure_has_another_file(directory, monkeypatch):
    p = point_of(4)
    inertias = {1: (9.0, np.zeros(3), np.eye(3))}
    round_body = replace(p, robot=p.robot.replace(inertias, p.robot.passive))
    assert _made(p, monkeypatch) == ["values"]
    assert _made(round_body, monkeypatch) == ["values"]
    assert len(list(directory.iterdir())) == 2


def make_bump(bend):
    """A surface of one's own: its shape is in no attribute."""

    class Bump(_Hollow):
        curved = True

        def distance(self, r):
            return r[:, 2] - bend * r[:, 0] ** 2

        def curvature(self, r):
            return np.tile(np.diag([-2.0 * bend, 0.0, 0.0]), (len(r), 1, 1))

        def curvature_along(self, r, direction):
            return np.zeros((len(r), 3, 3))

        def expression(self, r):
            return r[2] - bend * r[0] ** 2

    return Bump()


def test_surfaces_of_one_class_with_other_expressions_have_other_files(directory, monkeypatch):
    made, robot = [], five_link.robot()
    for bend in (0.5, 1.5, 0.5):
        ground = Contact("foot", "left_foot", make_bump(bend))
        p = Point(robot, ContactSet(robot, [ground]), 9)
        made += _made(p, monkeypatch)
        gaps = p.terms.values(p.q, p.v, p.u).gaps
        np.testing.assert_allclose(gaps, p.contacts.gaps(p.q), rtol=1e-12)
    assert made == ["values", "values"]


def test_where_nothing_can_be_kept_functions_are_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HYBRIDCTL_CACHE", str(tmp_path / "file" / "kept"))
    p = point_of(4)
    assert _made(p, monkeypatch) == ["values"]
    assert _made(p, monkeypatch) == ["values"]
