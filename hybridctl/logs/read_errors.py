"""Errors of reading and writing log files: damaged files, sizes, packages that are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybridctl.base.errors import FileFormatError, HybridctlError, InputError

MAX_BYTES = 4 * 2**30
"""Largest content in bytes that is read into memory. The value is a choice."""
_SHOWN_CHARACTERS_OF_ERROR = 200
"""Characters of a library's message that an error quotes."""


def describe_excess(path: Path, what: str, size: int) -> str:
    """Return the text of the error for a declared size that a file cannot or should not have.

    Args:
        path: The file.
        what: What is too large, such as "the content".
        size: Its declared size in bytes.
    """
    return (
        f"{path}: {what} is declared as {size} bytes, more than the file can hold or the limit of "
        f"{MAX_BYTES}"
    )


@contextmanager
def name_file_in_errors(path: Path, kind: str) -> Iterator[None]:
    """Turn all exceptions of a reader into one line that names the file.

    Libraries that parse binary formats raise nearly anything on damaged files.

    Args:
        path: The file.
        kind: Its format in words, such as "an HDF5 file".

    Raises:
        FileFormatError: Anything was raised inside.
        HybridctlError: An error that names the file already was raised inside; it is unchanged.
    """
    try:
        yield
    except HybridctlError as error:
        if str(path) in str(error):
            raise
        raise FileFormatError(f"{path}: {error}") from error
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0][:_SHOWN_CHARACTERS_OF_ERROR] if lines else ""
        raise FileFormatError(
            f"{path}: damaged, or not {kind} after all ({type(error).__name__}: {reason})"
        ) from error


@contextmanager
def require_package(path: Path, kind: str, package: str, extra: str) -> Iterator[None]:
    """Turn an `ImportError` inside into an error that says which package to install.

    Args:
        path: The file that needs the package.
        kind: Its format, such as "HDF5".
        package: Name of the package.
        extra: Extra of hybridctl that installs it.

    Raises:
        InputError: An import inside fails.
    """
    try:
        yield
    except ImportError as error:
        raise InputError(describe_missing_package(path, kind, package, extra)) from error


def describe_missing_package(path: Path, kind: str, package: str, extra: str) -> str:
    """Return the text of the error for a package that is missing, with the remedy.

    Args:
        path: The file that needs the package.
        kind: Its format, such as "HDF5".
        package: Name of the package.
        extra: Extra of hybridctl that installs it.
    """
    return (
        f"{path}: reading or writing {kind} needs the package {package}; install it with "
        f'pip install "hybridctl[{extra}]"'
    )
