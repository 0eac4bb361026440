"""What `hybridctl live` does: samples from standard input or a socket, odometry back."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import BinaryIO

import click

from hybridctl.app.models import find_source
from hybridctl.checks import quoted
from hybridctl.errors import InputError
from hybridctl.logs.legged import BaseModel
from hybridctl.logs.live_lines import LineOdometry, SampleReader
from hybridctl.mechanics.multibody.robot import Robot

LONGEST_LINE = 2**20
"""Bytes of a line: hundreds of joints. A sender without ends of lines must not fill the memory."""


def start_odometry(model: BaseModel) -> Callable[[], LineOdometry]:
    """Return a function that begins odometry of a robot anew, for each stream of lines.

    Raises:
        FileFormatError: The URDF cannot be read.
        UnknownNameError: The robot has no such frame.
    """
    estimator = model.settings.build(Robot.from_urdf(Path(model.urdf)))
    reader = SampleReader(model.channels, estimator.joints, estimator.base.feet)

    def start() -> LineOdometry:
        live = estimator.live(heading=model.heading, position=model.position)
        return LineOdometry(reader, live)

    return start


def find_base_model(
    text: str, config: Path | None = None, assignments: Sequence[str] = ()
) -> BaseModel:
    """Return the legged base that a text names, with settings of a file and `key=value`.

    Raises:
        InputError: The model is no legged base.
    """
    source = find_source(text)
    if source.kind is not BaseModel:
        raise InputError(f"model {quoted(text)} must be a legged base, with `imu` in its file")
    made: BaseModel = source.make(source.configured(config, assignments))
    return made


def answer_live(model: BaseModel, listen: str | None) -> None:
    """Answer lines of clients at an address, or those of standard input where it is None."""
    start = start_odometry(model)
    if listen is None:
        answer_stream(start(), sys.stdin.buffer, sys.stdout.buffer)
        return
    with listen_at(listen) as listening:
        click.echo(f"listening at {listen}", err=True)
        answer_clients(start, listening)


def answer_stream(odometry: LineOdometry, lines: BinaryIO, answers: BinaryIO) -> None:
    """Answer lines until their end, each at once."""
    gc.freeze()  # what imports have left would be gone through by every full collection
    while line := lines.readline(LONGEST_LINE):
        answer = odometry.answer(line)
        if answer is not None:
            answers.write(answer)
            answers.flush()


def listen_at(address: str) -> socket.socket:
    """Return a socket that listens at HOST:PORT, or at the path of a Unix socket.

    Args:
        address: `HOST:PORT`, `:PORT` for this machine alone, or a path, which must not exist.

    Raises:
        InputError: The address is neither.
    """
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and int(port) < 2**16:
        return socket.create_server((host or "localhost", int(port)))
    if colon or not hasattr(socket, "AF_UNIX"):
        raise InputError(f"listen must be HOST:PORT or the path of a socket, got {quoted(address)}")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    return listening


def answer_clients(
    start: Callable[[], LineOdometry], listening: socket.socket, clients: int | None = None
) -> None:
    """Answer clients of a socket one after the other; each begins anew.

    Args:
        start: Begins odometry.
        listening: A socket that listens.
        clients: How many are answered; None for all that ever come.
    """
    while clients is None or clients > 0:
        client, _ = listening.accept()
        if client.family != getattr(socket, "AF_UNIX", None):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each line at once
        # A client that goes away before its answers have gone is no error of this side.
        with (
            suppress(ConnectionError),
            closing(client),
            client.makefile("rb") as lines,
            client.makefile("wb") as answers,
        ):
            answer_stream(start(), lines, answers)
        clients = None if clients is None else clients - 1
