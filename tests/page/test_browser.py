"""Pages in a real browser: they open without a network, play, and zoom."""

import io
import shutil
from contextlib import contextmanager
from html import escape

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import Image
from rich.console import Console

import hybridctl as hc
from hybridctl.app.cli import cli
from hybridctl.app.page.build import write_page
from hybridctl.app.page.motion import Mover, Scene, write_motion
from hybridctl.app.plots import states
from hybridctl.app.report import make_table
from hybridctl.base import plugins
from hybridctl.base.run_folder import RunFolder
from hybridctl.mechanics import Contact, Plane, Robot, contact_system

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FOUND = next((path for name in BROWSERS if (path := shutil.which(name))), None)
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOUND is None, reason=f"no browser is installed, looked for {BROWSERS}"),
]
# In the plane and in space, with few events and many; the others are more of the same.
PLAYED = (
    *("slope", "cube-drop", "biped"),
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in ("block", "rrr-door", "double-pendulum-stop")
    ),
)


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=FOUND, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def tab_of(browser, page):
    """A page in a browser without a network, which must not complain or ask for anything."""
    context = browser.new_context(offline=True, viewport={"width": 1000, "height": 900})
    tab = context.new_page()
    complaints, requests = [], []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.clock.install(time=0)
    tab.goto(f"{page.as_uri()}#t=0.1")
    tab.clock.pause_at(60.0)  # from here on it runs as it is told
    yield tab
    # Without a graphics processor chromium says that it copies pictures of WebGL slowly.
    assert [text for text in complaints if "GPU stall due to ReadPixels" not in text] == []
    assert {url.split(":")[0] for url in requests} <= {"file", "data"}
    context.close()


@pytest.fixture(scope="module")
def opened(browser, page):
    """The page of a ball that bounces and stops."""
    with tab_of(browser, page) as tab:
        yield tab


def time_of(tab):
    return float(tab.locator(".scene").first.get_attribute("data-time"))


def pixels(tab):
    """What the first picture shows, (height, width, 3)."""
    picture = Image.open(io.BytesIO(tab.locator(".picture").first.screenshot()))
    return np.asarray(picture.convert("RGB")).astype(int)


def inked(picture):
    return int(np.count_nonzero(picture.sum(axis=2) < 700))


def played(tab, milliseconds):
    """How far the motion gets in a time of the browser's clock, s."""
    before = time_of(tab)
    tab.get_by_role("button", name="play").first.click()
    tab.clock.run_for(milliseconds)
    tab.get_by_role("button", name="pause").first.click()
    return time_of(tab) - before


def test_charts_have_axes_and_legends(opened):
    charts = opened.locator(".panel svg[role=img]")
    assert charts.count() == 3
    labels = opened.locator(".panel .label").all_text_contents()
    assert labels == ["height [m]", "height [m]", "time [s]", "speed [m/s²]", "time [s]"]
    legends = [text.strip() for text in opened.locator(".panel .legend").all_text_contents()]
    assert legends == ['height of "</script>"'] * 2 + ["speed"]
    assert opened.locator(".panel .tick").count() > 15
    assert opened.locator("figure img").evaluate("image => image.naturalWidth") > 100


def test_a_chart_zooms_into_an_event_and_back(opened, run):
    def ticks():
        return opened.locator(".panel").nth(2).locator(".tick").all_text_contents()

    whole = ticks()
    assert {"0.0", "0.5", "1.0"} <= set(whole)
    event = f"{run.events[0].time:.4f} s"
    opened.locator(".chart button", has_text=event).click()
    shown = [float(text) for text in ticks()[:3]]
    assert max(abs(t - run.events[0].time) for t in shown) < 0.02
    opened.locator(".chart button", has_text="all").click()
    assert ticks() == whole
    box = opened.locator(".panel svg[role=img]").first.bounding_box()
    opened.mouse.move(box["x"] + 100, box["y"] + 60)
    opened.mouse.down()
    opened.mouse.move(box["x"] + 150, box["y"] + 60)
    opened.mouse.up()
    assert ticks() != whole
    opened.locator(".panel svg[role=img]").first.dblclick(position={"x": 100, "y": 60})
    assert ticks() == whole


def test_the_motion_plays_and_shows_forces(opened, run):
    assert time_of(opened) == pytest.approx(0.1)
    before = pixels(opened)
    assert inked(before) > 500
    assert played(opened, 200) == pytest.approx(0.05, abs=0.01)  # at a quarter of real time
    assert np.any(pixels(opened) != before)
    opened.get_by_role("slider", name="time").fill("10000")
    assert time_of(opened) == pytest.approx(run.end)
    assert "ball: stick" in opened.locator(".modes").text_content()
    with_force = inked(pixels(opened))
    opened.get_by_role("checkbox", name="forces").uncheck()
    assert inked(pixels(opened)) < with_force - 50


