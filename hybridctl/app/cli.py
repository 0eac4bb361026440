"""The command line: parse, call, print. What it runs is imported when it is run."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hybridctl.app.commands.options import (
    check_full,
    format_settings,
    live_options,
    read_switches,
    reference_options,
    reject_options,
)
from hybridctl.app.commands.run_options import (
    CONFIG,
    OVERWRITE,
    PATH,
    SET,
    SHOW,
    RunOptions,
    add_run_options,
    echo_settings,
)
from hybridctl.app.robot_list import is_robot, list_robot_files
from hybridctl.base import plugins
from hybridctl.base.errors import HybridctlError

if TYPE_CHECKING:
    from rich.console import Console

    from hybridctl.base.run_folder import RunFolder

_SEED = click.option("--seed", type=int, help="Random seed; the same as `--set seed=SEED`.")
_MAPPING = click.option("--mapping", type=PATH, help="YAML file that maps fields to channels.")
_SEGMENT = click.option(
    "--segment", type=int, help="Number of the recording, in a file of several (see --mapping)."
)

_ROBOT = click.option(
    "--robot", metavar="ROBOT.yaml", help="The robot of the run, where its folder does not have it."
)
_SWITCHED = {"ignore_unknown_options": True, "allow_extra_args": True}
_WORKERS = click.option(
    "--workers", type=int, help="Number of processes; 0 for one on each processor."
)
_DASK = click.option("--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster that computes.")
_MODEL = click.option(
    "--model",
    required=True,
    help="A name that `list` shows, FILE.py:FUNCTION (code, which runs), or ROBOT.yaml (data).",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, wanted: _print_versions(context) if wanted else None,
    help="Print the version, and the versions of the libraries beneath.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="What the library's log shows, on standard error.",
)
def cli(log_level: str) -> None:
    """Simulation, control and estimation for robots that hit, stick and slip."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("hybridctl").setLevel(log_level.upper())


@cli.command("list")
def list_experiments() -> None:
    """List the experiments, the models for filters, and legged robots with the folder of files."""
    experiments = plugins.list_plugins("experiments")
    width = max(map(len, experiments), default=0)
    for name in experiments:
        click.echo(f"{name:<{width}}  {plugins.load_plugin('experiments', name).SUMMARY}")
    click.echo(f"models for filters: {', '.join(plugins.list_plugins('models'))}")
    robots = list_robot_files()
    if robots:
        click.echo(f"legged robots for filters: {', '.join(robots)}")
        click.echo(f"  (files in {next(iter(robots.values())).parent})")


@cli.command(context_settings=_SWITCHED)
@click.argument("experiment", metavar="EXPERIMENT")
@add_run_options
@click.option(
    "--gains", type=click.Path(), help="File of gains by `tune`, in place of those in the settings."
)
@click.option("--quick", is_flag=True, help="Quick run: looser tolerances and fewer cases.")
@click.option("--full", is_flag=True, help="Run the whole study, where the default is a part.")
@_WORKERS
@_DASK
@click.pass_context
def simulate(
    context: click.Context,
    run_options: RunOptions,
    experiment: str,
    gains: str | None,
    quick: bool,
    full: bool,
    workers: int | None,
    dask: str | None,
) -> None:
    """Simulate an experiment or a robot; print tables, leave a folder with data and figures.

    EXPERIMENT is a name that `list` shows, a Python file (code, which runs) with Config, quick
    and run, or the YAML file of a robot. A setting that is true or false can be switched on by its
    name, as in `simulate rrr-door --friction --release`. What --set and options give wins over
    --quick and --full, and these win over --config. Ends with exit code 1 where a claim does not
    hold.

    \b
    A robot is dropped in a posture that its motors hold, and may be pushed:
      urdf: leg.urdf
      root: sagittal                  # fixed (default), floating, sagittal or euler
      contacts:
        toe: {frame: shank, offset: [0, 0, -0.25], friction: 0.8}
      motion: {posture: {hip: -0.6, knee: 1.2}, height: 0.1, duration: 2,
               push: {body: trunk, force: [20, 0, 0], start: 1, duration: 0.1}}

    Settings are those of `motion`; `simulate ROBOT.yaml --settings` prints all. The files of legged
    robots that `list` shows are robots too: `simulate go2 --set height=0.2`.
    """  # noqa: D301 - click reads the backspace: the paragraph keeps its lines
    options = {"gains": gains, "workers": workers, "dask": dask, "full": full or None}
    if is_robot(experiment):
        reject_options(experiment, options, context.args)
        _simulate_robot(run_options, experiment, quick)
        return
    from hybridctl.app.python_files import load_experiment

    module = load_experiment("experiments", experiment)
    if full:
        check_full(module, experiment)
    own = format_settings(module.Config, experiment, gains=gains, workers=workers, dask=dask)
    switched = read_switches(module.Config, context.args)
    found = run_options.configure(module, quick, *own, *switched, full=full)
    if found is not None:
        run_options.run(
            Path(experiment).stem,
            partial(module.run, found),
            getattr(module, "SUMMARY", ""),
            module.__doc__,
            getattr(module, "RECORD", None),
        )


