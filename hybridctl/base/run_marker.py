"""The list of the files that a run wrote into its folder, and moves of these files alone.

A listed file has a name below the folder and the SHA-256 of its content. It belongs to the run if
it is a regular file, reached through no link, and still has a listed content. All other files are
foreign: no function of this module moves or removes them.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hybridctl.base.digests import hash_file
from hybridctl.base.errors import InputError

MARKER = ".hybridctl.jsonl"
"""Name of the marker, in the folder of a run."""
EARLIER = ".hybridctl-earlier"
"""Name of the folder, in that of a run, with the files and the marker of the run it replaces."""
LOCK = ".hybridctl.lock"
"""Name of the file that a run locks while it writes into its folder."""
OWN_NAMES = frozenset({MARKER, EARLIER, LOCK})
"""Names that cannot be the first part of a listed name."""
FORMAT_VERSION = 1
"""Version of the lines of a marker. A marker of another version is refused."""
_MARKER_ERRORS = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of `Marker.read` that show that the content of the file is no marker."""
_MARKER_START = b'{"hybridctl run": '
"""First bytes of every marker: they show that a first line without an end is a marker's."""


@dataclass(frozen=True)
class FileDigest:
    """The size and the SHA-256 of the content of a file.

    Attributes:
        size: Number of bytes that were hashed, from the start of the file.
        digest: Their SHA-256, in hexadecimal digits.
        grows: Whether the file may be longer than `size`, as lines are appended to it (a journal).
    """

    size: int
    digest: str
    grows: bool = False

    @classmethod
    def from_file(cls, path: Path, grows: bool = False) -> FileDigest:
        """Return the size and the digest of all that a file holds now.

        Args:
            path: The file.
            grows: Whether lines are going to be appended to it.

        Raises:
            OSError: The file cannot be read.
        """
        size = path.stat().st_size
        return cls(size, hash_file(path, size), grows)

    def matches(self, path: Path) -> bool:
        """Return whether a file is a regular file, and no link, with this content.

        Args:
            path: The file. One that is not there, or cannot be read, does not match.
        """
        try:
            found = path.lstat()
            if not stat.S_ISREG(found.st_mode):
                return False
            if found.st_size < self.size or (found.st_size > self.size and not self.grows):
                return False
            return hash_file(path, self.size) == self.digest
        except OSError:  # not there, or unreadable: without its content it counts as foreign
            return False