def test_it_goes_slower_around_an_event(opened, run):
    event = opened.locator(".scene button", has_text="event").first
    event.click()
    assert 0.0 < run.events[0].time - time_of(opened) <= 0.011
    slow = played(opened, 200)
    event.click()
    opened.get_by_role("checkbox", name="slower").uncheck()
    assert slow < 0.5 * played(opened, 200)


@pytest.mark.parametrize("name", PLAYED)
def test_pages_of_experiments_play(name, browser, tmp_path):
    """Opened, played, slower around events; what moves has the colour of its legend."""
    module, folder = plugins.load_plugin("experiments", name), RunFolder(name, tmp_path)
    module.run(module.quick(module.Config()), folder, Console(quiet=True))
    with tab_of(browser, write_page(folder, [], summary=module.SUMMARY)) as tab:
        legend = (
            tab.locator(".scene")
            .first.locator(".swatch")
            .evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
        )
        start = pixels(tab)
        tab.get_by_role("combobox", name="speed").first.select_option("1")
        assert played(tab, 300) > 0.0
        moved = pixels(tab)
        assert np.count_nonzero(np.abs(moved - start).sum(axis=2) > 60) > 50
        colors = [np.array([int(c) for c in tone.strip("rgb()").split(",")]) for tone in legend]
        seen = [np.count_nonzero(np.abs(moved - color).sum(axis=2) < 30) for color in colors]
        assert max(seen) > 50  # those that start together hide each other
        to_the_first_event(tab)
        slow = played(tab, 100)
        to_the_first_event(tab)
        tab.get_by_role("checkbox", name="slower").first.uncheck()
        assert slow < played(tab, 100)
        for label in tab.locator(".panel .label").all_text_contents():
            assert label.strip()


def to_the_first_event(tab):
    """By its button, or where there are many events by their list."""
    scene = tab.locator(".scene").first
    if scene.locator("select.events").count():
        scene.locator("select.events").select_option(index=1)
    else:
        scene.locator("button", has_text="event").first.click()


BEADED = """<robot name="bead"><link name="bead"><inertial><mass value="0.5"/>
<inertia ixx="1e-3" iyy="1e-3" izz="1e-3" ixy="0" ixz="0" iyz="0"/></inertial>
<visual><geometry><box size="0.2 0.2 0.2"/></geometry>
<material name="red"><color rgba="1 0 0 1"/></material></visual></link></robot>"""


def reddish(picture):
    red, green, blue = np.moveaxis(picture, -1, 0)
    return int(np.count_nonzero((red > 80) & (green + blue < 0.2 * red)))


def test_a_view_shows_shapes_that_move_turn_and_zoom(browser):
    """A red box falls; its strips of modes lead to any time; a reference is looked through."""
    robot = Robot.from_urdf(BEADED, root="floating")
    tip = Contact("tip", "bead", Plane((0, 0, 0), (0, 0, 1)), offset=(0, 0, -0.1))
    start = np.concatenate([[0.0, 0.0, 0.3], robot.neutral()[3:], np.zeros(6)])
    system = contact_system(robot, [tip])
    run = hc.simulate(system, ("open",), start, (0.0, 0.25))
    above = hc.simulate(system, ("open",), start + np.eye(13)[2], (0.0, 0.25))
    with (
        hc.view(run, system, reference=above) as view,
        tab_of(browser, view.path) as tab,
    ):
        assert tab.title() == "bead"
        first = pixels(tab)
        assert reddish(first) > 300
        assert np.count_nonzero(first[..., 0] > first[..., 2] + 60) > reddish(first) + 300  # tinted
        assert played(tab, 200) > 0.0
        assert np.any(pixels(tab) != first)
        before = reddish(pixels(tab))
        tab.get_by_role("button", name="+").click()
        assert reddish(pixels(tab)) > 1.2 * before
        box = tab.locator(".picture").bounding_box()
        tab.mouse.move(box["x"] + 300, box["y"] + 100)
        before = pixels(tab)
        tab.mouse.down()
        tab.mouse.move(box["x"] + 340, box["y"] + 110)
        tab.mouse.up()
        assert np.any(pixels(tab) != before)
        strips = tab.locator(".timeline canvas")
        size = strips.bounding_box()
        strips.click(position={"x": size["width"] - 1, "y": 5})
        assert time_of(tab) == pytest.approx(run.end, abs=1e-3)
        assert tab.locator(".timeline .bar span", has_text="open").count()
        tab.evaluate("location.hash = '#t=0.05'")
        assert time_of(tab) == pytest.approx(0.05)


