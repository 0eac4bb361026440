"""One HTML file of a page: written, shown in the browser or in a notebook, kept or removed."""

from __future__ import annotations

import os
import webbrowser
from html import escape
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar

from hybridctl.base.checks import check_member, check_path
from hybridctl.base.errors import FileWriteError
from hybridctl.base.files import atomic

Page = TypeVar("Page", bound="HtmlFile")
GENERATOR = '<meta name="generator" content="hybridctl">'
"""Line in the head of each page, by which it is known when it is replaced."""


_HEAD_BYTES = 4096  # of a page, in which it says who wrote it


def check_replaceable(path: Path) -> None:
    """Check that a path is free, or a page of hybridctl.

    Args:
        path: File that a page is going to replace.

    Raises:
        FileWriteError: Something else is there.
    """
    if not os.path.lexists(path):
        return
    start = b""
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(_HEAD_BYTES)
    if GENERATOR.encode() not in start:
        raise FileWriteError(
            f"{path} is no page that hybridctl has written, so it is kept: name another file"
        )


class HtmlFile:
    """One HTML file that needs no network and no server.

    Life cycle: the file is written when the object is made. `open` shows it in the browser, a
    notebook shows it as the last line of a cell, and `close` removes it if it is temporary.

    Args:
        content: The whole page.
        path: File to write, .html or .htm, which is overwritten if it is there. If None, a new one
            among the temporary files.

    Attributes:
        content: The whole page.
        path: The file.

    Raises:
        FileWriteError: The file cannot be written.
        UnknownNameError: The file has another suffix.
    """

    def __init__(self, content: str, path: str | os.PathLike[str] | None) -> None:
        self.content, self._is_temporary = content, path is None
        if path is None:
            self.path = Path(mkdtemp(prefix="hybridctl-")) / "page.html"
        else:
            self.path = check_path("path", path)
            # A page is not to replace a URDF or a run by a slip.
            check_member("suffix of path", self.path.suffix.lower(), (".html", ".htm"))
        with atomic(self.path) as temporary:
            temporary.write_text(content, encoding="utf-8")

    @property
    def address(self) -> str:
        """The address at which a browser of this machine finds the page."""
        return self.path.resolve().as_uri()

    def open(self) -> bool:
        """Show the page in the browser.

        Returns:
            Whether a browser was found.
        """
        return webbrowser.open(self.address)

    def close(self) -> None:
        """Remove the page if it is among the temporary files."""
        if self._is_temporary and self.path.exists():
            self.path.unlink()
            self.path.parent.rmdir()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}; open() shows it)"

    def __enter__(self: Page) -> Page:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        # Inside the notebook, which may be far from the file.
        return f'<iframe srcdoc="{escape(self.content)}" width="100%" height="800"></iframe>'