class Marker:
    """The list of the files of one run, kept in the file `MARKER` of a folder.

    Life cycle: `read` returns the marker of a folder; if there is none, `create` makes one. Then
    `add` appends one line for each fact and updates the attributes. The names in the lines are
    relative to the folder of the files, with "/" between their parts. The methods take this folder
    as `base`, since files of a run are moved before and after their marker.

    Attributes:
        header: The first line: the version of the format under "hybridctl run", which has to be the
            first key, as markers are told by their first bytes; "kind", "experiment", the "version"
            of hybridctl, and the name of the journal under "record", None for a run that cannot be
            resumed.
        files: Sizes and digests by name, one for each content that was written under the name.
        folders: Names of the folders that the run made.
        temporaries: Names of the files that are written first and then renamed; each has a UUID.
        finished: Whether the run has ended without an error. False again while it is resumed, and
            if it then fails.
        interrupted: Name of the folder, beside the marker, to which the results of this failed run
            are being moved. None if they are not moved.

    Args:
        path: Path of the marker. The constructor neither reads nor writes it.
        header: Its first line, see the attribute.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header = dict(header)
        self.files: dict[str, list[FileDigest]] = {}
        self.folders: list[str] = []
        self.temporaries: set[str] = set()
        self.finished = False
        self.interrupted: str | None = None

    @classmethod
    def create(cls, root: Path, header: Mapping[str, Any]) -> Marker:
        """Write the marker of a new run into a folder for which `read` returned None.

        Args:
            root: Folder of the marker.
            header: The first line, see the attribute.

        Returns:
            The marker, which lists no file.

        Raises:
            OSError: The marker cannot be written.
        """
        marker = cls(root / MARKER, header)
        # Only a file without a whole first line can be there, as `read` returned None.
        with suppress(FileNotFoundError):
            marker.path.unlink()
        _append_line(marker.path, header, os.O_CREAT | os.O_EXCL)
        return marker

    @classmethod
    def read(cls, root: Path, *, locked: bool = True) -> Marker | None:
        """Return the marker of a folder, or None if it has none or only the start of one.

        Args:
            root: Folder of the marker.
            locked: Whether this process has locked the folder. Then a last line without an end,
                which a killed run left, is cut off from the file. Otherwise it is only skipped,
                as another process may be writing it.

        Returns:
            The marker. None if the file is not there, is empty or ends within its first line.

        Raises:
            InputError: `MARKER` is no regular file or no marker of this format, so all files in
                the folder are foreign.
        """
        path = root / MARKER
        try:
            content = _read_regular(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        whole = content[: content.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.decode().splitlines()]
            if not lines and (
                content.startswith(_MARKER_START) or _MARKER_START.startswith(content)
            ):
                return None  # the run was killed before its first line was whole
            marker = cls(path, lines[0])
            marker._check_header()
            for line in lines[1:]:
                marker._apply_entry(line)
        except _MARKER_ERRORS as error:
            raise InputError(
                f"out: {path} is no list of files of this version of hybridctl ({error}), so no "
                "file there is touched; name another folder"
            ) from error
        if locked and len(whole) < len(content):
            os.truncate(path, len(whole))
        return marker

    def _check_header(self) -> None:
        """Check the first line of the marker.

        Raises:
            ValueError: It has another format, names no run, or its journal could lie outside.
            LookupError: It has no format.
        """
        if self.header["hybridctl run"] != FORMAT_VERSION:
            raise ValueError(f"its format is {self.header['hybridctl run']!r}")
        if not {"kind", "experiment"} <= self.header.keys():
            raise ValueError("it names no run")
        if self.record is not None:
            _check_name(self.record)

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
        """The name of the journal from which the run can be resumed, None if there is none."""
        return self.header.get("record")

    def add(self, **entry: Any) -> None:
        """Append a line to the marker, and update the attributes by it.

        Args:
            **entry: One of `file` (with `bytes`, `sha256`, `grows`), `folder`, `temporary`,
                `finished`, `interrupted`.

        Raises:
            OSError: The line cannot be written.
            ValueError: `read` would refuse the line. In both cases the marker stays as it was.
        """
        Marker(self.path, self.header)._apply_entry(entry)
        _append_line(self.path, entry, 0)
        self._apply_entry(entry)

    def _apply_entry(self, entry: Mapping[str, Any]) -> None:
        """Update the attributes by one line.

        Args:
            entry: Content of the line, see `add`.

        Raises:
            ValueError: A name could lead out of the folder, or a journal has a size of 0.
            KeyError: The line is of no known kind, or is incomplete.
        """
        if "file" in entry:
            given = FileDigest(int(entry["bytes"]), entry["sha256"], bool(entry["grows"]))
            if given.grows and given.size < 1:
                raise ValueError("a journal has a first line")  # with 0 bytes any file would match
            self.files.setdefault(_check_name(entry["file"]), []).append(given)
        elif "folder" in entry:
            self.folders.append(_check_name(entry["folder"]))
        elif "temporary" in entry:
            self.temporaries.add(_check_name(entry["temporary"]))
        elif "interrupted" in entry:
            self.interrupted = _check_name(entry["interrupted"])
        else:
            self.finished = bool(entry["finished"])

    def owns(self, name: str, base: Path) -> bool:
        """Return whether the run wrote a file, and nobody changed it.

        A file in a folder that is a link is foreign, as it may lie anywhere.

        Args:
            name: Name of the file below `base`.
            base: Folder of the files of the run.
        """
        if passes_link(base, name):
            return False
        if name in self.temporaries:
            # Left by a write that was killed: its content is unknown, but nobody else would have
            # used its random name.
            return (base / name).is_file()
        return any(listed.matches(base / name) for listed in self.files.get(name, ()))

    def find_owned_files(self, base: Path) -> list[str]:
        """Return the names of all files that the run owns and that are there.

        Args:
            base: Folder of the files of the run.
        """
        return [name for name in (*self.files, *self.temporaries) if self.owns(name, base)]

    def find_changed_files(self, base: Path) -> list[str]:
        """Return the listed names that are in use, but not by a file of the run.

        Args:
            base: Folder of the files of the run.
        """
        return [n for n in self.files if os.path.lexists(base / n) and not self.owns(n, base)]


def move_run(marker: Marker, source: Path, target: Path) -> None:
    """Move all files that a run owns from one folder to another, and its marker last.

    If the process is killed in between, the marker is still in `source`; then a second call
    completes the move.

    Args:
        marker: Marker of the run. It is not updated: its `path` stays that in the old folder.
        source: Folder with the files and the marker.
        target: Folder on the same file system; folders within it are made.

    Raises:
        FileExistsError: `target` has another file under a name of the run. Files that come before
            it have been moved.
        OSError: A file cannot be moved.
    """
    move_files(marker, source, target)
    _move_file(source / MARKER, target / MARKER)


def move_files(marker: Marker, source: Path, target: Path) -> None:
    """Move all files that a run owns, and remove those of its folders that are empty then.

    The marker stays.

    Args:
        marker: Marker of the run.
        source: Folder with the files.
        target: Folder on the same file system; folders within it are made.

    Raises:
        FileExistsError: `target` has another file under a name of the run. Files that come before
            it have been moved.
        OSError: A file cannot be moved.
    """
    for name in marker.find_owned_files(source):
        _move_file(source / name, target / name)
    _remove_empty_folders(marker, source)


def _move_file(source: Path, target: Path) -> None:
    """Move a file to a free name without replacing a file.

    `os.rename` would replace a file that appears in the meantime, `os.link` does not. Without hard
    links that gap remains.

    Args:
        source: The file.
        target: Its new path on the same file system. The folders on the way are made.

    Raises:
        FileExistsError: Another file has the new name.
        OSError: The file cannot be moved.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        # A move that was killed between link and unlink left one file with both names.
        if not os.path.samestat(source.lstat(), target.lstat()):
            raise
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise
        os.rename(source, target)
        return
    os.unlink(source)