NAME = 'x<img src=q onerror="window.hit=1">&$\\frac$'
SLIDER = """<robot name="slider"><link name="rail"/><link name="box"><inertial><mass value="2"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="{}" type="prismatic"><parent link="rail"/><child link="box"/><axis xyz="0 0 1"/>
<limit effort="1" velocity="1"/></joint></robot>"""


def test_names_are_text_whatever_they_hold(browser, tmp_path, monkeypatch):
    """Joint, contact, channel, file and experiment are named like markup that runs a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{NAME}.urdf").write_text(SLIDER.format(escape(NAME)))
    model = {
        "urdf": f"{NAME}.urdf",
        "contacts": {NAME: {"frame": "box", "restitution": 0.3}},
        "encoders": {NAME: {"joints": [NAME], "deviation": 1e-3, "unit": "m"}},
        "noise": {"force": 1e-2, "surface": 1e-4},
        "start": {"configuration": [0.1], "deviations": {"configuration": 1e-3, "velocity": 1e-2}},
    }
    (tmp_path / f"{NAME}.yaml").write_text(yaml.safe_dump(model))
    call = ["filter", "--model", f"{NAME}.yaml", "--out", NAME, "--set", "duration=0.2"]
    done = CliRunner().invoke(cli, call, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    with tab_of(browser, tmp_path / NAME / "index.html") as tab:
        assert tab.title() == tab.locator("h1").text_content() == f"filter-{NAME}"
        labels = tab.locator(".panel .label").all_text_contents()
        shown = NAME.replace("$", "").replace("\\", "")  # formulas are shown without their marks
        assert f"{shown} [m]" in labels
        assert tab.locator("td", has_text=NAME).count()
        assert tab.evaluate("window.hit") is None


def test_names_of_modes_guards_and_movers_are_text(browser, tmp_path):
    rest = hc.Mode(f"at {NAME}", hc.VectorSpace(2), lambda t, x, u: np.zeros(2))
    fall = hc.Mode(NAME, hc.VectorSpace(2), lambda t, x, u: np.array([x[1], -9.81]))
    stop = hc.Reset(lambda t, x, u: np.zeros(2))
    met = hc.Transition(NAME, hc.Guard(NAME, lambda t, x, u: x[0]), stop, f"at {NAME}")
    run = hc.simulate(hc.HybridSystem([fall, rest], [met]), NAME, [0.1, 0.0], (0.0, 0.15))
    folder = RunFolder(NAME, tmp_path / "run")
    states(run, folder / f"figures/{NAME}.png", title=NAME)
    write_motion(
        folder, [Scene(NAME, [Mover(NAME, run, lambda x: [np.array([[x[0], 0], [1, 1]])])])]
    )
    folder.write_text(f"javascript:window.hit=1;{NAME}", "1")
    rows = make_table(NAME, [NAME, "guard"], [(NAME, run.events[0].guards[0])])
    page = write_page(folder, [rows, NAME], summary=NAME, claim=f"{NAME} `{NAME}` :math:`{NAME}`")
    with tab_of(browser, page) as tab:
        assert tab.locator(".scene h3").text_content() == NAME
        assert f"{NAME}: {NAME}" in tab.locator(".modes").text_content()
        assert NAME in tab.locator(".panel svg text").all_text_contents()  # the band of the mode
        assert tab.locator("caption").text_content() == NAME
        link = tab.locator("a", has_text="javascript:")
        assert not link.evaluate("link => link.href").startswith("javascript:")
        assert tab.evaluate("window.hit") is None


def test_what_is_no_part_of_the_page_neither_runs_nor_loads(browser, page, tmp_path):
    """The policy stops what would be put in as markup: a script, a handler, a picture, a frame."""
    bad = (
        '<script>window.hit = 1</script><img src="data:," onerror="window.hit = 1">'
        '<img src="file:///q.png"><iframe src="data:text/html,q"></iframe>'
        '<a id="link" href="javascript:window.hit = 1">q</a>'
    )
    page_with = tmp_path / "index.html"
    page_with.write_text(page.read_text().replace("</header>", f"</header>{bad}"))
    context = browser.new_context(offline=True)
    tab, refused = context.new_page(), []
    tab.on("console", lambda message: refused.append(message.text))
    tab.goto(page_with.as_uri())
    tab.locator("#link").click()
    assert tab.evaluate("window.hit") is None
    assert sum("Content Security Policy" in text for text in refused) == 5
    assert tab.locator(".panel svg[role=img]").count() == 3  # what belongs to it goes on
    context.close()
