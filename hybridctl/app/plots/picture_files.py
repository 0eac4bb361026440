"""Files of figures: pixels and vectors, drawn one by one or in several processes at once."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from hybridctl.base.checks import check_member, check_path
from hybridctl.base.errors import FileWriteError
from hybridctl.base.files import atomic
from hybridctl.base.run_store import find_store

_DPI = 130
_CREATOR = "hybridctl"  # in each .svg, by which it is known when it is overwritten
_HEAD_BYTES = 4096  # of an .svg or a .json in which its writer is looked for


def save_figure(
    figure: Figure, path: str | os.PathLike[str], *, beside: Sequence[str] = ()
) -> None:
    """Save a figure as pixels at `path`, a .png, and as vectors in the .svg beside it.

    Args:
        figure: Figure to save.
        path: File of the pixels, which is overwritten if it is there.
        beside: Suffixes of other files that the caller is going to write beside it.

    Raises:
        UnknownNameError: Figures cannot be written with the suffix of the path.
        FileWriteError: A file beside `path` is there that was not written with a figure; nothing
            is written then.
    """
    path, known = check_path("path", path), figure.canvas.get_supported_filetypes()
    check_member("suffix of path", path.suffix.removeprefix(".").lower() or "png", tuple(known))
    for suffix in (".svg", *beside):
        check_beside(path.with_suffix(suffix), path)
    queue = _QUEUE.get()
    if queue is not None and path.suffix.lower() == ".png":
        queue.begin(figure, path)
        return
    with atomic(path) as pixels, atomic(path.with_suffix(".svg")) as vectors:
        _draw_files(figure, pixels, vectors)


def _draw_files(figure: Figure, pixels: Path, vectors: Path) -> None:
    """Write a figure as pixels and as vectors.

    Args:
        figure: The figure.
        pixels: File of any suffix that figures have.
        vectors: File of SVG.
    """
    figure.set_dpi(_DPI)
    if pixels.suffix.lower() == ".png":
        # `savefig` draws a figure twice, the first time for the layout, which is found here anyway.
        canvas: Any = FigureCanvasAgg(figure)  # its writers have no types
        canvas.print_png(pixels)
    else:
        figure.savefig(pixels, dpi=_DPI)
    layout = figure.get_layout_engine()
    figure.set_layout_engine("none")  # that of the pixels stays, and is not found again
    plain = {"Date": None, "Creator": _CREATOR, "Format": None, "Type": None}
    with mpl.rc_context({"svg.hashsalt": "hybridctl"}):
        drawing: Any = FigureCanvasSVG(figure)
        drawing.print_svg(vectors, metadata=plain)
    figure.set_dpi(_DPI)
    figure.set_layout_engine(layout)
    FigureCanvasAgg(figure)


class _PictureQueue:
    """Draws figures in processes of their own, as many at once as there are processors.

    Life cycle: `begin` starts a process for a figure, or waits until one has ended. `finish` waits
    for all, and moves their files to their places, so that these are written by this process.

    Args:
        folder: Folder for files that are being drawn.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._drawn = folder, list[tuple[int, Figure, Path]]()
        self._most = os.cpu_count() or 1
        # What drawing remembers of fonts is remembered here once, and not by each process anew.
        warm = Figure(figsize=(1.0, 1.0))
        warm.subplots().set_title("1")
        with BytesIO() as pixels, BytesIO() as vectors:
            warm.savefig(pixels, format="png", dpi=_DPI)
            warm.savefig(vectors, format="svg")

    def begin(self, figure: Figure, path: Path) -> None:
        """Start to draw a figure.

        Args:
            figure: The figure, which is not changed any more.
            path: File of its pixels; the vectors go beside it.
        """
        while len(self._drawn) >= self._most:
            self._place(*self._drawn.pop(0))
        with warnings.catch_warnings():
            # Of forks beside threads: the child takes none of their locks, as it only draws.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child:
            self._drawn.append((child, figure, path))
            return
        failed = 1
        try:
            _draw_files(figure, *self._list_files(os.getpid()))
            failed = 0
        finally:
            os._exit(failed)  # nothing of the parent is to be cleaned up by its copy

    def finish(self) -> None:
        """Wait for all figures, and put their files into their places."""
        while self._drawn:
            self._place(*self._drawn.pop(0))

    def _list_files(self, child: int) -> tuple[Path, Path]:
        """Return the files of pixels and of vectors that a process draws."""
        return self._folder / f"{child}.png", self._folder / f"{child}.svg"

    def _place(self, child: int, figure: Figure, path: Path) -> None:
        """Wait for the process of a figure, and put its files into their places."""
        _, status = os.waitpid(child, 0)
        with atomic(path) as pixels, atomic(path.with_suffix(".svg")) as vectors:
            if status:  # it was killed, or has failed: this process says why
                _draw_files(figure, pixels, vectors)
                return
            for source, target in zip(self._list_files(child), (pixels, vectors), strict=True):
                target.write_bytes(source.read_bytes())


_QUEUE: ContextVar[_PictureQueue | None] = ContextVar("queue", default=None)


@contextmanager
def draw_in_parallel() -> Iterator[None]:
    """Draw the figures that the block saves as .png in several processes.

    They are there when the block ends. Other systems than Linux draw them one by one: there a
    process that is forked beside threads may not go on.
    """
    if sys.platform != "linux" or (os.cpu_count() or 1) < 2 or _QUEUE.get() is not None:
        yield
        return
    with TemporaryDirectory(prefix="hybridctl-") as folder:
        queue = _PictureQueue(Path(folder))
        token = _QUEUE.set(queue)
        try:
            yield
        finally:
            _QUEUE.reset(token)
            queue.finish()


def check_beside(path: Path, named: Path) -> None:
    """Check that no file that the user did not name is overwritten.

    Args:
        path: File beside a figure, .svg or .json.
        named: File of the figure, which the user named; it may be `path` itself.

    Raises:
        FileWriteError: The file is there, and was not written with a figure.
    """
    # in the folder of a run its marker tells whose a file is
    if path == named or not os.path.lexists(path) or find_store(path) is not None:
        return
    start = b""
    if path.is_file() and not path.is_symlink():
        with path.open("rb") as file:
            start = file.read(_HEAD_BYTES)
    signs = {
        ".svg": (b"<dc:creator>", f">{_CREATOR}<".encode()),
        ".json": (b'{"title": ', b'"xlabel": ', b'"xlog": ', b'"bands": '),
    }
    if not all(sign in start for sign in signs[path.suffix]):
        raise FileWriteError(
            f"{path} would be overwritten with the figure {named.name}, but does not say that "
            "hybridctl wrote it, which figures of earlier versions do not either; move it away, or "
            "name another figure"
        )
