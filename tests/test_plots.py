"""Public figures of runs and of filters: what they draw is what the run says."""

import dataclasses
import json
import os
import re
import sys
from contextlib import nullcontext
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hybridctl.robots import ball, block, cube

import hybridctl as hc
from hybridctl.app import mode_colors, plots
from hybridctl.app.page.motion import Mover, Scene, encode_motion
from hybridctl.app.plots import picture_files
from hybridctl.app.plots.panels import Line, Mark, Panel, draw_series
from hybridctl.app.plots.picture_files import draw_in_parallel
from hybridctl.base import plugins
from hybridctl.base.errors import FileWriteError, InputError, UnknownNameError
from hybridctl.base.spaces import VectorSpace
from hybridctl.estimation.estimate import Estimate
from hybridctl.estimation.measurement import Measurement, coordinates
from hybridctl.hybrid.mode import (
    FieldJacobian,
    Guard,
    GuardJacobian,
    Mode,
    Reset,
    ResetJacobian,
    Transition,
)

OPEN = ("open", "open")


@pytest.fixture(scope="module")
def landing():
    start = [0.0, 0.3, 0.2, 1.0, 0.0, 0.0]
    return hc.simulate(block.system(), OPEN, start, (0.0, 0.5))


def drawn(axes):
    """Times and values of every solid line of an axis, one after the other."""
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    return (np.concatenate([getattr(line, f"get_{k}data")() for line in lines]) for k in "xy")


def test_states_are_drawn_with_their_names_and_modes(landing, tmp_path):
    figure = landing.plot(tmp_path / "states.png")
    assert {p.name for p in tmp_path.iterdir()} == {"states.png", "states.svg", "states.json"}
    axes = figure.axes
    assert [a.get_ylabel() for a in axes][:2] == ["root_x [m]", "root_z [m]"]
    assert [text.get_text() for text in axes[0].texts] == ["open", "2 slip+", "2 stick"]
    for k, one in enumerate(axes):
        times, values = drawn(one)
        inside = ~np.isin(times, [event.time for event in landing.events])
        np.testing.assert_allclose(values[inside], landing(times[inside])[:, k], atol=1e-12)


@pytest.fixture(scope="module")
def sampled():
    """A ball on rails under an input that is held for 5 ms, which meets the floor once."""
    level = ball.BallParameters(slope=0.0)
    robot = hc.mechanics.Robot.from_urdf(ball.urdf(level), actuated=["x"])
    system = hc.mechanics.contact_system(robot, ball.contacts(level))
    policy = hc.SampledPolicy(lambda t, x: np.array([-x[2]]), 5e-3)
    return hc.simulate(system, ("open",), [0.0, 0.3, 0.4, 0.0], (0.0, 0.3), policy)


def test_inputs_of_a_stored_run_are_drawn_without_its_system(sampled, tmp_path):
    run = sampled
    run.save(tmp_path / "run.npz")
    stored = hc.HybridTrajectory.load(tmp_path / "run.npz")
    assert stored.system is None
    for each in (run, stored):
        axes = plots.inputs(each).axes[0]
        times, values = drawn(axes)
        inside = (times > each.start) & (times < each.end)
        found = np.array([each.input(t)[0] for t in times[inside].tolist()])
        same = np.isclose(values[inside], found)  # but at events, which have both limits
        assert same.mean() > 0.95
    assert plots.inputs(stored).axes[0].get_ylabel() == "u0"
    assert "inputs" in plots.draw_run(stored, tmp_path)


def test_a_run_without_inputs_has_no_figure_of_them(landing):
    with pytest.raises(InputError, match="run must have inputs of one size"):
        plots.inputs(landing)


def test_samples_of_a_controller_are_no_events(sampled):
    assert len(sampled.arcs) == 2
    assert len(sampled.arcs[0].changes) + len(sampled.arcs[1].changes) > 50
    for axes in sampled.plot().axes:
        assert len(axes.lines) == 2  # before the impact, and after it
        times, _ = drawn(axes)
        assert (np.diff(times) >= 0.0).all()
    force = plots.forces(sampled).axes[0]
    assert sum(line.get_linestyle() == ":" for line in force.lines) == 1


