"""What `hybridctl live` does: samples from standard input or a socket, odometry back."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol

import click

from hybridctl.app.models import find_source
from hybridctl.base.checks import check_number, quote
from hybridctl.base.errors import FileFormatError, HybridctlError, InputError
from hybridctl.logs import Mapping as LogMapping
from hybridctl.logs.base_model import BaseModel, OdometryFrames
from hybridctl.logs.live_lines import SampleReader
from hybridctl.logs.live_odometry import Answer, LiveOdometry, Refusal, write_line
from hybridctl.logs.live_stream import read_messages
from hybridctl.logs.live_topics import DEFAULT_WAIT, TopicSamples
from hybridctl.logs.odometry_messages import OdometryWriter, RateSensor


class AnswerWriter(Protocol):
    """Writes what comes of samples into a stream."""

    def write(self, answer: Answer) -> None:
        """Write an answer, so that it can be read at once."""

    def finish(self) -> None:
        """Write what ends the stream."""


class LineWriter:
    """Writes answers as JSON lines."""

    def __init__(self, stream: BinaryIO, feet: Sequence[str]) -> None:
        self._stream, self._feet = stream, feet

    def write(self, answer: Answer) -> None:
        """Write a line."""
        self._stream.write(write_line(answer, self._feet))
        self._stream.flush()

    def finish(self) -> None:
        """Do nothing: lines need no end."""


class McapWriter:
    """Writes odometry as MCAP; errors and flags, which have no place there, go to stderr.

    Args:
        stream: Where messages go.
        frames: Names of the frames in ROS.
        sensor: Gyroscope that the twist is by, see `OdometryWriter`.
    """

    def __init__(self, stream: BinaryIO, frames: OdometryFrames, sensor: RateSensor) -> None:
        self._writer = OdometryWriter(stream, frames, sensor)

    def write(self, answer: Answer) -> None:
        """Write a message."""
        if isinstance(answer, Refusal):
            click.echo(f"error: {answer.error}", err=True)
            return
        for flag in answer.flags:
            click.echo(f"flag: {flag}, at {answer.time} s", err=True)
        try:
            self._writer.write(answer)
        except InputError as error:
            click.echo(f"error: {error}", err=True)

    def finish(self) -> None:
        """Write the end of the file."""
        self._writer.finish()


def start_odometry(
    model: BaseModel, mapping: Path | None = None, wait: float = DEFAULT_WAIT
) -> Callable[[], LiveOdometry]:
    """Return a function that begins odometry of a robot anew, for each stream of samples.

    Args:
        model: The robot, its channels and settings.
        mapping: File that maps topics to channels; None for the mapping of the model, if any.
        wait: Time in s of stamps for which a message of a topic waits at most for others.

    Returns:
        A function without arguments. What all streams share, the robot and its settings, is made
        once.

    Raises:
        FileFormatError: The URDF cannot be read.
        InputError: The mapping cannot be read, or does not have the channels of the robot.
        UnknownNameError: The robot has no such frame.
    """
    estimator = model.settings.build(model.build_robot())
    reader = SampleReader(model.channels, estimator.joints, estimator.base.feet)
    check_number("wait", wait, at_least=0.0)
    found = None
    if mapping is not None:
        found = LogMapping.load(mapping)
    elif model.mapping is not None:
        found = LogMapping.parse(model.mapping)

    def make_samples() -> TopicSamples | None:
        if found is None:
            return None
        return TopicSamples(found, model.channels, estimator.joints, estimator.base.feet, wait)

    def start() -> LiveOdometry:
        live = estimator.live(heading=model.heading, position=model.position)
        samples = make_samples()
        if samples is not None:
            live.shares_stamps = samples.shares_stamps
        return LiveOdometry(reader, live, samples)

    return start


def find_frames(model: BaseModel) -> tuple[OdometryFrames, RateSensor]:
    """Return the names that odometry has in ROS, and the gyroscope that its twist is by.

    Args:
        model: The robot, its channels and settings.
    """
    robot = model.build_robot()
    base = model.settings.build(robot).base
    frames = model.odometry
    if not frames.child_frame:
        frames = replace(frames, child_frame=robot.link_names[0])
    return frames, RateSensor(base.kinematics.base[0], base.noise.gyroscope)


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
        raise InputError(f"model {quote(text)} must be a legged base, with `imu` in its file")
    made: BaseModel = source.make(source.configure(config, assignments))
    return made


def answer_live(
    model: BaseModel,
    listen: str | None,
    *,
    mapping: Path | None = None,
    wait: float = DEFAULT_WAIT,
    output_format: str = "json",
) -> None:
    """Answer samples of clients at an address, or those of standard input.

    Args:
        model: The robot, its channels and settings.
        listen: Address as `listen_at` takes it; None for standard input.
        mapping: File that maps topics to channels; None for the mapping of the model.
        wait: Time in s of stamps for which a message of a topic waits at most for others.
        output_format: "json" or "mcap".

    Raises:
        FileFormatError: The URDF cannot be read, or standard input is damaged MCAP.
        InputError: The address or the mapping cannot be used, or standard input does not fit it.
    """
    start = start_odometry(model, mapping, wait)
    make_writer = None
    if output_format == "mcap":
        frames, sensor = find_frames(model)
        make_writer = partial(McapWriter, frames=frames, sensor=sensor)
    if listen is None:
        odometry, answers = start(), sys.stdout.buffer
        writer = None if make_writer is None else make_writer(answers)
        answer_stream(odometry, sys.stdin.buffer, answers, writer)
        return
    with listen_at(listen) as listening:
        click.echo(f"listening at {listen}", err=True)
        answer_clients(start, listening, make_writer=make_writer)


def answer_stream(
    odometry: LiveOdometry,
    samples: BinaryIO,
    answers: BinaryIO,
    writer: AnswerWriter | None = None,
) -> None:
    """Answer samples until their end, each at once.

    Args:
        odometry: Odometry at its beginning.
        samples: JSON lines or MCAP.
        answers: Gets the answers.
        writer: Writes them there; None for lines.

    Raises:
        HybridctlError: `samples` is damaged MCAP (`FileFormatError`), or does not fit the mapping
            (`InputError`). What was answered until then is written.
    """
    # What imports have left would be gone through by every full collection: some 50 ms each.
    gc.collect()
    gc.freeze()
    if writer is None:
        writer = LineWriter(answers, odometry.feet)
    try:
        for message in read_messages(samples, odometry.topics, partial(click.echo, err=True)):
            for answer in odometry.answer_message(message):
                writer.write(answer)
        for answer in odometry.finish():
            writer.write(answer)
    except HybridctlError:
        writer.finish()
        raise
    writer.finish()


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
        raise InputError(f"listen must be HOST:PORT or the path of a socket, got {quote(address)}")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    return listening


def answer_clients(
    start: Callable[[], LiveOdometry],
    listening: socket.socket,
    clients: int | None = None,
    make_writer: Callable[[BinaryIO], AnswerWriter] | None = None,
) -> None:
    """Answer clients of a socket one after the other; each begins anew.

    Args:
        start: Begins odometry.
        listening: A socket that listens.
        clients: How many are answered; None for all that ever come.
        make_writer: Makes what writes answers into a stream; None for lines.
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
                writer = None if make_writer is None else make_writer(answers)
                answer_stream(start(), samples, answers, writer)
            except (FileFormatError, InputError) as error:
                click.echo(f"client passed over: {error}", err=True)
        clients = None if clients is None else clients - 1
