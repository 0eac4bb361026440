"""What a run gives to look at: outputs at many times, tables of pandas and of notebooks."""

import dataclasses
import pickle
import sys

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import block, cube

import hybridctl as hc
from hybridctl.base.errors import InputError, UnknownNameError

START = [0.0, 0.3, 0.2, 1.0, 0.0, 0.0]
OPEN = ("open", "open")


@pytest.fixture(scope="module")
def landing():
    """A block that lands on one corner, on the other, slides, and stops."""
    return hc.simulate(block.system(), OPEN, START, (0.0, 0.5))


@pytest.fixture(scope="module")
def switching():
    """A point that flows with an energy in one mode, and without outputs in the other."""
    x = ca.SX.sym("x", 1)
    first = hc.symbolic.SymbolicMode("first", x, [-1.0], outputs={"square": x**2})
    second = hc.symbolic.SymbolicMode("second", x, [-2.0])
    to = hc.symbolic.SymbolicTransition("first", "gate", x[0], "second", [x[0]])
    return hc.simulate(hc.symbolic.hybrid_system([first, second], [to]), "first", [1.0], (0, 2.0))


def test_outputs_are_those_of_mechanics(landing):
    """At rest both corners carry half of the weight; in the air energy is that of the fall."""
    p = block.BlockParameters()
    forces = landing.outputs("normal_force", [0.1, 0.45])
    np.testing.assert_allclose(forces, [[0.0, 0.0], [0.5 * p.mass * p.gravity] * 2], atol=1e-9)
    energy = landing.outputs("energy", [0.0, 0.1])
    np.testing.assert_allclose(energy.sum(axis=1), energy[0].sum(), rtol=1e-8)
    assert energy[0, 0] == pytest.approx(0.5 * p.mass * START[3] ** 2)
    gap, place = landing.outputs("gap", 0.1), landing.outputs("contact_position", 0.1)
    np.testing.assert_allclose(place[:, 2], gap, atol=1e-12)  # above the ground z = 0
    base = landing.outputs("joint_position", 0.1)[-1]
    np.testing.assert_allclose(base[[0, 2]], landing(0.1)[:2], atol=1e-12)