def _simulate_robot(run_options: RunOptions, robot: str, quick: bool) -> None:
    """Simulate a robot, or print the settings of its run if they were asked for.

    Args:
        run_options: The options that all runs have.
        robot: Path of its YAML file, or its name.
        quick: Whether tolerances are looser.
    """
    from hybridctl.app.commands.simulate_robot import RobotRequest, prepare_run

    request = RobotRequest(robot, run_options.config, run_options.settings, quick)
    if run_options.show:
        echo_settings(request.load()[1])
        return
    run_options.run(*prepare_run(request))


@cli.command("view")
@click.argument("run", type=PATH, metavar="RUN")
@_ROBOT
@click.option("--out", type=PATH, help="HTML file to write.")
@click.option("--no-open", is_flag=True, help="Write the page and print its path only.")
def view_run(run: Path, robot: str | None, out: Path | None, no_open: bool) -> None:
    """Show the motion of a run in the browser.

    RUN is the folder of a run, or a file that `HybridTrajectory.save` has written. The folder that
    `simulate ROBOT.yaml` leaves knows its robot; for others --robot names its YAML file.
    """
    from hybridctl.app.commands.stored_run import show_run

    show_run(run, robot, out, opens=not no_open)


@cli.command("plot")
@click.argument("run", type=PATH, metavar="RUN")
@_ROBOT
@click.option("--out", type=PATH, help="Folder for the figures; plots beside or in RUN if none.")
def plot_run(run: Path, robot: str | None, out: Path | None) -> None:
    """Draw the standard figures of a run as PNG and SVG: states, inputs, forces, contacts, energy.

    RUN is as for `view`. Without its robot a run has its states and inputs alone.
    """
    from hybridctl.app.commands.stored_run import plot_runs

    plot_runs(run, robot, out)


@cli.command()
@click.argument(
    "experiment", type=click.Choice(plugins.list_plugins("validations")), metavar="EXPERIMENT"
)
@add_run_options
@_SEED
@click.option("--quick", is_flag=True, help="One direction, fewer sizes, looser tolerances.")
def validate(run_options: RunOptions, experiment: str, seed: int | None, quick: bool) -> None:
    """Compare the linearization of an experiment with simulations near its trajectory.

    The remainder of a linearization that is right shrinks as the square of the perturbation.
    EXPERIMENT is rrr-door or biped.
    """
    from hybridctl.experiments.linearization import validate as module

    found = run_options.configure(
        module, quick, *format_settings(module.Config, experiment, seed=seed)
    )
    if found is not None:
        find = partial(module.run, experiment, found)
        summary = "a linearization beside simulations"
        run_options.run(f"validate-{experiment}", find, summary, module.__doc__)


@cli.command(context_settings=_SWITCHED)
@click.argument("experiment", metavar="EXPERIMENT")
@add_run_options
@_SEED
@_WORKERS
@_DASK
@click.option("--quick", is_flag=True, help="Quick run: few simulations and no search.")
@click.pass_context
def tune(
    context: click.Context,
    run_options: RunOptions,
    experiment: str,
    seed: int | None,
    workers: int | None,
    dask: str | None,
    quick: bool,
) -> None:
    """Tune the feedback gains of an experiment, and compare them over perturbed runs.

    Leaves gains.npz for `simulate EXPERIMENT --gains FILE`. EXPERIMENT is rrr-door, whose
    variants --friction and --release choose, or a Python file with Config, quick, run and RECORD.
    """
    from hybridctl.app.python_files import load_experiment

    module = load_experiment("tunings", experiment)
    own = format_settings(module.Config, experiment, seed=seed, workers=workers, dask=dask)
    found = run_options.configure(module, quick, *own, *read_switches(module.Config, context.args))
    if found is not None:
        name, find = f"tune-{Path(experiment).stem}", partial(module.run, found)
        run_options.run(name, find, "gains before and after tuning", module.__doc__, module.RECORD)


