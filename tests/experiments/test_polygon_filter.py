"""Filters on a tumbling polygon: its inertia, the truth of both engines, a quick run."""

import json

import numpy as np
import pytest
from hybridctl.experiments.filter_study import polygon as study
from hybridctl.robots import polygon
from rich.console import Console

from hybridctl.base.errors import UnknownNameError
from hybridctl.base.run_folder import RunFolder


@pytest.mark.parametrize("corners", [3, 4, 5, 12])
def test_the_inertia_is_that_of_triangles_around_the_centre(corners):
    """Closed form of each triangle about its tip: m (a^2 + a b + b^2) / 6 for edges a and b."""
    p = polygon.PolygonParameters(corners=corners, radius=0.3, mass=2.0)
    angle = 2.0 * np.pi / corners
    a, b = 0.3 * np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    triangle = 2.0 / corners * (a @ a + a @ b + b @ b) / 6.0
    assert p.pitch_inertia == pytest.approx(corners * triangle, rel=1e-12)


def test_at_rest_on_an_edge_two_corners_touch():
    gaps = [
        0.1 * np.cos(np.pi / 5) + contact.offset[2] * np.cos(a) - contact.offset[0] * np.sin(a)
        for a in [np.pi / 2 + np.pi / 5]
        for contact in polygon.contacts()
    ]
    assert np.sort(np.abs(gaps))[1] < 1e-12
    assert min(gaps) > -1e-12


@pytest.mark.parametrize("contact_time", [0.0, 5e-3])
def test_the_truth_loses_energy_alone(contact_time):
    """On Moreau's contact none is gained; MuJoCo's gives back what it has stored between samples.

    The tolerance is the energy of a millimetre of fall, far below the 2.5 J of the start. Moreau's
    scheme is of first order in the step of 0.2 ms, in which the fastest corner moves 0.5 mm.
    """
    if contact_time:
        pytest.importorskip("mujoco")
    times, states = study.simulate_toss(study.Place(contact_time, 100.0), 3)
    p = polygon.PolygonParameters()
    inertia = np.array([p.mass, p.mass, p.pitch_inertia])
    energy = 0.5 * (inertia * states[:, 3:] ** 2).sum(axis=1) + p.mass * p.gravity * states[:, 1]
    assert len(times) == 91
    assert energy[-1] < 0.8 * energy[0]
    assert np.diff(energy).max() < (0.05 if contact_time else 0.01)


def test_a_filter_of_another_name_is_refused():
    with pytest.raises(UnknownNameError, match="filters"):
        study.Config(filters=("sorted",))


def test_the_salted_filter_follows_one_toss_on_rigid_contact():
    """It is off by less than the camera, 1.4 mm in the plane; velocities need the dynamics."""
    toss = study.PolygonTrial(study.Place(0.0, 30.0), 1, ("salted, auto",), (10.0,), 10)
    salted, free = study.follow(toss)
    assert salted.failed is None
    assert not salted.is_lost
    assert salted.position < 1.4e-3
    assert salted.velocity < 0.5 * free.velocity


def test_the_rows_are_the_filters_that_are_asked_for(tmp_path):
    """Without the filter without dynamics there are no tosses for its level either."""
    folder = RunFolder("polygon", tmp_path, draws=False)
    config = study.Config(
        tosses=1, contact_times=(0.0,), rates=(30.0,), filters=("salted, one order",), workers=1
    )
    study.run(config, folder, Console(quiet=True))
    (place,) = json.loads((folder / "summary.json").read_text())["places"]
    assert [row["filter"] for row in place["rows"]] == ["salted, one order"]
    assert (place["free_force"], place["rows"][0]["tosses"]) == ([], 1)


def test_a_level_with_which_the_filter_fails_is_not_chosen():
    """Although the log-likelihoods of the others, here negative, are below that of no value."""
    place = study.Place(0.0, 30.0)
    trial = study.PolygonTrial(place, 0, (), (0.3, 1.0), 10)
    failed, whole = study.PolygonOutcome(failed="lost"), study.PolygonOutcome(log_likelihood=-2.0)
    assert study._choose_levels([trial], [(failed, whole)]) == {place: (1.0,)}


@pytest.mark.slow
def test_the_quick_run_holds_its_claims_and_draws(tmp_path):
    pytest.importorskip("mujoco")
    folder = RunFolder("polygon", tmp_path)
    config = study.quick(study.Config(workers=1))
    study.run(config, folder, Console(quiet=True))
    summary = json.loads((folder / "summary.json").read_text())
    assert [place["contact_time"] for place in summary["places"]] == [0.0, 5e-3]
    names = [row["filter"] for row in summary["places"][0]["rows"]]
    assert names == [name for name in study.CASES if name != "particles"]
    checks = json.loads((folder / "checks.json").read_text())["checks"]
    assert all(check["holds"] for check in checks)
    assert (folder / "figures/accuracy.png").stat().st_size > 10_000
