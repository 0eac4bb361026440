"""The command line: parse, call, print. What it runs is imported when it is run."""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from hybridctl import plugins
from hybridctl.commands.options import asked, print_versions
from hybridctl.errors import HybridctlError

_OUT = click.option("--out", type=click.Path(path_type=Path), help="Folder for the results.")
_OVERWRITE = click.option("--overwrite", is_flag=True, help="Replace an earlier run in the folder.")
_CONFIG = click.option("--config", type=click.Path(path_type=Path), help="JSON file with settings.")
_SET = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="One setting; may be repeated."
)
_OPEN = click.option("--open", "look", is_flag=True, help="Show the page of the run in a browser.")
_SHOW = click.option("--settings", "show", is_flag=True, help="Print the settings and stop.")
_MAPPING = click.option(
    "--mapping", type=click.Path(path_type=Path), help="YAML file: fields to channels."
)
_SEGMENT = click.option(
    "--segment", type=int, help="Which of several recordings in a row (see --mapping)."
)

_WORKERS = click.option("--workers", type=int, help="Processes; 0 for one on each processor.")
_DASK = click.option("--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster to work on.")
_MODEL = click.option(
    "--model", required=True, help="A name that `list` shows, FILE.py:FUNCTION, or ROBOT.yaml."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, wanted: print_versions(context) if wanted else None,
    help="Print the version, and those of the libraries beneath.",
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
    """List the experiments, and the models for filters."""
    experiments = plugins.names("experiments")
    width = max(map(len, experiments), default=0)
    for name in experiments:
        click.echo(f"{name:<{width}}  {plugins.load('experiments', name).SUMMARY}")
    click.echo(f"models for filters: {', '.join(plugins.names('models'))}")


@cli.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("experiment", metavar="EXPERIMENT")
@_OUT
@_OVERWRITE
@_CONFIG
@_SET
@click.option(
    "--gains", type=click.Path(), help="Gains that `tune` has written, instead of the settings'."
)
@click.option("--quick", is_flag=True, help="Looser tolerances, no animation.")
@_WORKERS
@_DASK
@_OPEN
@_SHOW
@click.pass_context
def simulate(
    context: click.Context,
    experiment: str,
    out: Path | None,
    overwrite: bool,
    config: Path | None,
    settings: tuple[str, ...],
    gains: str | None,
    quick: bool,
    workers: int | None,
    dask: str | None,
    look: bool,
    show: bool,
) -> None:
    """Simulate an experiment; print its tables and leave a folder with data and figures.

    EXPERIMENT is a name that `list` shows, or a Python file with Config, quick and run.
    A setting that is true or false can be switched on by its name, as in
    `simulate rrr-door --friction --release`.
    """
    from hybridctl.models import experiment_module
    from hybridctl.page.build import finish
    from hybridctl.page.transcript import Transcript
    from hybridctl.report import RunFolder, load_configuration

    module = experiment_module("experiments", experiment)
    switches = [f"{name}=true" for name in _switches(module.Config, context.args)]
    options = asked(module.Config, experiment, gains=gains, workers=workers, dask=dask)
    configuration = load_configuration(module.Config, config, (*settings, *options, *switches))
    if quick:
        configuration = module.quick(configuration)
    if show:
        _echo_settings(configuration)
        return
    resumes = getattr(module, "RECORD", None)
    folder = RunFolder(Path(experiment).stem, out, overwrite=overwrite, resumes=resumes)
    console = Transcript()
    gc.freeze()  # what imports have left would be gone through by every full collection of the run
    module.run(configuration, folder, console)
    finish(folder, console, getattr(module, "SUMMARY", ""), module.__doc__, look=look)


@cli.command()
@click.argument("experiment", type=click.Choice(plugins.names("validations")), metavar="EXPERIMENT")
@_OUT
@_OVERWRITE
@_CONFIG
@_SET
@click.option("--seed", type=int, help="Seed of the perturbations, as `--set seed=SEED`.")
@click.option("--quick", is_flag=True, help="One direction, fewer sizes, looser tolerances.")
@_OPEN
@_SHOW
def validate(
    experiment: str,
    out: Path | None,
    overwrite: bool,
    config: Path | None,
    settings: tuple[str, ...],
    seed: int | None,
    quick: bool,
    look: bool,
    show: bool,
) -> None:
    """Compare the linearization of an experiment with simulations near its trajectory.

    The remainder of a linearization that is right shrinks as the square of the perturbation.
    EXPERIMENT is rrr-door or biped.
    """
    from hybridctl.experiments.linearization import validate as validation
    from hybridctl.page.build import finish
    from hybridctl.page.transcript import Transcript
    from hybridctl.report import RunFolder, load_configuration

    seeds = () if seed is None else (f"seed={seed}",)
    configuration = load_configuration(validation.Config, config, (*settings, *seeds))
    if quick:
        configuration = validation.quick(configuration)
    if show:
        _echo_settings(configuration)
        return
    folder = RunFolder(f"validate-{experiment}", out, overwrite=overwrite)
    console = Transcript()
    validation.run(experiment, configuration, folder, console)
    finish(folder, console, "a linearization beside simulations", validation.__doc__, look=look)


@cli.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("experiment", metavar="EXPERIMENT")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the results; that of an interrupted run is completed.",
)
@_OVERWRITE
@_CONFIG
@_SET
@click.option("--seed", type=int, help="Seed of the perturbations, as `--set seed=SEED`.")
@_WORKERS
@_DASK
@click.option("--quick", is_flag=True, help="Few runs, no search on them.")
@_OPEN
@_SHOW
@click.pass_context
def tune(
    context: click.Context,
    experiment: str,
    out: Path | None,
    overwrite: bool,
    config: Path | None,
    settings: tuple[str, ...],
    seed: int | None,
    workers: int | None,
    dask: str | None,
    quick: bool,
    look: bool,
    show: bool,
) -> None:
    """Tune the feedback gains of an experiment, and compare them over perturbed runs.

    Leaves gains.npz for `simulate EXPERIMENT --gains FILE`. EXPERIMENT is rrr-door, whose
    variants --friction and --release choose, or a Python file with Config, quick, run and RECORD.
    """
    from hybridctl.models import experiment_module
    from hybridctl.page.build import finish
    from hybridctl.page.transcript import Transcript
    from hybridctl.report import RunFolder, load_configuration

    tuning = experiment_module("tunings", experiment)
    options = asked(tuning.Config, experiment, seed=seed, workers=workers, dask=dask)
    switches = [f"{name}=true" for name in _switches(tuning.Config, context.args)]
    configuration = load_configuration(tuning.Config, config, (*settings, *options, *switches))
    if quick:
        configuration = tuning.quick(configuration)
    if show:
        _echo_settings(configuration)
        return
    name = f"tune-{Path(experiment).stem}"
    folder = RunFolder(name, out, overwrite=overwrite, resumes=tuning.RECORD)
    console = Transcript()
    tuning.run(configuration, folder, console)
    finish(folder, console, "gains before and after tuning", tuning.__doc__, look=look)


