"""Options of the command line that belong together; nothing but click is imported here."""

from __future__ import annotations

from collections.abc import Callable
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
