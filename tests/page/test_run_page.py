"""The page of one run: what it shows of robots, of systems without one, and where it is written."""

import json
import re

import casadi as ca
import numpy as np
import pytest
from hybridctl.robots import block

import hybridctl as hc
from hybridctl.base.errors import FileWriteError, InputError

EMBEDDED = re.compile(r'<script type="application/json" class="(\w+)">(.*?)</script>', re.DOTALL)


def embedded(page):
    """The data of a page, by kind."""
    found = {}
    for kind, text in EMBEDDED.findall(page.content):
        found.setdefault(kind, []).append(json.loads(text))
    return found


def bouncing():
    x = ca.SX.sym("x", 2)
    air = hc.symbolic.SymbolicMode("air", state=x, field=[x[1], -9.81])
    bounce = hc.symbolic.SymbolicTransition(
        "air", "floor", guard=x[0], target="air", reset=[x[0], -0.8 * x[1]]
    )
    return hc.symbolic.hybrid_system([air], [bounce])


def test_a_robot_has_its_motion_events_and_charts(tmp_path):
    system = block.system()
    start = np.array([0.0, 0.3, 0.1, 0.5, 0.0, 0.0])
    run = hc.simulate(system, ("open", "open"), start, (0.0, 0.25))
    page = hc.page(run, path=tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text() == page.content
    found = embedded(page)
    (motion,) = found["motion"]
    assert len(motion["scenes"]) == 1
    titles = [chart["title"] for chart in found["series"]]
    assert len(titles) == 4
    assert titles[0] == "States"
    for event in run.events:
        assert f"{event.time:.6f}" in page.content
    page.close()  # is not temporary
    assert (tmp_path / "run.html").is_file()


def test_contacts_that_never_close_have_no_charts():
    run = hc.simulate(block.system(), ("open", "open"), [0.0, 0.9, 0.0, 0.0, 0.0, 0.0], (0.0, 0.05))
    with hc.page(run) as page:
        assert len(embedded(page)["series"]) == 2  # states and energy
        path = page.path
        assert path.is_file()
    assert not path.exists()


def test_a_system_without_a_robot_has_no_motion():
    run = hc.simulate(bouncing(), "air", [1.0, 0.0], (0.0, 1.0))
    with hc.page(run, title="A ball") as page:
        found = embedded(page)
        assert set(found) == {"series"}
        assert "<h1>A ball</h1>" in page.content
        assert "1 event, ends in mode air" in page.content


def test_a_reference_needs_a_robot():
    run = hc.simulate(bouncing(), "air", [1.0, 0.0], (0.0, 0.1))
    with pytest.raises(InputError, match="robot must be given"):
        hc.page(run, reference=run)


def test_a_path_that_is_no_page_is_refused(tmp_path):
    run = hc.simulate(bouncing(), "air", [1.0, 0.0], (0.0, 0.1))
    path = tmp_path / "robot.urdf"
    path.write_text("mine")
    with pytest.raises(InputError, match="suffix of path"):
        hc.page(run, path=path)
    assert path.read_text() == "mine"


def test_series_replace_their_own_file_and_no_other(tmp_path):
    run = hc.simulate(bouncing(), "air", [1.0, 0.0], (0.0, 0.1))
    run.plot(tmp_path / "states.json")
    hc.plots.states(run, tmp_path / "states.json", title="Again")
    assert json.loads((tmp_path / "states.json").read_text())["title"] == "Again"
    (tmp_path / "config.json").write_text('{"mine": 1}')
    with pytest.raises(FileWriteError, match=r"config\.json"):
        run.plot(tmp_path / "config.json")
    assert (tmp_path / "config.json").read_text() == '{"mine": 1}'


def test_a_path_of_series_gets_no_pictures(tmp_path):
    run = hc.simulate(bouncing(), "air", [1.0, 0.0], (0.0, 0.1))
    run.plot(tmp_path / "states.json")
    assert [path.name for path in tmp_path.iterdir()] == ["states.json"]
    assert json.loads((tmp_path / "states.json").read_text())["title"] == "States"
