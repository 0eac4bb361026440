"""What is no argument of a public function is refused by name, where it is given."""

import casadi as ca
import numpy as np
import pytest

import hybridctl as hc
from hybridctl.base.errors import InputError
from hybridctl.control.extension import extend_by_rule
from hybridctl.estimation.measurement import coordinates
from hybridctl.estimation.record import Record
from hybridctl.hybrid.policy import DisturbedPolicy
from hybridctl.logs import read_tum
from hybridctl.mechanics import Robot
from hybridctl.sensitivity.parameters import parameter_sensitivity

I1, I2 = np.eye(1), np.eye(2)


class Scene:
    """A ball with an input, its run, and what is made of it."""

    def __init__(self):
        x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
        self.air = hc.symbolic.SymbolicMode("air", x, [x[1], u - 9.81], u)
        self.bounce = hc.symbolic.SymbolicTransition(
            "air", "floor", x[0], "air", [x[0], -0.8 * x[1]]
        )
        self.ball = hc.symbolic.hybrid_system([self.air], [self.bounce])
        self.run = hc.simulate(self.ball, "air", [1.0, 0.0], (0.0, 0.8))
        self.lin = hc.linearize(self.ball, self.run)
        self.reference = hc.extend(self.ball, self.run, before=0.1, after=0.1)
        self.gains = [np.zeros((1, 2))] * 2
        self.height = coordinates("height", [0], 1e-4 * I1)
        self.filter = hc.SaltedKalmanFilter(self.ball, I2, self.height)
        self.estimate = hc.estimation.Estimate("air", 0.0, np.array([1.0, 0.0]), I2)
        self.series = hc.Series([0.1], [0.9])

    def extended(self, **options):
        return hc.extend(self.ball, self.run, **{"before": 0.1, "after": 0.1, **options})

    def filtered(self, measurement, **options):
        return hc.SaltedKalmanFilter(self.ball, I2, measurement, **options)

    def measured(self, value):
        h = hc.Measurement("height", lambda *_: value, lambda *_: np.ones((1, 2)), I1)
        return self.filtered(h).update(self.estimate, "height", 1.0)


@pytest.fixture(scope="module")
def scene():
    return Scene()