@cli.command()
@click.argument("experiment", metavar="EXPERIMENT")
@click.option(
    "--vary",
    multiple=True,
    metavar="KEY=a:b:n",
    help="A setting with n values from a to b, or KEY=v,w,...; may be repeated.",
)
@click.option("--seeds", type=int, help="Run each combination with that many seeds.")
@_WORKERS
@_DASK
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the results; that of an interrupted sweep is completed.",
)
@_OVERWRITE
@_CONFIG
@_SET
@click.option("--quick", is_flag=True, help="The quick settings of the experiment.")
@_OPEN
def sweep(
    experiment: str,
    vary: tuple[str, ...],
    seeds: int | None,
    workers: int | None,
    dask: str | None,
    out: Path | None,
    overwrite: bool,
    config: Path | None,
    settings: tuple[str, ...],
    quick: bool,
    look: bool,
) -> None:
    """Run an experiment over settings and seeds; leave one table of its results.

    The numbers do not depend on how many workers there are. A worker that dies costs its unit
    only. Nested settings have dotted names, as in `--vary robot.hinge_damping=10:20:5`.
    """
    from hybridctl.models import experiment_module
    from hybridctl.page.build import finish
    from hybridctl.page.transcript import Transcript
    from hybridctl.report import RunFolder, load_configuration
    from hybridctl.sweep.plan import plan
    from hybridctl.sweep.run import PLAN, print_outcome, run, write_table
    from hybridctl.workers import crew

    module = experiment_module("experiments", experiment)
    base = load_configuration(module.Config, config, settings)
    units = plan(experiment, module.quick(base) if quick else base, vary, seeds)
    console = Transcript()
    with crew(1 if workers is None else workers, dask) as found:
        folder = RunFolder(f"sweep-{Path(experiment).stem}", out, overwrite=overwrite, resumes=PLAN)
        folder.write_configuration(base, seed=None)
        rows = run(units, folder, found, click.echo)
    print_outcome(console, rows, write_table(folder, rows))
    finish(folder, console, f"{len(units)} runs of {experiment}", look=look)


@cli.command()
@click.argument("log", type=click.Path(path_type=Path), metavar="LOG")
@_MAPPING
@_SEGMENT
@click.option(
    "--write-mapping",
    "draft",
    type=click.Path(path_type=Path),
    help="Write a mapping of the log to edit, for --mapping.",
)
def info(log: Path, mapping: Path | None, segment: int | None, draft: Path | None) -> None:
    """Show what is in a log: fields, channels, rates, units, gaps, and what is odd about it.

    LOG is a file of CSV, NPZ, HDF5, a ROS 1 bag or MCAP, or the folder of a ROS 2 bag.
    """
    from hybridctl.logs.info import print_info, write_mapping
    from hybridctl.page.transcript import Transcript

    print_info(log, Transcript(), mapping, segment)
    if draft is not None:
        write_mapping(log, draft)
        click.echo(f"a mapping to edit is in {draft}")