def test_chosen_coordinates_are_drawn(landing):
    figure = landing.plot(names=["root_z [m]"])
    assert [axes.get_ylabel() for axes in figure.axes] == ["root_z [m]"]
    with pytest.raises(UnknownNameError, match=r"did you mean 'root_z \[m\]'"):
        landing.plot(names=["root z [m]"])


def test_packages_announce_how_to_draw_a_run(landing, monkeypatch):
    """A backend is an entry point; without any, hybridctl is not installed."""

    def announce(*points):
        monkeypatch.setattr(plugins, "entry_points", lambda *, group: points)

    announce(EntryPoint("words", "plot_words:draw", "hybridctl.run_plots"))
    module = SimpleNamespace(draw=lambda run, path, *, names: (run, path, names))
    monkeypatch.setitem(sys.modules, "plot_words", module)
    assert landing.plot("a", names=["b"], backend="words") == (landing, "a", ["b"])
    with pytest.raises(UnknownNameError, match="backend 'matplotlib' is unknown"):
        landing.plot()
    announce()
    with pytest.raises(InputError, match="install hybridctl itself"):
        landing.plot()


def test_many_coordinates_share_a_panel_for_each_unit():
    system = cube.system()
    start = np.concatenate((system.robot.neutral(), np.arange(6.0)))
    start[2] = 1.0
    figure = hc.simulate(system, ("open",) * 8, start, (0.0, 0.1)).plot()
    visible = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_ylabel() for axes in visible] == ["[m]", "[1]", "[m/s]", "[rad/s]"]
    assert [len(axes.lines) for axes in visible] == [3, 4, 3, 3]
    names = [text.get_text() for text in visible[0].get_legend().texts]
    assert [name + " [m]" for name in names] == list(system.state_labels(("open",) * 8)[:3])


def test_contacts_forces_and_energy_are_those_of_the_run(landing):
    both = plots.modes(landing)
    assert [a.get_ylabel() for a in both.axes][:2] == ["left\ngap [mm]", "left\nsliding [m/s]"]
    one = plots.forces(landing, contacts=["right"])
    assert [a.get_ylabel() for a in one.axes] == ["right\nnormal [N]", "right\nfriction [N]"]
    times, values = drawn(one.axes[0])
    quiet = (times > 0.4) & (times < 0.45)
    np.testing.assert_allclose(values[quiet], 0.5 * 9.81, rtol=1e-6)
    labels = [text.get_text() for text in plots.energy(landing).axes[0].get_legend().texts]
    assert labels == ["total", "kinetic", "potential"]
    labels = [text.get_text() for text in plots.energy(landing).axes[1].get_legend().texts]
    assert labels == ["x [N s]", "z [N s]", "about y [N m s]"]
    with pytest.raises(UnknownNameError, match="did you mean 'left'"):
        plots.modes(landing, contacts=["Left"])


def test_a_relaxed_robot_has_the_figures_of_a_robot():
    """A block that has come to rest: half its weight on each foot, which sinks by the width for
    the weight of its effective mass, 1 / (1 / m + (w / 2)^2 / I).

    The tolerance of the run, 1e-9 m, is 1e-4 of the width, and some ten of it add up.
    """
    width, near, p = 1e-5, 1e-3, block.BlockParameters()
    system = block.system(p)
    x = np.zeros(6)
    x[1] = -system.dynamics.gaps(x[:3]).min() - width
    run = hc.simulate(hc.relax(system, width), None, x, (0.0, 0.3))
    times, normal = drawn(plots.forces(run, contacts=["right"]).axes[0])
    still = times > 0.2
    np.testing.assert_allclose(normal[:-2][still[:-2]], 0.5 * p.mass * 9.81, rtol=near)
    gap, sliding = plots.modes(run, contacts=["left"]).axes
    assert np.abs(sliding.lines[-1].get_ydata()).max() < near * width / 0.1
    assert [text.get_text() for text in gap.get_legend().texts] == ["strip"]
    sunk = 0.5 * (1.0 + p.mass * (0.5 * p.width) ** 2 / p.pitch_inertia)
    assert gap.lines[-1].get_ydata()[-1] == pytest.approx(-1e3 * width * sunk, rel=near)
    energy = plots.energy(run).axes[0].lines[1].get_ydata()
    assert energy[-1] < near**2 * energy.max()


