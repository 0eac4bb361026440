"""The biped experiment shows what its docstring claims."""

import json

import numpy as np
import pytest
from hybridctl.experiments.contacts import biped
from hybridctl.robots import biped as robot
from rich.console import Console

from hybridctl.base.errors import InputError
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import load_configuration

CASCADES = ("linear", "by feet", "rigid")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = RunFolder("biped", tmp_path_factory.mktemp("biped"), draws=False)
    config = biped.quick(biped.Config())
    return folder, biped.run(config, folder, Console(quiet=True))


def test_only_dampers_by_feet_make_a_kink(result):
    summary = result[1]
    assert summary["by feet"]["kink"] > 0.5
    for name in ("linear", "rigid"):
        assert summary[name]["kink"] < 1e-12  # of rounding


@pytest.mark.parametrize("name", CASCADES)
def test_the_orders_differ_by_the_closed_form(result, name):
    found = result[1][name]
    assert (np.abs(found["closed_form"]).max() > 0.5) == (name == "by feet")
    assert found["closed_form_error"] < 1e-13


@pytest.mark.parametrize("name", CASCADES)
def test_one_sided_differences_converge_to_the_derivatives(result, name):
    found = result[1][name]
    orders = np.diff(np.log(found["errors"])) / np.diff(np.log(found["steps"]))
    # One-sided differences err by their step; the tolerance 1e-11 over 1e-4 is far below that.
    np.testing.assert_allclose(orders, 1.0, atol=0.1)
    assert found["errors"][-1] < 1e-3


@pytest.mark.parametrize("name", [*CASCADES, "rigid, short"])
def test_a_drop_and_its_mirror_image_land_as_mirror_images(result, name):
    found = result[1][name]
    mirror = np.array([-1.0, 1.0, -1.0, -1.0, 1.0, -1.0])
    falls, rises = found["differences_pitch_falls"], found["differences_pitch_rises"]
    np.testing.assert_allclose(falls, rises * mirror, atol=1e-5)  # tolerance over step


def test_only_rigid_short_limbs_jump_and_have_no_cascade(result):
    # Elsewhere the final state moves by its derivative, at most 10, times the least step, 1e-4.
    for name in CASCADES:
        assert result[1][name]["jump"] < 1e-3
    assert result[1]["rigid, short"]["jump"] > 1e-2
    found = result[1]["rigid, short"]
    assert not found["has_cascade"]
    assert "difference_of_orders" not in found


def test_the_closed_form_is_the_printed_one_for_unit_length_and_mass():
    psi, beta = 0.4, 1.7
    p = biped.BipedParameters(length=1.0, height=2.0, spread=psi, damping=beta)
    found = biped.difference_of_orders(p)
    assert found[4, 0] == pytest.approx(-4 * beta * np.cos(psi))
    assert found[4, 2] == pytest.approx(-2 * beta * (np.sin(2 * psi) + np.cos(psi)))
    assert np.count_nonzero(found) == 2


def test_the_folder_is_complete(result):
    folder, summary = result
    stored = json.loads((folder / "summary.json").read_text())
    assert stored.keys() == summary.keys() == {*CASCADES, "rigid, short", "rigid limit"}


def test_stiffer_ground_tends_to_rigid_ground(result):
    """States by 1 / stiffness: at a damping ratio by how far it gives under half the weight each.
    Derivatives, which see how long a touch takes, by its root, where the feet are coupled not at
    all, and by 1 / stiffness where dampers are in proportion to it."""
    limits = result[1]["rigid limit"]
    sag = [
        0.5 * robot.BipedParameters().mass * robot.BipedParameters().gravity / k for k in (1e4, 1e6)
    ]
    for name in ("coupled", "uncoupled"):
        np.testing.assert_allclose(limits[name]["states"], sag, rtol=0.01)
    ratio = {
        name: {what: errors[1] / errors[0] for what, errors in found.items()}
        for name, found in limits.items()
    }
    assert 0.05 < ratio["uncoupled"]["derivatives"] < 0.2
    assert ratio["coupled"]["derivatives"] > 0.9
    assert limits["coupled"]["derivatives"][0] > 0.02
    for what in ("states", "derivatives"):
        assert ratio["overdamped"][what] == pytest.approx(0.01, rel=0.1)
    assert limits["overdamped"]["derivatives"][-1] < 5e-6


def test_uncoupled_feet_do_not_feel_each_other():
    p = robot.decouple_feet(robot.BipedParameters(spread=0.6, mass=1.3))
    q, step = np.array([0.0, p.landing_height, 0.0]), 1e-5
    rows = [(robot.gaps(q + step * e, p) - robot.gaps(q - step * e, p)) / step for e in np.eye(3)]
    left, right = np.transpose(rows)
    # of terms up to 1 / mass, beside the border by 1e-5 of the inertia
    assert -2e-5 < left @ (right / p.masses) < 0.0
    with pytest.raises(InputError, match="curvature must be less"):
        robot.decouple_feet(robot.BipedParameters(curvature=2.0, height=3.0))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("after=0", "after must be greater than 0"),
        ("reach=1", "reach must be at most 0.5"),
        ("points=2", "points must be"),
        ("steps=[1]", r"steps\[0\] must be at most"),
        ("long_height=0.1", "height must be above"),
        ("tolerance=0", "tolerance must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        load_configuration(biped.Config, None, [setting])
