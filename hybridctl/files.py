"""Files that are either written whole or not at all, and arrays in JSON files."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `path` that replaces it when the block ends without an error.

    The temporary file keeps the suffix of `path`, for writers that choose a format by it.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.stem}-{uuid4().hex}{target.suffix}")
    try:
        temporary.touch(exist_ok=False)  # with the permissions of an ordinary new file
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def packed(values: ArrayLike) -> dict[str, Any]:
    """An array for JSON that is drawn: its shape, and 32-bit numbers, little-endian, in base64."""
    array = np.asarray(values, dtype="<f4")
    return {"shape": list(array.shape), "float32": b64encode(array.tobytes()).decode("ascii")}