def test_a_prediction_jumps_with_the_nominal_run(landing):
    """Beside events it is off the perturbed run by the square of the deviation; the block's
    second derivatives are below 1000."""
    start = landing(0.0) + np.array([0.0, 1e-4, 0.0, 0.0, 0.0, 0.0])
    moved = hc.simulate(landing.system, landing.arcs[0].mode, start, (0.0, landing.end))
    lin = hc.linearize(landing.system, landing)
    figure = plots.prediction(lin, moved, names=["root_x [m]"])
    (axes,) = figure.axes
    lines = {"nominal": [], "perturbed": [], "predicted": []}
    for line in axes.lines:
        name = {plots.REFERENCE: "nominal", plots.TRACKING: "perturbed", plots.SKY: "predicted"}
        lines[name[line.get_color()]].append(line)
    assert [len(found) for found in lines.values()] == [
        len(landing.arcs), len(moved.arcs), len(landing.arcs)
    ]  # fmt: skip
    for nominal, predicted in zip(lines["nominal"], lines["predicted"], strict=True):
        np.testing.assert_array_equal(nominal.get_xdata(), predicted.get_xdata())
    last = [lines[name][-1].get_ydata()[-1] for name in ("perturbed", "predicted")]
    assert last[0] == pytest.approx(last[1], abs=1e3 * 1e-8)
    with pytest.raises(InputError, match="perturbed must begin in mode"):
        plots.prediction(
            lin, hc.simulate(landing.system, moved.final_mode, moved.final_state, (0.0, 0.1))
        )


def test_runs_without_contacts_have_no_figures_of_contacts(landing):
    lost = hc.HybridTrajectory(landing.arcs, landing.events)
    with pytest.raises(InputError, match="robot with contacts"):
        plots.forces(lost)
    assert next(a.get_ylabel() for a in lost.plot().axes) == "x0"


@pytest.fixture(scope="module")
def filtered():
    system = ball.system(ball.BallParameters(slope=0.0, restitution=0.8))
    truth = hc.simulate(system, ("open",), [0.0, 1.0, 0.5, 0.0], (0.0, 0.8))
    times = np.linspace(0.02, 0.8, 40)
    noise = np.random.default_rng(0).normal(scale=0.01, size=(40, 2))
    record = hc.estimation.Record({"position": hc.Series(times, truth(times)[:, :2] + noise)})
    salted = hc.SaltedKalmanFilter(
        system, 1e-6 * np.eye(4), coordinates("position", [0, 1], 1e-4 * np.eye(2))
    )
    start = Estimate(("open",), 0.0, np.array([0.0, 1.02, 0.45, 0.05]), 0.01 * np.eye(4))
    return salted.run(record, start), truth


def test_errors_are_truth_minus_estimate_and_broken_at_events(filtered):
    result, truth = filtered
    figure = plots.errors(result, truth)
    assert len(figure.axes) == 4
    values = figure.axes[1].lines[0].get_ydata()
    assert np.isnan(values).sum() >= 1  # the bounce
    expected = truth(result.times)[:, 1] - np.array(result.means)[:, 1]
    np.testing.assert_allclose(values[~np.isnan(values)], expected, atol=1e-12)
    with pytest.raises(InputError, match="truth must cover"):
        plots.errors(result, hc.simulate(ball.system(), ("open",), [0, 1, 0, 0], (0, 0.1)))


def test_nis_is_drawn_beside_its_limit(filtered):
    result, _ = filtered
    axes = plots.nis({"salted": result}).axes[0]
    shown = [i.nis / i.dimension for i in result.innovations]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), np.maximum(shown, 1e-3))
    np.testing.assert_allclose(axes.lines[1].get_ydata(), -np.log(0.01))  # chi2 of dimension 2
    with pytest.raises(InputError, match="innovations"):
        plots.nis({})


def test_nis_of_more_filters_than_there_are_colours_are_all_drawn(filtered):
    results = {f"filter {k}": filtered[0] for k in range(len(plots.CURVES) + 2)}
    axes = plots.nis(results).axes[0]
    assert len(axes.lines) == len(results) + 1  # and the limit


