"""The files that runs wrote into a folder, so that no other file of the folder is ever touched.

A run lists what it writes in a marker, `.hybridctl.jsonl` in its folder: kind and version of the
run first, then each file with its SHA-256, before the file appears under its name. A file belongs
to a run if it is listed and still has a listed content. Of a journal, to which lines are added, the
beginning has to be listed; of a temporary file, whose name is random, the name alone. All other
files are foreign: they are never moved, removed or overwritten, and a listed file that somebody has
changed is foreign too.

A run that replaces an earlier one moves the earlier files into `.hybridctl-earlier`. They are
removed when the run has ended, and moved back when it fails. A killed run does neither; the next
run in that folder does it first. The marker of a run moves last, so it shows after a kill what to
do: as long as it is in the folder from which the files move, the move has not ended. A move into
`.hybridctl-earlier` is then undone, and every other move is completed, such as the one back.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from hybridctl.base.checks import check_path, join_names, make_printable
from hybridctl.base.errors import FileWriteError, InputError
from hybridctl.base.run_marker import (
    EARLIER,
    FORMAT_VERSION,
    LOCK,
    MARKER,
    OWN_NAMES,
    FileDigest,
    Marker,
    move_files,
    move_run,
    passes_link,
    remove_run,
)

SUMMARY = "summary.json"
"""Name of the file that a run writes last. Without a `with` statement it shows that it ended."""
_MAX_LISTED_FILES = 8
"""Most files that a message names, to keep it short. A choice."""
_LOCK_TEXT = "hybridctl process "
"""First words of the lock file, by which a foreign file under its name is recognised."""
_LOG = logging.getLogger(__name__)


class RunStore:
    """Folder of one run, locked against other processes.

    Life cycle: the constructor locks the folder, completes what a killed run left, moves the run
    that is replaced aside and creates or reopens the marker. `announce` and `list_file` are called
    by `files.atomic` around each write. `close` ends the run, once, and removes the lock. Without a
    `with` statement of its owner, `RunFolder`, `close_left_over` calls `close`.

    Attributes:
        root: The folder, absolute and without links.
        marker: The marker of this run.
        resumed: Whether the run goes on from the journal of an earlier one.
        in_with_block: Whether a `with` statement closes the store; its owner sets it.

    Args:
        path: Folder that is new, has no visible files, or holds a run of the same kind.
        header: "kind", "experiment", "version" and "record" of the run, see `Marker`.
        overwrite: Whether a finished run, or one that could be resumed, is replaced.
        inputs: Files that the run reads. A run that wrote one of them is not replaced.

    Raises:
        InputError: The folder holds something else, another run uses it, or foreign files keep
            the files of a killed run from moving; then none of them is moved.
        FileWriteError: The folder cannot be written.
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        *,
        overwrite: bool = False,
        inputs: Sequence[Path] = (),
    ) -> None:
        self._label = make_printable(str(path))
        self._header = {"hybridctl run": FORMAT_VERSION, **header}
        self._given = Path(os.path.abspath(path))
        self.resumed = self.in_with_block = self._closed = self._has_summary = False
        self._process = os.getpid()
        if path.exists() and not path.is_dir():
            raise InputError(f"out must be a folder, but {self._label} is a file")
        try:
            self.root = path.resolve()
            if path.is_dir() and not os.path.lexists(path / EARLIER):
                # `_open_marker` checks it again. This comes before the lock, so that nothing is
                # written into a folder that is refused. With `EARLIER` the marker may be in there.
                self._refuse_foreign(Marker.read(self.root, locked=False))
            path.mkdir(parents=True, exist_ok=True)
            self._replace_unattended()
            self._release = _lock_folder(self.root, self._label)
            try:
                self._recover()
                self.marker = self._open_marker(overwrite, inputs)
            except BaseException:
                self._release()
                raise
        except FileWriteError:
            raise
        except OSError as error:
            where = self._label if error.filename is None else make_printable(str(error.filename))
            raise FileWriteError(f"out: {where}: {error.strerror or error}") from error
        _OPEN[self.root] = self

    def announce(self, target: Path, temporary: Path) -> None:
        """List a temporary file and the folders on its way, before any of them is made.

        Args:
            target: File that the temporary file is going to replace.
            temporary: File beside `target`, under a random name.

        Raises:
            FileWriteError: `target` is there and foreign, or one of its folders is a link.
            OSError: The marker cannot be written.
        """
        name = self._find_relative_name(target)
        self._check_free(name)
        for folder in reversed(PurePosixPath(name).parents[:-1]):
            if not os.path.lexists(self.root / folder):
                self.marker.add(folder=str(folder))
        self.marker.add(temporary=str(PurePosixPath(name).with_name(temporary.name)))

    def list_file(self, target: Path, temporary: Path, grows: bool) -> None:
        """List the content of `temporary` under the name of `target`, which it is to replace.

        Args:
            target: File of the run.
            temporary: File that has been written whole.
            grows: Whether lines are going to be appended to the file.

        Raises:
            FileWriteError: A foreign file has appeared under the name.
            OSError: The marker cannot be written.
        """
        name = self._find_relative_name(target)
        self._check_free(name)
        self._has_summary = self._has_summary or name == SUMMARY
        content = FileDigest.from_file(temporary, grows)
        if content not in self.marker.files.get(name, ()):
            self.marker.add(file=name, bytes=content.size, sha256=content.digest, grows=grows)

    def check_writable(self, path: Path) -> None:
        """Check that the run may write a file.

        Args:
            path: Path in the folder of the run.

        Raises:
            FileWriteError: `path` is there and foreign, or one of its folders is a link.
        """
        self._check_free(self._find_relative_name(path))

    def close(self, *, ended: bool) -> None:
        """End the run and let others into the folder; further calls do nothing.

        The lock of the folder is released in any case, also where this raises an error.

        If foreign files keep the earlier run from going back, it stays in `EARLIER`, with a line in
        the log: an error would hide the one by which this run has failed.

        Args:
            ended: Whether the run has ended without an error. Then the run that it replaced is
                removed, else that run is moved back.

        Raises:
            FileWriteError: The end cannot be noted in the marker, as on a full disk. Or files of
                the earlier run cannot be removed or moved back. What is left of that run is in
                `EARLIER` of the folder; the next run there tries again.
        """
        # A forked process has a copy of this object, but the lock and the run are its parent's.
        if self._closed or self._process != os.getpid():
            return
        self._closed = True
        _OPEN.pop(self.root, None)
        try:
            if ended:
                self.marker.add(finished=True)
            self._recover()
        except InputError as error:
            _LOG.warning("%s", error)
        except OSError as error:
            if self.root.exists():  # else somebody has removed the folder: nothing is left to move
                raise FileWriteError(f"out: {self._label}: {error.strerror or error}") from error
        finally:
            self._release()

    def close_left_over(self) -> None:
        """Close the store of a run that no `with` statement ends.

        The run has failed if it has not written `SUMMARY` itself: a run that is resumed may find
        the one of the earlier attempt.
        """
        self.close(ended=self._has_summary and self.marker.owns(SUMMARY, self.root))

    def _open_marker(self, overwrite: bool, inputs: Sequence[Path]) -> Marker:
        """Return the marker of this run: a new one, or that of the run that is resumed.

        A run that is replaced is moved aside first. If the run is resumed, `resumed` becomes True,
        and the run counts as not finished until it ends again.

        Args:
            overwrite: Whether a finished run, or one that could be resumed, is replaced.
            inputs: Files that the run reads.

        Returns:
            The marker, in the folder itself.

        Raises:
            InputError: The folder has visible files and no marker. Or its run is of another kind,
                has changed files, wrote one of `inputs`, or is not replaced without `overwrite`.
            OSError: The marker cannot be written, or a file cannot be moved.
        """
        earlier = Marker.read(self.root)
        self._refuse_foreign(earlier)
        if earlier is None:
            return Marker.create(self.root, self._header)
        kind, record = self._header["kind"], self._header.get("record")
        if earlier.kind != kind:
            raise InputError(
                f"out: {self._label} holds a run of `{make_printable(earlier.kind)}` "
                f"({make_printable(earlier.experiment)}), which `{kind}` does not replace; name "
                "another folder, or remove that one"
            )
        if changed := earlier.find_changed_files(self.root):
            raise InputError(
                f"out: {self._label} holds {_join_names(changed)}, changed since the run wrote it, "
                "so it is kept; move it away, or name another folder"
            )
        if record is not None and not overwrite and earlier.owns(record, self.root):
            # The run in the folder has the journal from which this one goes on. It may have
            # finished: further results are then added to it.
            self.resumed = True
            if earlier.finished:
                earlier.add(finished=False)
            return earlier
        results = [n for n in (earlier.record,) if n is not None and earlier.owns(n, self.root)]
        if earlier.finished and not results:
            results = sorted(earlier.find_owned_files(self.root))[:1]
        # Without `results` nothing is lost: the run has failed and cannot be resumed, or it has
        # finished and none of its files is left. It is replaced without asking.
        if results and not overwrite:
            raise InputError(
                f"out must be a new or an empty folder, but {self._label} holds {results[0]!r}; "
                "overwrite replaces the run in it"
            )
        for one in inputs:
            name = _name_below(one, self._roots())
            if name is not None and earlier.owns(name, self.root):
                raise InputError(
                    f"out: {self._label} holds {make_printable(name)}, which this run reads and "
                    "would replace; name another folder, or copy that file"
                )
        return self._replace(earlier)

    def _replace(self, earlier: Marker) -> Marker:
        """Return the marker of the new run, after the earlier one has been moved aside."""
        self._set_aside(earlier)
        try:
            if foreign := _list_foreign_names(self.root, earlier.folders):
                _LOG.warning("%s also holds %s, which stays", self._label, _join_names(foreign))
            return Marker.create(self.root, self._header)
        except BaseException:  # such as a full disk: the earlier run goes back
            self._recover()
            raise

    def _refuse_foreign(self, marker: Marker | None) -> None:
        """Check that the folder has a marker or no visible files.

        Args:
            marker: The marker of the folder, None if it has none.

        Raises:
            InputError: It has visible files that no run has written.
        """
        if marker is not None:
            return
        names = sorted(n for n in os.listdir(self.root) if not n.startswith("."))
        if names:
            raise InputError(
                f"out must be a new or an empty folder, but {self._label} holds {names[0]!r} and "
                f"no {MARKER}: it is no run that may be replaced, or one by an earlier version; "
                "name another folder, or remove it yourself"
            )

    def _replace_unattended(self) -> None:
        """Close the store that this process left open in the same folder, if there is one.

        An interactive session keeps objects of runs that have failed, and the lock does not keep a
        process from itself.

        Raises:
            InputError: The other run is inside its `with` statement, so it goes on.
            FileWriteError: The other store cannot be closed, see `close`.
        """
        other = _OPEN.get(self.root)
        if other is None or other._process != os.getpid():
            return
        if other.in_with_block:
            raise InputError(
                f"out: process {os.getpid()} on {platform.node()} is running into {self._label}; "
                "name another folder"
            )
        other.close_left_over()

    def _set_aside(self, earlier: Marker) -> None:
        """Move the files of the earlier run and its marker into `EARLIER`; undo it on an error.

        Args:
            earlier: Marker of the earlier run.

        Raises:
            InputError: `EARLIER` is there. `_recover` has left it, so it has foreign files.
            OSError: A file cannot be moved.
        """
        aside = self.root / EARLIER
        try:
            aside.mkdir()
        except FileExistsError as error:
            raise InputError(
                f"out: {self._label} holds files in {EARLIER} that no run has written; move them "
                "away, or name another folder"
            ) from error
        try:
            move_run(earlier, self.root, aside)
        except BaseException:
            self._recover()
            raise

    def _recover(self) -> None:
        """Complete or undo the moves of a run that ended, failed or was killed.

        The earlier run in `EARLIER` is removed if the run that replaced it has finished. Otherwise
        it is moved back, after the files of the failed run were moved or removed (`_withdraw`).
        Nothing is done if no run is set aside.

        Raises:
            InputError: Foreign files are in the way, or a marker is unreadable; then no file of a
                run is moved.
            OSError: A file cannot be moved or removed, though no other file has its new name.
        """
        aside = self.root / EARLIER
        if not aside.is_dir() or aside.is_symlink():
            return
        outside, inside = self.root / MARKER, aside / MARKER
        if outside.exists() and inside.exists() and outside.samefile(inside):
            # Killed between link and unlink of the marker's own move, in either direction: both
            # names are one file. Without the name inside, the next lines move back the files that
            # are still inside. After a move aside these are all, after a move back there are none.
            inside.unlink()
        current, earlier = Marker.read(self.root), Marker.read(aside)
        if earlier is None:
            # Killed while the earlier run was moved aside: its marker is still outside, so it is
            # `current`. Or killed after all of it was removed: nothing is left to move.
            if current is not None:
                _check_way_is_free(current, aside, self.root)
                move_files(current, aside, self.root)
        elif current is not None and current.finished:
            # The run that replaced the earlier one has ended without an error.
            remove_run(earlier, aside)
        else:
            # That run has failed, was killed, or has not listed itself yet.
            _check_way_is_free(earlier, aside, self.root, current)
            if current is None:
                outside.unlink(missing_ok=True)  # the start of a marker, cut off by a kill
            kept = None if current is None else self._withdraw(current)
            move_run(earlier, aside, self.root)
            also = "" if kept is None else f"; that of the run that was stopped is in {kept}"
            _LOG.warning("the earlier run is back in %s%s", self._label, also)
        _remove_empty_tree(aside)

    def _withdraw(self, current: Marker) -> str | None:
        """Take a run that has failed out of the folder, so that the earlier one can come back.

        If its journal has results, all files that it owns move to a folder `interrupted-...`, from
        which it can be resumed. Otherwise they are removed.

        Args:
            current: Marker of the run that has failed.

        Returns:
            The path of the folder `interrupted-...` as messages show it, None if there is none.

        Raises:
            InputError: Foreign files are in the folder `interrupted-...` under names of the run.
            OSError: A file cannot be moved or removed.
        """
        if current.interrupted is None:
            if not self._has_results(current):
                remove_run(current, self.root)
                return None
            name = f"interrupted-{datetime.now():%Y%m%d-%H%M%S-%f}"
            # Listed before the move: if that is killed, the next start completes it.
            current.add(interrupted=name)
        assert current.interrupted is not None
        # A folder that is there already is that of a move which was killed.
        target = self.root / current.interrupted
        target.mkdir(exist_ok=True)
        _check_way_is_free(current, self.root, target)
        move_run(current, self.root, target)
        return f"{self._label}/{target.name}"

    def _has_results(self, marker: Marker) -> bool:
        """Return whether the journal of a run has more than its header, which is one line."""
        record = marker.record
        if record is None or not marker.owns(record, self.root):
            return False
        return (self.root / record).read_bytes().count(b"\n") > 1

    def _check_free(self, name: str) -> None:
        """Check that this run may write a file of a name.

        Raises:
            FileWriteError: The name is in use by a foreign file, or one of its folders is a link.
        """
        path = self.root / name
        if passes_link(self.root, name) or (
            os.path.lexists(path) and not self.marker.owns(name, self.root)
        ):
            raise FileWriteError(
                f"{make_printable(str(path))} was not written by this run, so it is not "
                "overwritten; move it away, or name another folder"
            )

    def _find_relative_name(self, path: Path) -> str:
        """Return the name of a file relative to the folder, in which it must be."""
        name = _name_below(path, self._roots())
        assert name is not None
        return name

    def _roots(self) -> tuple[Path, Path]:
        """Return the absolute path of the folder without links, and as it was given."""
        return self.root, self._given


