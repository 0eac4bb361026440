"""Options of the command line that belong together, and settings that options stand for.

Nothing but click is imported here, so that `--help` is quick.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

C = TypeVar("C", bound=Callable[..., Any])


def live_options(command: C) -> C:
    """Return a command with the options of live odometry: where from, as what, how it waits.

    Args:
        command: Command of click, with the parameters mapping, listen, output_format and wait.
    """
    options = [
        click.option(
            "--mapping",
            type=click.Path(path_type=Path),
            help="YAML file that maps fields of ROS messages to channels, as for logs.",
        ),
        click.option(
            "--listen",
            metavar="HOST:PORT|PATH",
            help="Take samples from clients of this socket, and answer there; else standard input.",
        ),
        click.option(
            "--output-format",
            type=click.Choice(["json", "mcap"]),
            default="json",
            show_default=True,
            help="JSON lines, or MCAP with nav_msgs/Odometry of ROS 2.",
        ),
        click.option(
            "--wait",
            type=float,
            default=0.02,
            show_default=True,
            metavar="SECONDS",
            help="How long, by stamps, ROS messages wait at most for earlier ones of other topics.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def reference_options(command: C) -> C:
    """Return a command with the options of a reference for the base of a legged robot.

    Args:
        command: Command of click, with the parameters reference, alignment, association and within.
    """
    options = [
        click.option(
            "--reference",
            metavar="FILE|CHANNELS",
            help="Poses of a legged base to compare with: a TUM file, or channels of the log, "
            "POSITION,ORIENTATION.",
        ),
        click.option(
            "--alignment",
            type=click.Choice(["none", "start", "yaw", "se3"]),
            default="yaw",
            show_default=True,
            help="What is aligned for ATE: yaw and position, the same at the start alone, or all.",
        ),
        click.option(
            "--association",
            type=click.Choice(["interpolate", "nearest"]),
            default="interpolate",
            show_default=True,
            help="How estimates at the stamps of the reference are found.",
        ),
        click.option(
            "--within", type=float, help="Longest time in s between stamps that are compared."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def format_settings(kind: type, experiment: str, **given: object) -> list[str]:
    """Return the options that were given, as settings `key=value` of a configuration.

    Args:
        kind: Type of the configuration, a dataclass.
        experiment: Name of the experiment, for errors.
        **given: Value of each option, None where it was not given.

    Raises:
        click.UsageError: An option is no setting of the configuration.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for name in found:
        if name not in kind.__dataclass_fields__:  # type: ignore[attr-defined]
            raise click.UsageError(f"{experiment} has no {name}, so --{name} does not apply")
    return [f"{name}={json.dumps(value)}" for name, value in found.items()]


def reject_options(robot: str, given: Mapping[str, object], arguments: Sequence[str]) -> None:
    """Check that no option of experiments is given for a robot.

    Args:
        robot: The robot, for the message.
        given: Value of each option, None where it was not given.
        arguments: Arguments that are no options of the command.

    Raises:
        click.UsageError: An option or an argument is given.
    """
    names = [f"--{name}" for name, value in given.items() if value is not None]
    for name in (*names, *arguments):
        raise click.UsageError(
            f"{robot} is a robot, to which {name} does not apply; see --settings"
        )


def check_full(module: Any, experiment: str) -> None:
    """Check that an experiment has a whole study beside its default.

    Args:
        module: Module of the experiment.
        experiment: Its name, for the message.

    Raises:
        click.UsageError: Its default is the whole study.
    """
    if not hasattr(module, "full"):
        raise click.UsageError(f"{experiment} runs in full by default, so --full does not apply")


def read_switches(kind: type, arguments: list[str]) -> list[str]:
    """Return settings `key=true` from arguments such as --friction.

    Args:
        kind: Type of the configuration, a dataclass with settings that are true or false.
        arguments: Arguments that are no options of the command.

    Returns:
        A text for each argument.

    Raises:
        click.UsageError: An argument names no such setting.
    """
    known = [f.name for f in fields(kind) if isinstance(f.default, bool)]
    flags = {f"--{name.replace('_', '-')}": name for name in known}
    for argument in arguments:
        if argument not in flags:
            raise click.UsageError(
                f"no such option: {argument}; this experiment also has {', '.join(flags) or 'none'}"
            )
    return [f"{flags[argument]}=true" for argument in arguments]