def test_errors_of_modes_of_other_sizes_are_gaps():
    """A ball of two states lands, and has the state of its place alone from then on."""
    rest = np.array([[1.0], [0.0]])
    air = Mode(
        "air", VectorSpace(2), lambda t, x, u: np.array([x[1], -10.0]), 0,
        lambda t, x, u: FieldJacobian(np.array([[0.0, 1.0], [0.0, 0.0]]), np.zeros((2, 0))),
    )  # fmt: skip
    ground = Mode(
        "ground", VectorSpace(1), lambda t, x, u: np.zeros(1), 0,
        lambda t, x, u: FieldJacobian(np.zeros((1, 1)), np.zeros((1, 0))),
    )  # fmt: skip
    hit = Guard(
        "hit", lambda t, x, u: x[0],
        lambda t, x, u: GuardJacobian(0.0, np.array([1.0, 0.0]), np.zeros(0)),
    )  # fmt: skip
    land = Reset(
        lambda t, x, u: x @ rest,
        lambda t, x, u: ResetJacobian(np.zeros(1), rest.T, np.zeros((1, 0))),
    )
    system = hc.HybridSystem([air, ground], [Transition("air", hit, land, "ground")])
    truth = hc.simulate(system, "air", [0.2, 0.0], (0.0, 0.4))  # lands at 0.2 s
    times = np.linspace(0.02, 0.4, 20)
    values = [truth(t)[:1] for t in times.tolist()]
    measured = Measurement(
        "place", lambda mode, t, x, u: x[:1], lambda mode, t, x, u: np.eye(1, mode.space.ndx),
        1e-4 * np.eye(1),
    )  # fmt: skip
    noise = {"air": 1e-6 * np.eye(2), "ground": 1e-6 * np.eye(1)}
    salted = hc.SaltedKalmanFilter(system, noise, measured)
    start = Estimate("air", 0.0, np.array([0.2, 0.0]), 1e-4 * np.eye(2))
    record = hc.estimation.Record({"place": hc.Series(times, np.array(values))})
    result = salted.run(record, start)
    assert {mode for mode in result.modes} == {"air", "ground"}
    place, speed = (axes.lines[0] for axes in plots.errors(result, truth).axes)
    assert np.isfinite(place.get_ydata()).sum() == len(times)
    in_air = np.array([mode == "air" for mode in result.modes])
    assert np.isfinite(speed.get_ydata()).sum() == in_air.sum()


def test_lines_break_where_samples_are_missing(filtered):
    """Between 0.3 and 0.56 s, at 13 times the usual step; every other sample is drawn."""
    whole, truth = filtered
    kept = [step for step in whole.steps if not 0.31 < step.time < 0.55]
    result = dataclasses.replace(whole, steps=tuple(kept))
    for figure, broken in ((plots.nis({"salted": result}), 0), (plots.errors(result, truth), 1)):
        line = figure.axes[broken].lines[0]
        inside = (line.get_xdata() > 0.31) & (line.get_xdata() < 0.55)
        assert np.isnan(line.get_ydata()[inside]).all()
        assert inside.any()
        assert np.isfinite(line.get_ydata()).sum() == len(kept)


def test_a_band_is_named_by_its_mode():
    spans = [(0.0, 1.0, "air"), (1.0, 1.05, "left"), (1.05, 2.0, "both")]
    assert [band.label for band in plots.make_mode_bands(spans)] == ["air", "left", "both"]


def test_a_mode_has_its_colour_in_every_run():
    """By how many contacts are closed and whether one slides, whatever came before."""
    modes = [("open", "open"), ("stick", "open"), ("stick", "stick"), ("slip+", "stick")]
    one = plots.make_mode_bands([(k, k + 1.0, mode) for k, mode in enumerate(modes)])
    other = plots.make_mode_bands([(k, k + 1.0, mode) for k, mode in enumerate(reversed(modes))])
    assert [band.color for band in one] == [band.color for band in reversed(other)]
    assert len({band.color for band in one}) == len(modes)
    (single,) = plots.make_mode_bands([(0.0, 1.0, ("open", "closed"))])
    assert single.color == one[1].color