@cli.command()
@click.argument("experiment", metavar="EXPERIMENT")
@add_run_options
@click.option(
    "--vary",
    multiple=True,
    metavar="KEY=a:b:n",
    help="A setting with n values from a to b, or KEY=v,w,...; may be repeated.",
)
@click.option("--seeds", type=int, help="Run each combination with that many seeds.")
@_WORKERS
@_DASK
@click.option("--quick", is_flag=True, help="The quick settings of the experiment.")
def sweep(
    run_options: RunOptions,
    experiment: str,
    vary: tuple[str, ...],
    seeds: int | None,
    workers: int | None,
    dask: str | None,
    quick: bool,
) -> None:
    """Run an experiment over settings and seeds; leave one table of its results.

    The numbers do not depend on how many workers there are. A worker that dies costs its unit
    only. Nested settings have dotted names, as in `--vary robot.hinge_damping=10:20:5`.
    """
    from hybridctl.app.experiment import digest_experiment
    from hybridctl.app.python_files import load_experiment
    from hybridctl.app.sweep import PLAN, plan_units, run_units, write_sweep
    from hybridctl.app.sweep_result import Sweep
    from hybridctl.base.workers import crew

    base = run_options.configure(load_experiment("experiments", experiment), quick)
    if base is None:
        return
    units = plan_units(experiment, base, vary, seeds)

    def find(folder: RunFolder, console: Console) -> None:
        folder.write_configuration(base, seed=None)
        code = digest_experiment(base, [unit.settings for unit in units])
        with crew(1 if workers is None else workers, dask) as found:
            rows = run_units(units, folder, found, click.echo, code=code)
        write_sweep(Sweep(tuple(rows), tuple(units[0].varied)), folder, console)

    name = f"sweep-{Path(experiment).stem}"
    run_options.run(name, find, f"{len(units)} runs of {experiment}", None, PLAN)


@cli.command()
@click.argument("log", type=PATH, metavar="LOG")
@_MAPPING
@_SEGMENT
@click.option(
    "--write-mapping", "draft", type=PATH, help="Write a mapping of the log, for --mapping."
)
def info(log: Path, mapping: Path | None, segment: int | None, draft: Path | None) -> None:
    """Show what is in a log: fields, channels, rates, units, gaps, and what is odd about it.

    LOG is a file of CSV, NPZ, HDF5, a ROS 1 bag or MCAP, or the folder of a ROS 2 bag.
    """
    from hybridctl.app.page.transcript import Transcript
    from hybridctl.logs.info import print_info, write_mapping

    print_info(log, Transcript(), mapping, segment)
    if draft is not None:
        write_mapping(log, draft)
        click.echo(f"a mapping to edit is in {draft}")


@cli.command("record")
@click.argument("model", metavar="MODEL")
@click.option(
    "--out", type=PATH, help="Log to write (.npz, .csv, .h5 or .mcap), or a folder for log.npz."
)
@OVERWRITE
@CONFIG
@SET
@click.option("--seed", type=int, help="Seed of start and noise, as `--set seed=SEED`.")
@SHOW
def record_log(
    model: str,
    out: Path | None,
    overwrite: bool,
    config: Path | None,
    settings: tuple[str, ...],
    seed: int | None,
    show: bool,
) -> None:
    """Make a synthetic log of a model, and leave the truth beside it.

    MODEL is as in `filter --model`. Rate, duration and noise are settings.
    """
    from hybridctl.app.commands import record
    from hybridctl.app.models import find_model, find_source
    from hybridctl.app.page.transcript import Transcript
    from hybridctl.base.run_folder import RunFolder

    seeds = () if seed is None else (f"seed={seed}",)
    if show:
        echo_settings(find_source(model).configure(config, (*settings, *seeds)))
        return
    source = find_model(model)
    configuration = source.configure(config, (*settings, *seeds))
    console = Transcript()
    if out is None:
        with RunFolder(f"record-{source.name}", kind="record") as folder:
            record.record_log(source, configuration, folder.path, console)
    else:
        record.record_log(source, configuration, out, console, overwrite=overwrite)


@cli.command("filter")
@click.argument("log", type=PATH, required=False, metavar="[LOG]")
@_MODEL
@add_run_options
@_MAPPING
@_SEGMENT
@click.option("--truth", type=PATH, help="The truth that `record` has left.")
@click.option("--compare", is_flag=True, help="Run the other filters too, and compare them.")
@click.option("--mcap", is_flag=True, help="Write the estimates as MCAP too.")
@reference_options
def filter_log(run_options: RunOptions, log: Path | None, model: str, **options: Any) -> None:
    """Run a salted Kalman filter on a log, and say whether the result can be trusted.

    Without LOG, a synthetic one is recorded first. For a legged base --compare runs the invariant
    filter of the literature and odometry of loaded feet beside it, and estimates.tum can be
    compared by other tools.
    """
    from hybridctl.app.commands.filter import FilterRequest, prepare_run

    if not run_options.print_settings_if_asked(model):
        given = run_options.config, run_options.settings
        run_options.run(*prepare_run(FilterRequest(model, log, *given, **options)))


