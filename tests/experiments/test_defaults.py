"""Every experiment at its defaults: it runs, what it claims holds, and it draws its figures."""

import json

import pytest
from click.testing import CliRunner

from hybridctl.app.cli import cli
from hybridctl.base import plugins
from hybridctl.base.errors import ClaimError, InputError

RECORDED = {"cube-identify", "hopper-jump", "icub-base"}  # on recordings that are elsewhere
CONTACTS = ("modes", "forces", "energy")
FIGURES = {
    "bderivative": {"balls"},
    "biped": {"flow"},
    "block": {"landing_snapshots", *(f"{n}_{k}" for n in ("landing", "rocking") for k in CONTACTS)},
    "contact-law": {"solutions"},
    "cube-drop": {"snapshots", *CONTACTS},
    "ilqr": {"convergence"},
    "lqr": {"costs"},
    "relay": {"relay", "friction"},
    "rrr-door": {
        "errors",
        "reference_forces",
        "tracking_forces",
        "inputs",
        "snapshots",
    },
    "saltation": {"flow"},
    "slope": {"motion", *(f"{n}_{k}" for n in ("stops", "bounces") for k in CONTACTS)},
    "zeno-ball": {"ball"},
}
pytestmark = pytest.mark.slow
# Minutes each. Their claims hold on quick settings in tests of their own: `test_bolt_walk`,
# `test_door_optimal`, `test_cube_filter`, `test_filter_study`, `test_polygon_filter` and
# `relaxation/test_experiments`.
MINUTES = {
    "bolt-walk",
    "cube-filter",
    "door-optimal",
    "filter-study",
    "polygon-filter",
    "zeno-ball",
}


def mark_experiment(name):
    """The parameter of an experiment: long where its defaults take minutes."""
    return pytest.param(name, marks=[pytest.mark.long] * (name in MINUTES))


@pytest.mark.parametrize(
    "name",
    [mark_experiment(n) for n in sorted(set(plugins.list_plugins("experiments")) - RECORDED)],
)
def test_an_experiment_holds_what_it_claims_at_its_defaults(name, tmp_path):
    done = CliRunner().invoke(
        cli, ["simulate", name, "--out", str(tmp_path / "run")], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    checks = json.loads((tmp_path / "run/checks.json").read_text())["checks"]
    assert checks
    assert all(check["holds"] for check in checks)
    drawn = list((tmp_path / "run/figures").iterdir())
    assert {path.stem for path in drawn} >= FIGURES.get(name, set())
    assert min(path.stat().st_size for path in drawn if path.suffix == ".png") > 5000


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_an_experiment_on_recordings_says_where_they_are(name, tmp_path):
    with pytest.raises(InputError, match=r"needs data=.*(they are|is) from"):
        CliRunner().invoke(
            cli, ["simulate", name, "--out", str(tmp_path / "run")], catch_exceptions=False
        )


def test_a_claim_that_fails_is_an_error_after_the_page_is_written(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("""
from dataclasses import dataclass
from hybridctl.app.experiment import Check, Findings, experiment

@dataclass(frozen=True)
class Config:
    size: float = 3.0

@experiment
def run(config, console):
    return Findings({}, checks=[Check("small", config.size, 2.0), Check("large", 1.0, least=0.0)])
""")
    monkeypatch.chdir(tmp_path)
    call = ["simulate", "mine.py", "--out", "run"]
    with pytest.raises(ClaimError, match="1 of 2 claims do not hold: small"):
        CliRunner().invoke(cli, call, catch_exceptions=False)
    assert "small" in (tmp_path / "run/index.html").read_text()
    call += ["--overwrite", "--set", "size=1"]
    assert CliRunner().invoke(cli, call, catch_exceptions=False).exit_code == 0
