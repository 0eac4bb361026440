"""The list of the files that a run wrote into its folder, and moves of these files alone.

A listed file has a name below the folder and the SHA-256 of its content. It belongs to the run if
it is a regular file, reached through no link, and still has a listed content. All other files are
foreign: no function of this module moves or removes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hybridctl.errors import InputError

MARKER = ".hybridctl.jsonl"
EARLIER = ".hybridctl-earlier"
LOCK = ".hybridctl.lock"
OWN_NAMES = frozenset({MARKER, EARLIER, LOCK})
FORMAT = 1  # of the marker
_UNREADABLE = (AttributeError, LookupError, RecursionError, TypeError, ValueError)  # as a marker
_START = b'{"hybridctl run": '  # of the first line
_CHUNK_BYTES = 2**20  # that are hashed at a time


@dataclass(frozen=True)
class Fingerprint:
    """The SHA-256 of the first `size` bytes of a file; only a journal (`grows`) has more bytes."""

    size: int
    digest: str
    grows: bool = False

    @classmethod
    def of(cls, path: Path, grows: bool = False) -> Fingerprint:
        """Return the fingerprint of a file as it is now."""
        size = path.stat().st_size
        return cls(size, _hash_start(path, size), grows)

    def matches(self, path: Path) -> bool:
        """Return whether `path` is a regular file with this content; a link is none."""
        try:
            found = path.lstat()
            if not stat.S_ISREG(found.st_mode):
                return False
            if found.st_size < self.size or (found.st_size > self.size and not self.grows):
                return False
            return _hash_start(path, self.size) == self.digest
        except OSError:  # not there, or it cannot be read: then it cannot be told to be ours
            return False


class Marker:
    """The list of the files of one run, kept in the file `MARKER` of a folder.

    Life cycle: `create` or `read`, then `add` appends one line for each fact. The names in it are
    relative to the folder that holds the files, with "/" between their parts.

    Attributes:
        header: Format, kind, experiment, version of hybridctl and name of the journal ("record",
            None for a run that cannot be resumed).
        files: Fingerprints of each listed file, one for each content that was written.
        folders: Folders that the run made.
        temporaries: Files that were to replace others; their names hold a UUID.
        finished: Whether the run has ended without an error.
        interrupted: Name of the folder to which the run is being moved, None if it is not moved.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header = dict(header)
        self.files: dict[str, list[Fingerprint]] = {}
        self.folders: list[str] = []
        self.temporaries: set[str] = set()
        self.finished = False
        self.interrupted: str | None = None

    @classmethod
    def create(cls, root: Path, header: Mapping[str, Any]) -> Marker:
        """Write the marker of a new run into a folder that has none, or an empty one."""
        marker = cls(root / MARKER, header)
        with suppress(FileNotFoundError):
            marker.path.unlink()  # `read` has found that it lists nothing
        _append_line(marker.path, header, os.O_CREAT | os.O_EXCL)
        return marker

    @classmethod
    def read(cls, root: Path, *, locked: bool = True) -> Marker | None:
        """Return the marker of a folder, or None where there is none or it lists nothing.

        Args:
            root: Folder of the marker.
            locked: Whether this process has locked the folder. Then the last line is dropped where
                a run was killed while it wrote it.

        Raises:
            InputError: `MARKER` is no marker of this format, so nothing in the folder is ours.
        """
        path = root / MARKER
        try:
            content = _read_regular(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        whole = content[: content.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.decode().splitlines()]
            if not lines and (content.startswith(_START) or _START.startswith(content)):
                return None  # killed before its first line was written whole
            marker = cls(path, lines[0])
            if marker.header["hybridctl run"] != FORMAT:
                raise ValueError(f"its format is {marker.header['hybridctl run']!r}")
            if not {"kind", "experiment"} <= marker.header.keys():
                raise ValueError("it names no run")
            if marker.record is not None:
                _check_name(marker.record)
            for line in lines[1:]:
                marker._take(line)
        except _UNREADABLE as error:
            raise InputError(
                f"out: {path} is no list of files of this version of hybridctl ({error}), so no "
                "file there is touched; name another folder"
            ) from error
        if locked and len(whole) < len(content):
            os.truncate(path, len(whole))
        return marker

    @property
    def kind(self) -> str:
        """The command that made the run, such as "simulate" or "sweep"."""
        return str(self.header["kind"])

    @property
    def experiment(self) -> str:
        """The name of the run."""
        return str(self.header["experiment"])

    @property
    def record(self) -> str | None:
        """The journal from which the run can be resumed."""
        return self.header.get("record")

    def add(self, **entry: Any) -> None:
        """Append a line, and take it into the attributes.

        Args:
            **entry: One of `file` (with `bytes`, `sha256`, `grows`), `folder`, `temporary`,
                `finished`, `interrupted`.
        """
        _append_line(self.path, entry, 0)
        self._take(entry)

    def _take(self, entry: Mapping[str, Any]) -> None:
        """Update the attributes by one line; raises ValueError for a name outside the folder."""
        if "file" in entry:
            given = Fingerprint(int(entry["bytes"]), entry["sha256"], bool(entry["grows"]))
            if given.grows and given.size < 1:
                raise ValueError("a journal has a first line")  # else any file would match
            self.files.setdefault(_check_name(entry["file"]), []).append(given)
        elif "folder" in entry:
            self.folders.append(_check_name(entry["folder"]))
        elif "temporary" in entry:
            self.temporaries.add(_check_name(entry["temporary"]))
        elif "interrupted" in entry:
            self.interrupted = _check_name(entry["interrupted"])
        else:
            self.finished = self.finished or bool(entry["finished"])

    def owns(self, name: str, base: Path) -> bool:
        """Return whether the run wrote the file of this name below `base`, and nobody changed it.

        A file behind a link is foreign, as it may lie anywhere.
        """
        if passes_link(base, name):
            return False
        if name in self.temporaries:
            # of a write that was killed: its content is not known, but its name is random
            return (base / name).is_file()
        return any(print_.matches(base / name) for print_ in self.files.get(name, ()))

    def present(self, base: Path) -> list[str]:
        """Return the names of all files below `base` that the run owns."""
        return [name for name in (*self.files, *self.temporaries) if self.owns(name, base)]

    def changed(self, base: Path) -> list[str]:
        """Return the listed names below `base` under which something foreign stands now."""
        return [n for n in self.files if os.path.lexists(base / n) and not self.owns(n, base)]


def move_run(marker: Marker, source: Path, target: Path) -> None:
    """Move all files that a run owns from one folder to another, and its marker last."""
    move_files(marker, source, target)
    _move_file(source / MARKER, target / MARKER)


def move_files(marker: Marker, source: Path, target: Path) -> None:
    """Move all files that a run owns, and remove the folders that it made where they are empty."""
    for name in marker.present(source):
        _move_file(source / name, target / name)
    _remove_empty_folders(marker, source)


def _move_file(source: Path, target: Path) -> None:
    """Move a file to a name that is free; raises FileExistsError where it is not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        # a move that was killed half-way has left both names of one file
        if not os.path.samestat(source.lstat(), target.lstat()):
            raise
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise
        os.rename(source, target)
        return
    os.unlink(source)


def remove_run(marker: Marker, base: Path) -> None:
    """Remove all files that a run owns, the folders that it made if empty, and its marker last."""
    for name in marker.present(base):
        (base / name).unlink()
    _remove_empty_folders(marker, base)
    (base / MARKER).unlink()


def _remove_empty_folders(marker: Marker, base: Path) -> None:
    """Remove the folders that a run made, innermost first, where nothing is left in them."""
    for name in sorted(marker.folders, key=len, reverse=True):
        if not passes_link(base, name) and not (base / name).is_symlink():
            with suppress(OSError):  # it is not empty, or not there
                (base / name).rmdir()


def passes_link(base: Path, name: str) -> bool:
    """Return whether a folder on the way from `base` to a name is a link."""
    return any((base / folder).is_symlink() for folder in PurePosixPath(name).parents[:-1])


def _check_name(name: Any) -> str:
    """Return a name of a marker; raises ValueError for one that could lead out of the folder."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or parts[0] == "/" or parts[0] in OWN_NAMES or "\0" in name:
        raise ValueError(f"{name!r} is no file of a run")
    return str(PurePosixPath(name))


def _append_line(path: Path, entry: Mapping[str, Any], flags: int) -> None:
    """Append a JSON line in one write, so that threads do not mix theirs."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | flags, 0o666)
    try:
        os.write(file, (json.dumps(entry) + "\n").encode())
    finally:
        os.close(file)


def _read_regular(path: Path) -> bytes:
    """Return the content of a marker; raises InputError for a link, a device or a folder."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise InputError(f"out: {path} is no regular file; name another folder")
    return path.read_bytes()


def _hash_start(path: Path, size: int) -> str:
    """Return the SHA-256 of the first bytes of a file, in hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in _chunks(file, size):
            found.update(chunk)
    return found.hexdigest()


def _chunks(file: Any, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
        size -= len(chunk)
        yield chunk