CASES = {
    "lin: trajectory": (lambda s: hc.linearize(s.ball, None), "trajectory must be a HybridTraj"),
    "lin: system": (lambda s: hc.linearize(None, s.run), "system must be a HybridSystem, got None"),
    "lin: text": (lambda s: s.lin("ab"), "dx0 must be an array of numbers"),
    "lin: size": (lambda s: s.lin([1.0]), "dx0 must be of shape"),
    "lin: complex": (lambda s: s.lin([1j, 0.0]), "dx0 must be an array of numbers"),
    "lin: change": (lambda s: s.lin([0.0, 0.0], 3.0), "input_change must be a function, got 3.0"),
    "lin: change None": (lambda s: s.lin([0.0, 0.0], lambda t: None), r"input_change\(0.0\)"),
    "lin: change size": (lambda s: s.lin([0.0, 0.0], lambda t: I2), r"input_change\(0.0\) must ha"),
    "lin: gains": (lambda s: s.lin.closed_loop(None), "gains must be a list, got None"),
    "event": (lambda s: hc.jump_derivative(s.ball, s.run), "event must be a Event"),
    "event None": (lambda s: hc.saltation_matrix(s.ball, None), "event must be a Event, got None"),
    "parameters": (
        lambda s: parameter_sensitivity(s.ball, s.run, None),
        "derivatives must be",
    ),
    "lqr": (lambda s: hc.hybrid_lqr(None, I2, I1, I2), "lin must be a Linearization"),
    "lqr: final": (lambda s: hc.hybrid_lqr(s.lin, I2, I1, None), "final_weight must be an array"),
    "extend: trajectory": (lambda s: hc.extend(s.ball, 3, before=0, after=0), "trajectory must be"),
    "extend: system": (lambda s: hc.extend(None, s.run, before=0, after=0), "system must be a Hyb"),
    "extend: rtol": (lambda s: s.extended(rtol=-1.0), "rtol must be greater than 0"),
    "extend: atol": (lambda s: s.extended(atol="a"), "atol must be a number, got 'a'"),
    "extend: before": (lambda s: s.extended(before="a"), r"before\[0\] must be a number"),
    "extend: feedforward": (lambda s: s.extended(feedforward=3), "feedforward must be a list"),
    "extend: no law": (
        lambda s: s.extended(feedforward=[1, 2]),
        r"feedforward\[0\] must be a func",
    ),
    "extend: text": (lambda s: s.extended(feedforward=[str, str]), r"feedforward\[0\]\(0.0\) must"),
    "by rule": (
        lambda s: extend_by_rule(None, I2),
        "linearization must be a Linearization",
    ),
    "feasibility": (lambda s: hc.feasibility(s.ball, None), "reference must be a Reference"),
    "spreading": (lambda s: hc.ReferenceSpreading(None, s.gains), "reference must be a Reference"),
    "gains": (
        lambda s: hc.ReferenceSpreading(s.reference, None),
        "gains must be a list, got None",
    ),
    "limits": (
        lambda s: hc.ReferenceSpreading(s.reference, s.gains, limits="a"),
        "limits must be an array of numbers",
    ),
    "detection": (
        lambda s: hc.control.DetectedPolicy(hc.ReferenceSpreading(s.reference, s.gains), 0.01),
        "detection must be a Detection, got 0.01",
    ),
    "clock": (lambda s: hc.control.ClockTracking(None, s.gains), "reference must be a Reference"),
    "disturbed": (
        lambda s: DisturbedPolicy(None, print),
        "policy must be a Policy, got None",
    ),
    "filter: system": (lambda s: hc.SaltedKalmanFilter(None, I2, s.height), "system must be a Hyb"),
    "filter: none": (lambda s: s.filtered(None), "measurement must be a list, got None"),
    "filter: number": (lambda s: s.filtered([3]), r"measurement\[0\] must be a Measurement, got 3"),
    "filter: signal": (lambda s: s.filtered(s.height, signals=[3]), r"signals\[0\] must be a Cont"),
    "filter: estimate": (lambda s: s.filter.predict(None, 1.0), "estimate must be a Estimate"),
    "filter: text": (
        lambda s: s.filter.update(s.estimate, "height", "a"),
        "value of 'height' must",
    ),
    "filter: None": (
        lambda s: s.filter.update(s.estimate, "height", None),
        "value of 'height' must be an arr",
    ),
    "filter: complex": (
        lambda s: s.filter.update(s.estimate, "height", 1j),
        "value of 'height' must",
    ),
    "filter: inf": (
        lambda s: s.filter.update(s.estimate, "height", np.inf),
        "must not be infinite",
    ),
    "filter: record": (
        lambda s: s.filter.run({"height": 1}, s.estimate),
        "record must be a Record",
    ),
    "filter: start": (
        lambda s: s.filter.run(Record({"height": s.series}), None),
        "estimate must",
    ),
    "measurement": (lambda s: hc.Measurement("h", 3, print, I1), "value of 'h' must be a function"),
    "measurement: text": (lambda s: s.measured("z"), "measurement 'height' must return numbers"),
    "measurement: None": (lambda s: s.measured(None), "measurement 'height' must return numbers"),
    "measurement: indices": (lambda s: coordinates("h", 0, I1), "indices must be a list"),
    "noise": (lambda s: hc.estimation.EventNoise(3), "function must be a function, got 3"),
    "series: text": (lambda s: hc.Series([0.0], ["1"]), "values must be an array of numbers"),
    "series: masked": (
        lambda s: hc.Series([0.0, 1.0], np.ma.array([1.0, 2.0], mask=[0, 1])),
        "values must be an array of numbers",
    ),
    "record": (lambda s: Record([s.series]), "channels must map names to Series"),
    "record: series": (
        lambda s: Record({"p": [1, 2]}),
        "channel 'p' of a record must be a Ser",
    ),
    "record: inputs": (
        lambda s: Record({"p": s.series}, 3),
        "channel 'inputs' of a record",
    ),
    "log": (lambda s: hc.Log([3]), "channels must map names to Series"),
    "channel": (lambda s: hc.Log({"x": 3}), "channel 'x' must be a Series, got 3"),
    "write": (lambda s: hc.write_log("never.csv", None), "log must be a Log, got None"),
    "robot": (lambda s: Robot(None), "model must be a Model, got None"),
    "symbolic": (lambda s: hc.symbolic.hybrid_system(s.air, [s.bounce]), "modes must be a list"),
    "symbolic: edges": (lambda s: hc.symbolic.hybrid_system([s.air], None), "transitions must be"),
    "symbolic: part": (
        lambda s: hc.symbolic.hybrid_system([3], []),
        r"modes\[0\] must be a SymbolicMode",
    ),
    "progress": (
        lambda s: hc.simulate(s.ball, "air", [1.0, 0.0], (0.0, 1.0), progress=3),
        "progress must be True or a function, got 3",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_argument_is_refused(case, scene):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message):
        call(scene)


def test_a_disturbance_that_is_no_input_is_refused(scene):
    policy = DisturbedPolicy(hc.ReferenceSpreading(scene.reference, scene.gains), lambda t, x: "a")
    with pytest.raises(InputError, match=r"disturbance at t = 0.0 must be an array of numbers"):
        hc.simulate(scene.ball, "air", [1.0, 0.0], (0.0, 1.0), policy)


@pytest.mark.parametrize("path", [3, 3.5, b"folder", ["folder"]])
def test_a_path_that_is_none_is_refused_by_name(path, scene, tmp_path, monkeypatch):
    """A number would be taken for an open file, a list would be Python's own TypeError."""
    monkeypatch.chdir(tmp_path)
    run, gains = scene.run, hc.GainSchedule.constant([np.zeros((1, 2))])
    for call in (
        lambda: run.save(path),
        lambda: run.plot(path),
        lambda: hc.page(run, path=path),
        lambda: hc.HybridTrajectory.load(path),
        lambda: gains.save(path),
        lambda: hc.GainSchedule.load(path),
        lambda: hc.sweep(abs, [{"x": 1.0}], out=path),
        lambda: hc.read_log(path),
        lambda: hc.write_log(path, None),
        lambda: read_tum(path),
    ):
        with pytest.raises(InputError, match="must be a path"):
            call()
    assert not list(tmp_path.iterdir())