_OPEN: dict[Path, RunStore] = {}
"""Stores of this process that are not closed, by their `root`.

A forked process has those of its parent, so that the files that it writes are listed, too."""


def find_store(path: Path) -> RunStore | None:
    """Return the open store whose folder a path lies in.

    Args:
        path: A file or a folder, which need not be there.

    Returns:
        The store, the innermost of several, or None if the path lies in no folder of an open run.
    """
    found = [store for store in list(_OPEN.values()) if _name_below(path, store._roots())]
    return max(found, key=lambda store: len(store.root.parts), default=None)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check that a path is no foreign file in the folder of an open run.

    Args:
        path: Any path; one outside of all these folders is accepted.

    Raises:
        FileWriteError: The path is there and foreign, or one of its folders is a link.
    """
    checked = check_path("path", path)
    store = find_store(checked)
    if store is not None:
        store.check_writable(checked)


def _name_below(path: Path, roots: tuple[Path, Path]) -> str | None:
    """Return the name of a path relative to the root that it lies below, None without one.

    The path is compared as it is written, then with the links of its folders resolved. A link under
    its last part is never followed: it is the link that would be overwritten.
    """
    for place in (Path(os.path.abspath(path)), Path(os.path.realpath(path.parent)) / path.name):
        for root in roots:
            if place != root and place.is_relative_to(root):
                return place.relative_to(root).as_posix()
    return None


def _check_way_is_free(
    marker: Marker, source: Path, target: Path, leaving: Marker | None = None
) -> None:
    """Check that no foreign files stand where files of a run are to move.

    Args:
        marker: Marker of the run.
        source: Folder in which its files are.
        target: Folder to which they move.
        leaving: Marker of a run whose files leave `target` first, so that they are not in the way.

    Raises:
        InputError: Some do; the message names them.
    """
    blocked = []
    for name in marker.find_owned_files(source):
        path = target / name
        # The two names are of one file if a move was killed between link and unlink.
        free = not os.path.lexists(path) or os.path.samestat(path.lstat(), (source / name).lstat())
        leaves = leaving is not None and leaving.owns(name, target)
        above = [target / folder for folder in PurePosixPath(name).parents[:-1]]
        open_way = all(not os.path.lexists(p) or (p.is_dir() and not p.is_symlink()) for p in above)
        if not open_way or not (free or leaves):
            blocked.append(name)
    if blocked:
        way = "go back" if source.name == EARLIER else f"move to {make_printable(str(target))}"
        raise InputError(
            f"out: the run in {make_printable(str(source))} cannot {way}, as "
            f"{_join_names(blocked)} is in its way; move that away"
        )


def _remove_empty_tree(folder: Path) -> None:
    """Remove the folders below a folder and itself, as far as they have no files."""
    for place, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            os.rmdir(place)


def _list_foreign_names(root: Path, own_folders: list[str], below: str = "") -> list[str]:
    """Return the names of all that is left in a folder after the files of its run have moved.

    Args:
        root: The folder.
        own_folders: Folders that the run made. Their content is named in place of themselves.
        below: Folder below `root` to look into, with a "/" at its end; "" for `root`.
    """
    names: list[str] = []
    for entry in sorted(os.scandir(root / below), key=lambda entry: entry.name):
        name = f"{below}{entry.name}"
        if name in OWN_NAMES:
            continue
        if name in own_folders and entry.is_dir(follow_symlinks=False):
            names += _list_foreign_names(root, own_folders, f"{name}/")
        else:
            names.append(name)
    return names


def _join_names(names: Sequence[str]) -> str:
    """Return names of files as text for a message."""
    return join_names([make_printable(name) for name in names], _MAX_LISTED_FILES)


def _lock_folder(root: Path, shown: str) -> Callable[[], None]:
    """Keep other processes out of a folder, and return the function that lets them in.

    The lock is a POSIX one: it is of the process, so another thread of it is not kept out, and it
    ends with the process. On a file system without locks nobody is kept out.

    Args:
        root: Folder in which the lock file is made.
        shown: The folder as messages name it.

    Returns:
        A function without arguments that removes the lock file and the lock.

    Raises:
        InputError: Another process has locked the folder, or a foreign file or a link has the name
            of the lock.
        OSError: The lock file cannot be opened or written.
    """
    path = root / LOCK
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise InputError(f"out: {path} is a link; move it away") from error
            raise
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = os.read(file, 200).decode(errors="replace").removeprefix(_LOCK_TEXT)
            os.close(file)
            raise InputError(
                f"out: process {make_printable(holder)} is running into {shown}; wait for its end, "
                "or name another folder"
            ) from error
        except OSError:  # a file system without locks
            break
        # The last holder may have removed the file between open and lock. Then the lock is of a
        # file without a name, or of another file than the next process opens: try again.
        try:
            if os.path.samestat(os.fstat(file), path.lstat()):
                break
        except FileNotFoundError:
            pass
        os.close(file)
    if (content := os.read(file, 200)) and not content.startswith(_LOCK_TEXT.encode()):
        os.close(file)
        raise InputError(f"out: {path} is no lock of hybridctl; move it away")
    os.ftruncate(file, 0)
    os.pwrite(file, f"{_LOCK_TEXT}{os.getpid()} on {platform.node()}".encode(), 0)

    def release_lock() -> None:
        path.unlink(missing_ok=True)
        os.close(file)

    return release_lock