def test_momentum_is_that_of_free_fall_and_of_impulses(landing):
    """In the air only gravity changes it; at an impact it jumps by mass times velocity."""
    p, impact = block.BlockParameters(), landing.events[0]
    first, last = landing.outputs("momentum", [0.0, impact.time], "left")
    fallen = np.array([0.0, 0.0, -p.mass * p.gravity * impact.time, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(last - first, fallen, atol=1e-8)
    after = landing.outputs("momentum", impact.time, "right")
    change = p.mass * (impact.state_after[3:5] - impact.state_before[3:5])
    np.testing.assert_allclose((after - last)[[0, 2]], change, atol=1e-9)


def test_outputs_have_both_limits_at_events(landing):
    impact = landing.events[0]
    before, after = (landing.outputs("energy", impact.time, side)[0] for side in ("left", "right"))
    assert after < before
    assert before == pytest.approx(
        0.5 * block.BlockParameters().mass * (1.0 + impact.state_before[4] ** 2)
    )


def test_outputs_along_arcs_are_those_at_each_time(landing):
    """What a sample has is its own: also the gap of an open corner while the other one slides."""
    for arc, times, found in landing.sampled_outputs(0.02):
        for name, values in found.items():
            alone = [arc_outputs(landing, arc, t)[name] for t in times.tolist()]
            np.testing.assert_array_equal(values, alone)


def arc_outputs(run, arc, t):
    """Outputs of the mode of an arc at one time, copied."""
    found = run.system.mode(arc.mode).outputs(t, *arc.state_and_input(t))
    return {name: np.copy(value) for name, value in found.items()}


def test_outputs_are_nan_where_the_mode_has_none(switching):
    found = switching.outputs("square", [0.5, 1.5])
    np.testing.assert_allclose(found, [[0.25], [np.nan]], atol=1e-9)
    assert switching.outputs("square", []).shape == (0, 1)


def test_unknown_outputs_are_named(landing, switching):
    with pytest.raises(UnknownNameError, match="did you mean 'normal_force'"):
        landing.outputs("normal_forces", 0.1)
    with pytest.raises(InputError, match="t must lie in"):
        landing.outputs("gap", 0.7)


def test_a_pickled_run_has_no_system(landing):
    copy = pickle.loads(pickle.dumps(landing))
    with pytest.raises(InputError, match="no system"):
        copy.outputs("gap", 0.1)
    known = dataclasses.replace(copy, system=landing.system)
    np.testing.assert_array_equal(known.outputs("gap", 0.1), landing.outputs("gap", 0.1))


def test_loaded_runs_know_their_system(landing, tmp_path):
    landing.save(tmp_path / "run.npz")
    again = hc.HybridTrajectory.load(tmp_path / "run.npz", landing.system)
    np.testing.assert_array_equal(again.outputs("gap", 0.1), landing.outputs("gap", 0.1))


def test_dataframes_have_names_and_units(landing):
    pytest.importorskip("pandas")
    table = landing.to_dataframe()
    assert table.index.name == "time [s]"
    assert table.index.tolist() == np.concatenate([arc.times for arc in landing.arcs]).tolist()
    assert table["mode"].iloc[0] == "open open"
    assert table.columns[:3].tolist() == ["mode", "root_x [m]", "root_z [m]"]
    assert "root_pitch rate [rad/s]" in table
    assert "normal_force.right [N]" in table
    assert "kinetic energy [J]" in table
    inside = table.loc[[t for t in table.index if not landing.events[0].time <= t <= 0.2]]
    gaps = landing.outputs("gap", inside.index.to_numpy())
    np.testing.assert_allclose(inside[["gap.left [m]", "gap.right [m]"]], gaps, atol=1e-12)
    impact = landing.events[0].time
    both = table.loc[impact, "root_z rate [m/s]"].tolist()
    assert both == pytest.approx(
        [landing.events[0].state_before[4], landing.events[0].state_after[4]]
    )


def test_dataframes_at_times_are_of_the_state_after(landing):
    pytest.importorskip("pandas")
    times = [0.0, landing.events[0].time, 0.45, 0.5]
    table = landing.to_dataframe(times)
    assert table.index.tolist() == times
    np.testing.assert_allclose(table.iloc[:, 1:7], landing(times), atol=1e-12)
    forces = table[["normal_force.left [N]", "normal_force.right [N]"]]
    np.testing.assert_allclose(forces, landing.outputs("normal_force", times), atol=1e-12)
    with pytest.raises(InputError, match="not decrease"):
        landing.to_dataframe([0.2, 0.1])
    with pytest.raises(InputError, match="must lie in"):
        landing.to_dataframe([0.2, 0.9])


def test_dataframes_of_other_systems_and_inputs(switching):
    pytest.importorskip("pandas")
    table = switching.to_dataframe([0.5, 1.5])
    assert table.columns.tolist() == ["mode", "x0", "square.0"]
    assert table["mode"].tolist() == ["first", "second"]
    names = cube.system(actuated=True).input_labels(("open",) * 8)
    assert names[0] == "root_joint force along vx [N]"
    assert names[-1] == "root_joint torque along wz [N m]"


def test_dataframes_need_pandas(landing, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pip install \"hybridctl\[pandas\]\""):
        landing.to_dataframe()


def test_notebooks_show_tables(landing):
    estimate = hc.estimation.Estimate(OPEN, 0.0, np.array(START), 0.01 * np.eye(6))
    shown = {
        "left closes": landing,
        "impulses [N s]": landing.events[0],
        "root_pitch": landing.system.robot,
        "right": landing.system,
        "0.1": estimate,
    }
    for text, thing in shown.items():
        html = thing._repr_html_()
        assert html.count("<table>") == html.count("</table>") == 1
        assert text in html
        assert len(repr(thing)) < 300
