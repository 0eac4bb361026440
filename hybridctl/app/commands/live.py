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
from hybridctl.errors import FileFormatError, InputError
from hybridctl.logs.legged import BaseModel
from hybridctl.logs.live_lines import LineOdometry, SampleReader, read_messages
from hybridctl.mechanics.multibody.robot import Robot


def start_odometry(model: BaseModel) -> Callable[[], LineOdometry]:
    """Return a function that begins odometry of a robot anew, for each stream of lines.

    Args:
        model: The robot, its channels and settings.

    Returns:
        A function without arguments. What all streams share, the robot and its settings, is made
        once.

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
    """Return the legged base that a text names, with its settings changed.

    Args:
        text: Name of a robot of `robots`, or path of its file.
        config: File of settings; None without.
        assignments: Settings as `key=value`, which count more than those of the file.

    Raises:
        InputError: The model is no legged base, or a setting is wrong.
        UnknownNameError: There is no such model or setting.
    """
    source = find_source(text)
    if source.kind is not BaseModel:
        raise InputError(f"model {quoted(text)} must be a legged base, with `imu` in its file")
    made: BaseModel = source.make(source.configured(config, assignments))
    return made


def answer_live(model: BaseModel, listen: str | None) -> None:
    """Answer samples of clients at an address, or those of standard input.

    Args:
        model: The robot, its channels and settings.
        listen: Address as `listen_at` takes it; None for standard input.

    Raises:
        FileFormatError: The URDF cannot be read, or standard input is damaged MCAP.
        InputError: The address cannot be used.
    """
    start = start_odometry(model)
    if listen is None:
        answer_stream(start(), sys.stdin.buffer, sys.stdout.buffer)
        return
    with listen_at(listen) as listening:
        click.echo(f"listening at {listen}", err=True)
        answer_clients(start, listening)


def answer_stream(odometry: LineOdometry, samples: BinaryIO, answers: BinaryIO) -> None:
    """Answer samples until their end, each at once.

    Args:
        odometry: Odometry at its beginning.
        samples: JSON lines or MCAP.
        answers: Gets a line for each answer.

    Raises:
        FileFormatError: `samples` is damaged MCAP.
    """
    # What imports have left would be gone through by every full collection: some 50 ms each.
    gc.collect()
    gc.freeze()
    for message in read_messages(samples):
        answer = odometry.answer(message.text, message.time)
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
        # A client that goes away before its answers have gone, or sends damaged MCAP, ends its own
        # stream, not the server.
        with (
            suppress(ConnectionError),
            closing(client),
            client.makefile("rb") as samples,
            client.makefile("wb") as answers,
        ):
            try:
                answer_stream(start(), samples, answers)
            except FileFormatError as error:
                click.echo(f"client passed over: {error}", err=True)
        clients = None if clients is None else clients - 1
