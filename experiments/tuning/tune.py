r"""Tuned gains of the door have less error than the hand-set ones, at no higher peak input.

The structure is that of (5.32)-(5.33): a position and a velocity gain of each arm joint, one pair
where a corner is open and one where both are closed. Phantom arcs have the gains of the arc before
the event. The predicted cost (PTTHS) with several weights of the input gives candidates. An
ensemble of perturbed runs chooses among them and searches on. The peak input may not exceed that of
the hand-set gains, neither with spreading nor with the conventional error; if none keeps to that,
the one of least peak is taken. Another ensemble, which the search has not seen, gives the numbers:
the hand-set gains with spreading ("before"), the tuned gains ("after"), and the hand-set gains with
the conventional error ("conventional"). The claim on the peak compares "after" with "before".

The error of a run is the root mean square, from the end of the impact on, of the norm of the state
minus the arc of its event count (see `tuning.ensemble.outcome`), whatever error is fed back.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from hybridctl.experiments.figures import shares_below
from hybridctl.experiments.rrr_door import tracking as rrr_door
from hybridctl.experiments.rrr_door.reference import get_contact_modes
from hybridctl.experiments.rrr_door.runner import DoorTrial, Perturbations, make_statistics_table
from rich.console import Console
from rich.table import Table

from hybridctl import (
    GainSchedule,
    HybridSystem,
    HybridTrajectory,
    Reference,
    jump_derivative,
    linearize,
    tune,
)
from hybridctl.app.experiment import Check, Findings, experiment, open_journal
from hybridctl.app.plots import BASELINE, REFERENCE, TRACKING, Panel, draw_series
from hybridctl.app.report import make_record_table, report_alive, show_progress
from hybridctl.base.checks import Array, check_number
from hybridctl.base.errors import InputError, SimulationError
from hybridctl.base.journal import Journal
from hybridctl.base.run_folder import RunFolder
from hybridctl.base.settings import Count, Meta, Natural, Positive, Settings
from hybridctl.base.workers import crew
from hybridctl.control import Ensemble, EntryGains, Prediction
from hybridctl.control.tuning.ensemble import Statistics
from hybridctl.control.tuning.search import Tuning, Validation
from hybridctl.sensitivity import Linearization

RECORD = "runs.jsonl"
SHAPE = (3, 8)  # of a gain: torques, state
APPROACH_WEIGHT = 1e-3
"""Weight of the error before the impact in the prediction, where 1 is the weight after it."""
LEAST_GAIN = 0.5
"""Gain to which smaller ones are raised where the search begins: zero has no logarithm."""


@dataclass(frozen=True)
class Config(Settings):
    """Settings of the tuning.

    Attributes:
        friction: Whether the corners of the door experiment have friction.
        release: Whether the foot of the door experiment lets go of the door.
        seed: Seed of all ensembles.
        members: Members of the ensemble that gives the numbers.
        training: Members of the ensemble that the search sees.
        validation: Members of the ensemble in which the finalists must keep the peak input.
        finalists: Number of best candidates that are validated.
        input_weights: Weights of the input in the predictions, from soft to stiff gains,
            1/(N m)^2, against errors in rad and rad/s.
        iterations: Greatest number of iterations of each prediction's optimisation.
        evaluations: Evaluations of the search on the ensemble, at least the number of parameters
            and two (14), or 0 for no search; see `tune`.
        step: First changes of the logarithms in that search.
        peak_margin: Share of the peak input of the hand-set gains that is kept free.
        gains_between: Bounds of the gains, N m/rad and N m s/rad.
        tolerance: Tolerance of the simulations.
        workers: Number of processes; 0 for one on each processor.
        dask: Address of the scheduler of a cluster that computes instead.
        perturbations: Perturbations of the members.
        door: Other settings of the door experiment; its friction and release do not count.
    """

    friction: bool = False
    release: bool = False
    seed: Natural = 1
    members: Count = 200
    training: Count = 32
    validation: Count = 100
    finalists: Count = 5
    input_weights: tuple[Positive, ...] = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
    iterations: Count = 60
    evaluations: Natural = 36
    step: Positive = 0.3
    peak_margin: Annotated[float, Meta(ge=0.0, le=0.5)] = 0.1
    gains_between: tuple[Positive, Positive] = (0.1, 100.0)
    tolerance: Positive = 1e-4
    workers: Natural = 0
    dask: str | None = None
    perturbations: Perturbations = field(default_factory=Perturbations)
    door: rrr_door.Config = field(default_factory=rrr_door.Config)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.input_weights:
            raise InputError("input_weights must have one number at least, got none")
        low, high = self.gains_between
        check_number("gains_between[1]", high, above=low)
        if self.door.gains is not None:
            raise InputError("door.gains must be null: tuning begins with the settings' own gains")

    @property
    def experiment(self) -> rrr_door.Config:
        """The settings of the door experiment that is tuned."""
        return replace(self.door, friction=self.friction, release=self.release)


def quick(config: Config) -> Config:
    """Return the settings with few runs, one prediction, and no search around it."""
    return replace(
        config, members=6, training=4, validation=4, input_weights=(1e-4,), iterations=10,
        evaluations=0,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Study:
    """The plant, reference and gains that the tuning works on.

    Attributes:
        config: Settings of the tuning.
        plant: Nominal plant.
        reference: Reference that is tracked.
        structure: Gains by the logarithms of their entries.
        start: Parameters of the hand-set gains, of which those below `LEAST_GAIN` are raised.
        linearization: Linearization of the reference, see `linearize_until_kink`.
    """

    config: Config
    plant: HybridSystem
    reference: Reference
    structure: EntryGains
    start: Array
    linearization: Linearization

    def make_prediction(self, input_weight: float) -> Prediction:
        """Return the predicted cost with a weight of the input, 1/(N m)^2."""
        p = self.config.perturbations
        arcs = len(self.linearization.trajectory.arcs)
        return Prediction(
            self.linearization,
            [APPROACH_WEIGHT * np.eye(8), *[np.eye(8)] * (arcs - 1)],
            input_weight * np.eye(3),
            p.covariance,
            input_covariance=p.input_covariance,
        )


def run(config: Config, folder: RunFolder, console: Console) -> dict[str, Any]:
    """Tune and compare the gains, and save gains.npz.

    Every simulated run is kept in `RECORD`, and looked up there. So a run into the folder of an
    interrupted one completes it, and ends with the same numbers; one into that of a finished one
    simulates nothing. Linearization and predictions are computed anew.

    Args:
        config: Settings of the tuning.
        folder: Folder of the results.
        console: Where tables and progress are printed.

    Returns:
        The content of summary.json.

    Raises:
        InputError: The folder belongs to a run with other settings.
    """
    record = open_journal(folder / RECORD, config)

    @experiment
    def tune_with_record(config: Config, console: Console) -> Findings:
        with report_alive(console, "linearizing"):
            study = prepare_study(config)
        found, results = simulate_ensembles(study, record, console)
        found.gains.save(folder / "gains.npz")
        return make_findings(study, found, results)

    return tune_with_record(config, folder, console)


def simulate_ensembles(
    study: Study, record: Journal, console: Console
) -> tuple[Tuning, dict[str, Statistics]]:
    """Return the tuning, and statistics of runs that it has not seen.

    Args:
        study: Plant, reference and gains to begin with.
        record: Journal in which runs are looked up and kept.
        console: Where progress is printed.

    Returns:
        The tuning, and the statistics "before", "after" and "conventional".
    """
    config = study.config
    trial = DoorTrial(config.experiment, config.perturbations, config.seed, config.tolerance)
    # The most ensembles that are run. The search may end early, and so may the validation.
    hand_set_runs = 2  # for the peak input: with spreading and with the conventional error
    candidates = 1 + len(config.input_weights) + config.evaluations  # the start is one
    total = (hand_set_runs + candidates) * config.training
    total += (hand_set_runs + config.finalists) * config.validation
    total += 3 * config.members  # before, after, conventional
    with (
        crew(config.workers, config.dask) as workers,
        show_progress(console, 0.0, float(total)) as begin,
    ):
        tick, done = begin("simulated runs"), itertools.count(1)

        def make_ensemble(first: int, size: int) -> Ensemble:
            members = range(first, first + size)
            return Ensemble(
                trial, members, workers.parallel_executor, record, lambda: tick(float(next(done)))
            )

        # Perturbations of a member depend on the seed and its number: no ensemble shares a member.
        judged = make_ensemble(0, config.members)
        hand_set = rrr_door.schedule(config.experiment, study.reference)
        seen = make_ensemble(config.members, config.training)
        unseen = make_ensemble(config.members + config.training, config.validation)
        found = search_gains(study, hand_set, seen, unseen)
        results = {
            "before": judged(hand_set),
            "after": judged(found.gains),
            "conventional": judged(hand_set, "conventional"),
        }
    return found, results


def make_findings(study: Study, found: Tuning, results: Mapping[str, Statistics]) -> Findings:
    """Return the findings of a tuning: summary, tables, claims and figures.

    Args:
        study: Plant, reference and gains to begin with.
        found: The tuning.
        results: Statistics of unseen runs.
    """
    summary = summarize(study, found, results)

    before, after = results["before"], results["after"]
    return Findings(
        summary,
        make_tables(summary),
        [
            Check("mean error after tuning / before", after.mean_error / before.mean_error, 0.9),
            Check("peak input after tuning / before", after.peak_input / before.peak_input, 1.0),
        ],
        draw=lambda to: draw_distribution(to / "figures/distribution.png", results),
    )


def prepare_study(config: Config) -> Study:
    """Return the reference, its linearization, and the gains to begin with.

    There are two sets of gains: 0 where a corner is open, 1 where both are closed.
    """
    door = config.experiment
    _, plant, reference = rrr_door.scene(door)
    sets = tuple(0 if "open" in get_contact_modes(arc.mode) else 1 for arc in reference.arcs)
    # A key begins with the index of the event, which is that of the arc before it.
    phantoms = {key: sets[key[0]] for key in reference.phantoms}
    structure = EntryGains.diagonal(SHAPE, sets, phantoms)
    start = structure.parameters(rrr_door.make_gain_matrices(door), least=LEAST_GAIN)
    free = linearize_until_kink(plant, reference)
    return Study(config, plant, reference, structure, start, free)


def linearize_until_kink(plant: HybridSystem, reference: Reference) -> Linearization:
    """Return the linearization of the reference up to the first event without a derivative.

    A release with equal shares of the corners' forces has none: where corner 2 is let go first,
    the force of corner 1 grows again. Predictions then end at this event. Gains of later arcs count
    in them only as far as earlier arcs have the same set; simulated runs judge all.
    """
    nominal = reference.nominal
    for k, event in enumerate(nominal.events):
        try:
            jump_derivative(plant, event)
        except SimulationError:
            nominal = HybridTrajectory(nominal.arcs[: k + 1], nominal.events[:k])
            break
    return linearize(plant, nominal)


def search_gains(study: Study, hand_set: GainSchedule, seen: Ensemble, unseen: Ensemble) -> Tuning:
    """Return the tuned gains, with a peak input below that of the hand-set ones by the margin.

    Args:
        study: Plant, reference and gains to begin with.
        hand_set: Gains of the experiment. Their peak input is the lesser one with spreading and
            with the conventional error.
        seen: Ensemble of the search.
        unseen: Ensemble in which the finalists must keep the peak input.
    """
    config = study.config
    low, high = np.log(config.gains_between)
    peak = [
        (1.0 - config.peak_margin)
        * min(runs(hand_set).peak_input, runs(hand_set, "conventional").peak_input)
        for runs in (seen, unseen)
    ]
    return tune(
        study.structure,
        study.start,
        predictions=[study.make_prediction(weight) for weight in config.input_weights],
        ensemble=seen,
        peak_input=peak[0],
        evaluations=config.evaluations,
        step=config.step,
        bounds=(float(low), float(high)),
        iterations=config.iterations,
        validation=Validation(unseen, peak[1], config.finalists),
    )


def summarize(study: Study, found: Tuning, results: Mapping[str, Statistics]) -> dict[str, Any]:
    """Return the content of summary.json: numbers of unseen runs, gains, and all candidates.

    Args:
        study: Plant, reference and gains to begin with.
        found: The tuning.
        results: Statistics of unseen runs.
    """
    config = study.config
    gains = {"before": rrr_door.schedule(config.experiment, study.reference), "after": found.gains}
    summary: dict[str, Any] = {name: found.record() for name, found in results.items()}
    summary |= {
        "seed": config.seed,
        "members": config.members,
        "perturbations": asdict(config.perturbations),
        "friction": config.friction,
        "release": config.release,
        "gains": {
            name: [get_diagonals(curve.values[0]) for curve in schedule.arcs]
            for name, schedule in gains.items()
        },
        "chosen": found.best.origin,
        "predicted_until": study.linearization.trajectory.end,
        "candidates": [
            {"origin": c.origin, **c.statistics.record()}
            for c in found.candidates
            if c.statistics is not None
        ],
    }
    return summary


def get_diagonals(gain: Array) -> dict[str, Array]:
    """Return the position and velocity gains (3,) of the arm joints."""
    return {"position": np.diag(gain[:, :3]), "velocity": np.diag(gain[:, 4:7])}


def make_tables(summary: Mapping[str, Any]) -> list[Table | str]:
    """Return the tables of errors before and after, and of the gains."""
    labels = {
        "before": "hand-set gains, spreading",
        "after": "tuned gains, spreading",
        "conventional": "hand-set gains, conventional error",
    }
    runs = {label: summary[name] for name, label in labels.items()}
    gains = [
        {"name": f"{name}, arc {k}", **gain}
        for name, arcs in summary["gains"].items()
        for k, gain in enumerate(arcs)
    ]
    title = f"Post-impact errors [rad, rad/s] of {summary['members']} perturbed runs"
    units = {"position [N m/rad]": "{position:.4g}", "velocity [N m s/rad]": "{velocity:.4g}"}
    return [
        make_statistics_table(title, runs),
        make_record_table("Gains", gains, {"": "{name}", **units}),
    ]


COLORS = {"before": REFERENCE, "after": TRACKING, "conventional": BASELINE}


def draw_distribution(path: Path, results: Mapping[str, Statistics]) -> None:
    """Draw the share of runs with an error up to each value."""
    lines = [shares_below(found.errors, n, COLORS[n]) for n, found in results.items()]
    title, along = "Errors of perturbed runs; one that failed counts as 10", "post-impact error"
    panel = Panel("share of runs", lines)
    draw_series(path, [[panel]], title=title, xlabel=f"{along} [rad, rad/s]", xlog=True)
