"""`record` and `filter` through the command line: results, files, bad logs in one line."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from hybridctl.app.cli import cli
from hybridctl.app.commands.filter import rank_filters
from hybridctl.app.models import find_model
from hybridctl.base.errors import HybridctlError, SimulationError
from hybridctl.estimation.synthetic import simulate_record
from hybridctl.logs import read_log, write_log

QUICK = {  # settings with few samples on both sides of an impact
    "ball": ["duration=0.6", "rate=50"],
    "block": ["duration=0.3", "rate=50"],
    "cube": ["duration=0.16", "rate=100"],
    "door": ["begin=0.85", "duration=0.2"],
}
KEYS = {
    "steps",
    "events",
    "rejected",
    "mean_nis",
    "nis_dim",
    "log_likelihood",
    "seconds_per_step",
}


def call(*arguments):
    result = CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def settings(model):
    return [part for value in QUICK[model] for part in ("--set", value)]


def complaint(*arguments):
    """The one line that a call ends with."""
    with pytest.raises(HybridctlError) as caught:
        call(*arguments)
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


@pytest.fixture(scope="module")
def ball_log(tmp_path_factory):
    path = tmp_path_factory.mktemp("ball") / "ball.npz"
    call("record", "ball", "--out", path, *settings("ball"))
    return path


@pytest.mark.parametrize(
    ("model", "suffix"), [("ball", "csv"), ("block", "npz"), ("cube", "h5"), ("door", "mcap")]
)
def test_what_is_recorded_is_filtered_without_a_mapping(model, suffix, tmp_path, undrawn):
    log = tmp_path / f"{model}.{suffix}"
    call("record", model, "--out", log, "--seed", 3, *settings(model))
    assert (tmp_path / f"{model}_truth.npz").is_file()
    assert (tmp_path / f"{model}_truth_sampled.csv").is_file()
    out = tmp_path / "out"
    text = call("filter", log, "--model", model, "--out", out, "--mcap")
    assert "Can the estimates be trusted?" in text
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary) >= KEYS
    assert [f["name"] for f in summary["filters"]] == ["salted"]
    assert summary["events"] >= 1
    assert summary["rejected"] == 0
    assert summary["mode_agreement"] >= 0.8
    # one sample of a few m/s at 50 Hz is 2e-2 s; the impact is found far more exactly
    assert summary["event_time_error"] < 5e-3
    with np.load(out / "estimates.npz") as estimates:
        assert len(estimates["state"]) == summary["steps"] == len(estimates["covariance"])
        assert (np.linalg.eigvalsh(estimates["covariance"]) > -1e-12).all()
    for name in ("estimates.csv", "estimates.mcap", "innovations.npz"):
        assert (out / name).stat().st_size > 0


def test_a_log_is_not_overwritten_by_one_that_is_made_unless_that_was_made_too(tmp_path):
    log, given = tmp_path / "log.csv", settings("ball")
    for name in ("log.csv", "truth_sampled.csv"):
        (tmp_path / name).write_text("t,x\n0,1\n")
        for more in ((), ("--overwrite",)):
            text = complaint("record", "ball", "--out", log, *given, *more)
            assert f"{name} " in text
        assert [p.name for p in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()
    call("record", "ball", "--out", log, *given)
    assert "there already; overwrite replaces it" in complaint("record", "ball", "--out", log)
    before = log.read_text()
    call("record", "ball", "--out", log, *given, "--overwrite", "--seed", 5)
    assert log.read_text() != before
    (tmp_path / "truth_sampled.csv").write_text("mine")
    text = complaint("record", "ball", "--out", log, *given, "--overwrite")
    assert "truth_sampled.csv was not made by `record`, or was changed" in text


def test_states_innovations_and_their_size_are_drawn(ball_log, tmp_path):
    call("filter", ball_log, "--model", "ball", "--out", tmp_path / "out")
    drawn = {path.stem: path.stat().st_size for path in (tmp_path / "out/figures").iterdir()}
    assert drawn.keys() == {"states", "innovations", "nis"}
    assert min(drawn.values()) > 5000


def test_filters_are_compared_on_the_same_log(undrawn, tmp_path):
    given = [*settings("ball"), "--set", "particles=40"]
    call("filter", "--model", "ball", "--compare", "--out", tmp_path, *given)
    summary = json.loads((tmp_path / "summary.json").read_text())
    filters = {f["name"]: f for f in summary["filters"]}
    assert set(filters) == {"salted", "reset_jacobian", "no_jump", "unscented", "particle"}
    assert all(set(f) >= KEYS for f in filters.values())
    assert len({f["steps"] for f in filters.values()}) == 1
    assert summary["log_likelihood"] == filters["salted"]["log_likelihood"]
    assert (tmp_path / "log.npz").is_file()
    assert (tmp_path / "estimates_no_jump.npz").is_file()


def test_how_probable_each_mode_is_stands_beside_the_estimates(undrawn, tmp_path):
    """A block lands on both corners within a sample or two: one may be closed alone."""
    changes = ("hypotheses=4", "guard_noise=2e-3", "seed=1", "duration=0.3")
    given = [part for change in changes for part in ("--set", change)]
    call("filter", "--model", "block", "--out", tmp_path / "out", *given)
    with np.load(tmp_path / "out/modes.npz") as modes, np.load(tmp_path / "out/estimates.npz") as e:
        shares, names = modes["probability"], modes["probability_columns"].tolist()
        assert len(names) >= 2
        np.testing.assert_array_equal(modes["time"], e["time"])
        assert (e["probability"] > 0.0).all()
        assert (e["probability"] < 0.999).any()
        assert (shares.sum(axis=1) < 1.0 + 1e-12).all()
        for share, mode, row in zip(e["probability"], e["mode"].tolist(), shares, strict=True):
            assert share == pytest.approx(dict(zip(names, row, strict=True)).get(mode, 1.0))


def test_filters_that_a_log_does_not_tell_apart_are_named():
    """Odds of twenty to one, a log-likelihood of 3, decide."""
    text = rank_filters({"salted": 10.0, "no_jump": 7.5, "particle": 6.9})
    assert text.startswith("this log cannot tell salted, no_jump apart")
    assert rank_filters({"salted": 10.0, "no_jump": 6.0}).startswith("salted explains the log best")


def test_a_baseline_that_fails_does_not_take_the_others_along(undrawn, tmp_path, monkeypatch):
    from hybridctl.app.commands import filter as filter_run

    run = filter_run.run_filter

    def failing(name, *rest):
        if name == "no_jump":
            raise SimulationError("filter 'no_jump' lost its way")
        return run(name, *rest)

    monkeypatch.setattr(filter_run, "run_filter", failing)
    monkeypatch.setattr(filter_run, "FILTERS", ("salted", "no_jump", "reset_jacobian"))
    text = call("filter", "--model", "ball", "--compare", "--out", tmp_path, *settings("ball"))
    assert "failed: filter 'no_jump' lost its way" in text
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [f["name"] for f in summary["filters"]] == ["salted", "reset_jacobian"]
    assert list(summary["failures"]) == ["no_jump"]


def test_wrong_noise_is_said_to_be_wrong(undrawn, ball_log, tmp_path):
    for factor, word in ((0.6, "too confident"), (3.0, "too cautious")):
        noise = f"position_noise={2e-3 * factor}"
        text = call("filter", ball_log, "--model", "ball", "--set", noise, "--out", tmp_path / word)
        assert word in text


def test_outliers_and_missing_rows_are_rejected_and_counted(undrawn, tmp_path):
    given = [*settings("ball"), "--set", "missing=0.1", "--set", "outliers=0.08", "--set", "seed=1"]
    text = call("filter", "--model", "ball", "--out", tmp_path, *given)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert "missing values (NaN)" in text
    assert summary["missing"] >= 1
    assert summary["rejected"] >= 1
    assert summary["nees_per_degree"] < 3.0


def test_the_foot_force_tells_the_mode(undrawn, tmp_path):
    """Encoders so coarse that they do not say when the foot touches."""
    given = [*settings("door"), "--set", "angle_noise=0.01", "--set", "force=true"]
    call("record", "door", "--out", tmp_path / "a.npz", *given)
    log = read_log(tmp_path / "a.npz")
    force = log["force corner_1"].values[:, 0] + log["force corner_2"].values[:, 0]
    assert force[0] < 1.0 < 3.0 < force[-1]
    found = {}
    for name, kept in (("with", log.names), ("without", log.names[:2])):
        path = tmp_path / f"{name}.npz"
        write_log(path, type(log)({n: log[n] for n in kept}, metadata=log.metadata))
        truth = ["--truth", tmp_path / "a_truth.npz", "--out", tmp_path / name]
        call("filter", path, "--model", "door", *truth)
        found[name] = json.loads((tmp_path / name / "summary.json").read_text())
    assert found["with"]["mode_agreement"] >= found["without"]["mode_agreement"]
    assert found["with"]["mode_agreement"] >= 0.9


def test_the_same_seed_gives_the_same_log_and_others_do_not():
    source = find_model("ball")
    model = source.make(source.configure(None, QUICK["ball"]))
    logs = []
    for seed in (1, 1, 2):
        given = source.configure(None, [*QUICK["ball"], f"seed={seed}"])
        logs.append(simulate_record(model, given)[0].channels["position"].values)
    np.testing.assert_array_equal(logs[0], logs[1])
    assert not np.allclose(logs[0], logs[2])


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "LFS"),
        (b"time,a,b\n0,1,2\n0.1,1,2\n", "no channel 'position'"),
        (b"time,position\n0,nan\n0.1,nan\n0.2,nan\n0.3,nan\n", "position"),
        (b"not a table", "bad"),
        (b"PK\x03\x04 broken archive", "bad"),
    ],
)
def test_bad_logs_end_with_one_line(content, word, tmp_path):
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    assert word in complaint("filter", path, "--model", "ball", "--out", tmp_path / "out")


def test_a_truncated_log_ends_with_one_line(ball_log, tmp_path):
    path = tmp_path / "cut.npz"
    path.write_bytes(ball_log.read_bytes()[:600])
    assert "cut.npz" in complaint("filter", path, "--model", "ball", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda t, v: (t, v * np.nan), "no complete row"),
        (lambda t, v: (1e3 * t, v), "are the stamps in seconds"),
        (lambda t, v: (t, v[:, :1]), "has no column"),
        (lambda t, v: (t[:3], v[:3]), "complete rows"),
        (lambda t, v: (0.0 * t, v), "the clock stands still"),
        (lambda t, v: (t[:4], v[:4]), "the log ends"),
    ],
)
def test_logs_that_cannot_be_filtered_say_why(change, word, ball_log, tmp_path):
    log = read_log(ball_log)
    channel = log["position"]
    times, values = change(channel.times, channel.values)
    columns = channel.columns[: values.shape[1]]
    path = tmp_path / "odd.npz"
    odd = type(channel)(times, values, columns, "m")
    write_log(path, type(log)({"position": odd}))
    assert word in complaint("filter", path, "--model", "ball", "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--set", "nonsense=1"], "nonsense"),
        (["--set", "rate=-1"], "rate"),
        (["--set", "gate=2"], "gate"),
        (["--set", "position_noise=0"], "position_noise"),
        (["--set", "duration=0.03"], "duration and rate"),
        (["--mapping", "none.yaml"], "no log is given"),
    ],
)
def test_settings_that_make_no_sense_are_named(arguments, word, tmp_path):
    assert word in complaint("filter", "--model", "ball", "--out", tmp_path, *arguments)


def damaged(rng, times, values):
    """Times and values as a broken recorder may leave them."""
    t, v = times.copy(), values.copy()
    for _ in range(int(rng.integers(1, 4))):
        kind, k = int(rng.integers(6)), int(rng.integers(len(t)))
        if kind == 0:
            v[k] = np.nan
        elif kind == 1:
            t = t[rng.permutation(len(t))]
        elif kind == 2:
            v[k] *= 10.0 ** float(rng.integers(-300, 300))
        elif kind == 3:
            bits = v.view(np.uint64)
            bits[k] ^= np.uint64(1) << np.uint64(rng.integers(64))
        elif kind == 4:
            t[k] = t[k - 1]
        else:
            v *= 1e3
    return t, v


@pytest.mark.parametrize("seed", range(8))
def test_damaged_logs_give_a_result_or_one_line(undrawn, seed, ball_log, tmp_path):
    rng = np.random.default_rng(seed)
    log = read_log(ball_log)
    channel = log["position"]
    times, values = damaged(rng, channel.times[:24], channel.values[:24])
    path = tmp_path / "odd.npz"
    values[~np.isfinite(values)] = np.nan
    odd = type(channel)(times, values, channel.columns, "m")
    write_log(path, type(log)({"position": odd}))
    arguments = ["filter", path, "--model", "ball", "--out", tmp_path / "out"]
    try:
        call(*arguments)
    except HybridctlError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["steps"] > 0


@pytest.mark.parametrize("seed", range(6))
def test_damaged_files_give_a_result_or_one_line(undrawn, seed, ball_log, tmp_path):
    rng = np.random.default_rng(100 + seed)
    content = bytearray(ball_log.read_bytes())
    for k in rng.integers(len(content), size=3):
        content[k] ^= 1 << int(rng.integers(8))
    path = tmp_path / "log.npz"
    path.write_bytes(content)
    try:
        call("filter", path, "--model", "ball", "--out", tmp_path / "out")
    except HybridctlError as error:
        assert "\n" not in str(error)  # noqa: PT017