@cli.command("record")
@click.argument("model", metavar="MODEL")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Log to write (.npz, .csv, .h5 or .mcap), or a folder for log.npz.",
)
@_OVERWRITE
@_CONFIG
@_SET
@click.option("--seed", type=int, help="Seed of start and noise, as `--set seed=SEED`.")
@_SHOW
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
    from hybridctl.commands import record
    from hybridctl.models import find_model
    from hybridctl.page.transcript import Transcript
    from hybridctl.report import RunFolder

    seeds = () if seed is None else (f"seed={seed}",)
    source = find_model(model)
    configuration = source.configured(config, (*settings, *seeds))
    if show:
        _echo_settings(configuration)
        return
    path = RunFolder(f"record-{source.name}").path if out is None else out
    record.record(source, configuration, path, Transcript(), overwrite=overwrite)


@cli.command("filter")
@click.argument("log", type=click.Path(path_type=Path), required=False, metavar="[LOG]")
@_MODEL
@_MAPPING
@_SEGMENT
@click.option("--truth", type=click.Path(path_type=Path), help="What `record` left beside the log.")
@_OUT
@_OVERWRITE
@_SET
@click.option("--compare", is_flag=True, help="Other filters beside the salted one.")
@click.option("--mcap", is_flag=True, help="Write the estimates as MCAP too.")
@_OPEN
def filter_log(
    log: Path | None,
    model: str,
    mapping: Path | None,
    segment: int | None,
    truth: Path | None,
    out: Path | None,
    overwrite: bool,
    settings: tuple[str, ...],
    compare: bool,
    mcap: bool,
    look: bool,
) -> None:
    """Run a salted Kalman filter on a log, and say whether the result can be trusted.

    Without LOG, a synthetic one is recorded first. `record MODEL --settings` shows the settings.
    """
    from hybridctl.commands import filter as filtering
    from hybridctl.page.transcript import Transcript

    request = filtering.Request(model, log, mapping, segment, truth, settings, compare, mcap)
    filtering.run(request, out, Transcript(), overwrite=overwrite, look=look)


@cli.command("identify")
@click.argument(
    "logs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="LOG [LOG...]"
)
@_MODEL
@click.option("--parameters", required=True, help="Settings of the model to find: NAME,NAME,...")
@click.option("--bounds", multiple=True, metavar="NAME=LOW:HIGH", help="May be repeated.")
@_MAPPING
@click.option("--segments", help="Of several recordings in a row: 0-99, or 0,3,7.")
@click.option(
    "--held-out", multiple=True, type=click.Path(path_type=Path), help="Log to judge by; repeated."
)
@click.option("--held-out-segments", help="Of the held-out logs, or of LOG without any.")
@click.option("--until", type=float, help="How much of each log, in s.")
@click.option("--profile", "profiles", default="", help="Parameters whose profile is wanted.")
@click.option("--max-evaluations", type=int, default=60, show_default=True)
@_WORKERS
@_DASK
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the results; that of an interrupted run is completed.",
)
@_OVERWRITE
@_SET
@_OPEN
def identify_parameters(
    logs: tuple[Path, ...],
    model: str,
    parameters: str,
    profiles: str,
    settings: tuple[str, ...],
    workers: int | None,
    out: Path | None,
    overwrite: bool,
    look: bool,
    **options: Any,
) -> None:
    """Find parameters of a model by the likelihood of its filter on logs, with standard errors.

    Parameters are settings of the model (`record MODEL --settings` shows them) and start at their
    values, which --set changes.
    """
    from hybridctl.commands import identify
    from hybridctl.page.transcript import Transcript

    names, shown = (tuple(filter(None, text.split(","))) for text in (parameters, profiles))
    options["workers"] = 1 if workers is None else workers
    request = identify.Request(logs, model, names, profiles=shown, assignments=settings, **options)
    identify.run(request, out, Transcript(), overwrite=overwrite, look=look)


def _echo_settings(configuration: Any) -> None:
    """Print a configuration as JSON."""
    import dataclasses
    import json

    click.echo(json.dumps(dataclasses.asdict(configuration), indent=2))


def _switches(kind: type, arguments: list[str]) -> list[str]:
    """Names of boolean settings from arguments such as --friction."""
    import dataclasses

    known = [f.name for f in dataclasses.fields(kind) if isinstance(f.default, bool)]
    flags = {f"--{name.replace('_', '-')}": name for name in known}
    for argument in arguments:
        if argument not in flags:
            raise click.UsageError(
                f"no such option: {argument}; this experiment also has {', '.join(flags) or 'none'}"
            )
    return [flags[argument] for argument in arguments]


def main() -> None:
    """Entry point: errors raised on purpose end with one line and exit code 1.

    The matrices are small, so one BLAS thread is fastest, unless the environment says otherwise.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        cli(prog_name="hybridctl")
    except HybridctlError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        where = "" if error.filename is None else f": {error.filename}"
        click.echo(f"error: {reason}{where}", err=True)
        sys.exit(1)