@cli.command("live")
@_MODEL
@CONFIG
@SET
@SHOW
@live_options
def live_base(
    model: str, config: Path | None, settings: tuple[str, ...], show: bool, **options: Any
) -> None:
    """Estimate the base of a legged robot live: samples in as JSON lines or MCAP, odometry out.

    A line in, or a message of MCAP encoded as JSON, has `time` and the channels of the robot's
    file. ROS messages in MCAP are read by the mapping of its logs. A line out has position,
    orientation and velocity of the root with their covariance, contacts and flags.
    """
    from hybridctl.app.commands.live import answer_live, find_base_model

    if show:
        from hybridctl.app.models import find_source

        echo_settings(find_source(model).configure(config, settings))
        return
    answer_live(find_base_model(model, config, settings), **options)


@cli.command("identify")
@click.argument("logs", type=PATH, nargs=-1, required=True, metavar="LOG [LOG...]")
@_MODEL
@add_run_options
@click.option("--parameters", required=True, help="Model settings to estimate: NAME,NAME,...")
@click.option("--bounds", multiple=True, metavar="NAME=LOW:HIGH", help="Bounds; may be repeated.")
@_MAPPING
@click.option("--segments", help="Recordings to use, of a file with several: 0-99, or 0,3,7.")
@click.option(
    "--held-out", multiple=True, type=PATH, help="Log to judge the result on; may be repeated."
)
@click.option("--held-out-segments", help="Recordings to judge on: of held-out logs, else of LOG.")
@click.option("--until", type=float, help="Use only the first part of each log, this long in s.")
@click.option("--profile", "profiles", default="", help="Likelihood profiles of NAME,NAME,...")
@click.option(
    "--max-evaluations",
    type=int,
    default=100,
    show_default=True,
    help="Largest number of evaluations of the likelihood.",
)
@_WORKERS
@_DASK
def identify_parameters(
    run_options: RunOptions,
    logs: tuple[Path, ...],
    model: str,
    parameters: str,
    profiles: str,
    workers: int | None,
    **options: Any,
) -> None:
    """Find parameters of a model by the likelihood of its filter on logs, with standard errors.

    Parameters are settings of the model (--settings shows them) and start at their values, which
    --set changes.
    """
    from hybridctl.app.commands.identify import IdentifyRequest, prepare_run

    if run_options.print_settings_if_asked(model):
        return
    names, shown = (tuple(filter(None, text.split(","))) for text in (parameters, profiles))
    options |= {"config": run_options.config, "assignments": run_options.settings}
    options["workers"] = 1 if workers is None else workers
    run_options.run(*prepare_run(IdentifyRequest(logs, model, names, profiles=shown, **options)))


def _print_versions(context: click.Context) -> None:
    """Print the version, those of the libraries beneath, and the contact kernel, and end."""
    from hybridctl.base.function_cache import find_compiler
    from hybridctl.base.run_folder import collect_versions
    from hybridctl.mechanics.kernel.extension import describe_kernel

    found = collect_versions()
    click.echo(f"hybridctl {found.pop('hybridctl')}")
    click.echo("\n".join(f"  {name} {version}" for name, version in found.items()))
    click.echo(f"  {describe_kernel(find_compiler())}")
    context.exit()


def main() -> None:
    """Run the command line.

    An error that is raised on purpose becomes one line and exit code 1. Ctrl-C ends with exit code
    130, SIGTERM with 143.
    """
    from hybridctl.app.commands.signals import stop_on_signals
    from hybridctl.app.heartbeat import heartbeat

    # Matrices are small: one BLAS thread is fastest.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        # `live` waits for samples, for as long as none come.
        command = next((word for word in sys.argv[1:] if word in cli.commands), "live")
        with stop_on_signals(), nullcontext() if command == "live" else heartbeat.run(command):
            cli(prog_name="hybridctl")
    except HybridctlError as error:
        from hybridctl.base.checks import make_printable

        click.echo(f"error: {make_printable(str(error))}", err=True)
        sys.exit(1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        click.echo(
            f"error: {error.strerror or str(error) or type(error).__name__}{where}", err=True
        )
        sys.exit(1)