def remove_run(marker: Marker, base: Path) -> None:
    """Remove all files that a run owns, the folders that it made if empty, and its marker last.

    Args:
        marker: Marker of the run.
        base: Folder with the files and the marker.

    Raises:
        OSError: A file cannot be removed. The marker is still there.
    """
    for name in marker.find_owned_files(base):
        (base / name).unlink()
    _remove_empty_folders(marker, base)
    (base / MARKER).unlink()


def _remove_empty_folders(marker: Marker, base: Path) -> None:
    """Remove the folders below `base` that a run made and that are empty, innermost first."""
    for name in sorted(marker.folders, key=len, reverse=True):  # inner ones have longer names
        if not passes_link(base, name) and not (base / name).is_symlink():
            with suppress(OSError):  # it is not empty, or not there
                (base / name).rmdir()


def passes_link(base: Path, name: str) -> bool:
    """Return whether a folder between a base and a file is a link.

    Args:
        base: The base, which is not looked at itself.
        name: Name of the file below `base`. Its last part is not looked at.
    """
    return any((base / folder).is_symlink() for folder in PurePosixPath(name).parents[:-1])


def _check_name(name: Any) -> str:
    """Return the name of a file relative to the folder of a run, without redundant parts.

    Raises:
        ValueError: The name is empty, could lead out of the folder, or is one of `OWN_NAMES`.
    """
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or parts[0] == "/" or parts[0] in OWN_NAMES or "\0" in name:
        raise ValueError(f"{name!r} is no file of a run")
    return str(PurePosixPath(name))


def _append_line(path: Path, entry: Mapping[str, Any], flags: int) -> None:
    """Append a JSON line.

    Args:
        path: The marker.
        entry: Content of the line.
        flags: Further flags of `os.open`, such as those that make the file.

    Raises:
        OSError: The line is not written, or only in part, as on a full disk.
    """
    line = (json.dumps(entry) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | flags, 0o666)
    try:
        # One write for each line, so that lines of several threads do not mix.
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


def _read_regular(path: Path) -> bytes:
    """Return the content of a marker.

    Raises:
        InputError: The path is a link, a device or a folder.
        FileNotFoundError: Nothing is there.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise InputError(f"out: {path} is no regular file; name another folder")
    return path.read_bytes()