def test_each_contact_mode_has_one_colour_in_figures_and_pages(landing):
    """The table has none twice; curves and the player take theirs from it."""
    table = mode_colors.CONTACT_MODE_COLORS
    assert len(set(table.values())) == len(table)
    both = plots.modes(landing)
    for axes in both.axes:
        for line in axes.lines:
            label = line.get_label()
            assert label.startswith("_") or line.get_color() == table[label]
    assert encode_motion([Scene("", [Mover("block", landing, lambda x: [x[None, :2]])])])[
        "mode_colors"
    ] == dict(table)


def test_feet_share_the_axis_of_their_forces(landing):
    normal = [axes for axes in plots.forces(landing).axes if "normal" in axes.get_ylabel()]
    assert len({axes.get_ylim() for axes in normal}) == 1
    sliding = [axes for axes in plots.modes(landing).axes if "sliding" in axes.get_ylabel()]
    assert len({axes.get_ylim() for axes in sliding}) == 1


def test_peaks_are_cut_and_noted_and_impulses_are_marked(tmp_path):
    times = np.linspace(0.0, 1.0, 101)
    values = np.where(times < 0.02, 500.0, 10.0)
    panel = Panel("force", [Line(times, values)], most=20.0, marks=[Mark(0.5, "3 N s")])
    figure = draw_series(tmp_path / "forces.png", [[panel]], title="forces")
    (axes,) = figure.axes
    assert axes.get_ylim()[1] == pytest.approx(21.0)
    assert {text.get_text() for text in axes.texts} == {"to 500", "3 N s"}
    (stored,) = json.loads((tmp_path / "forces.json").read_text())["rows"][0]
    assert (stored["most"], stored["marks"]) == (20.0, [{"time": 0.5, "text": "3 N s"}])


def test_figures_that_are_drawn_in_parallel_are_the_same(landing, tmp_path):
    for name in ("one", "many"):
        with draw_in_parallel() if name == "many" else nullcontext():
            landing.plot(tmp_path / name / "states.png")
            plots.energy(landing, tmp_path / name / "energy.png")
    for file in ("states.png", "states.svg", "states.json", "energy.png", "energy.svg"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "many" / file).read_bytes()


def test_a_figure_whose_process_dies_is_drawn_all_the_same(landing, tmp_path, monkeypatch):
    begin = os.getpid()
    draw = picture_files._draw_files

    def die(*arguments):
        if os.getpid() != begin:
            os._exit(9)
        draw(*arguments)

    monkeypatch.setattr(picture_files, "_draw_files", die)
    with draw_in_parallel():
        landing.plot(tmp_path / "states.png")
    assert (tmp_path / "states.png").stat().st_size > 1000


def test_figures_have_colours_that_all_can_tell_apart():
    """Those of Okabe and Ito, grey, and two paler ones for the second of a pair."""
    known = {plots.BLUE, plots.VERMILION, plots.ORANGE, plots.GREEN, plots.SKY, plots.BASELINE}
    known |= {"#85a9d0", "#e29a90"}
    for path in (Path(__file__).parent.parent / "experiments").rglob("*.py"):
        assert set(re.findall(r"#[0-9a-f]{6}", path.read_text())) <= known, path
        assert not re.search(r'color="(red|green|purple|C\d|tab:\w+)"', path.read_text()), path


def test_a_file_beside_a_figure_that_is_not_of_one_is_not_overwritten(tmp_path):
    """The user has named the .png alone."""
    lines = [[Panel("x", [Line(np.arange(3.0), np.arange(3.0))])]]
    for suffix in (".svg", ".json"):
        theirs = (tmp_path / "cube").with_suffix(suffix)
        theirs.write_text('{"title": "my cube", "mass": 0.37}')
        said = rf"cube\{suffix} would be overwritten.* earlier versions"
        with pytest.raises(FileWriteError, match=said):
            draw_series(tmp_path / "cube.png", lines, title="cube")
        assert [p.name for p in tmp_path.iterdir()] == [theirs.name]
        theirs.unlink()
    for _ in range(2):  # its own files are replaced
        draw_series(tmp_path / "cube.png", lines, title="cube")


def test_a_suffix_that_cannot_be_drawn_is_named(landing, tmp_path):
    with pytest.raises(UnknownNameError, match=r"suffix of path 'xyz' is unknown.*'png'"):
        landing.plot(tmp_path / "run.xyz")
    assert list(tmp_path.iterdir()) == []
