"""Functions kept on disk are code: what others could have written, or is damaged, is not run.

Each case compares values with the interpreted function. What is loaded, and what is left in
folders, is looked at beside them.
"""

import os
import pickle
import shutil
import tempfile
import threading

import casadi as ca
import numpy as np
import pytest

from hybridctl.base import function_cache
from hybridctl.base.errors import FileWriteError, InputError
from hybridctl.base.function_cache import compile_function, load_or_build, make_key
from hybridctl.symbolic.compiled_function import (
    BatchedFunction,
    CompiledFunction,
    build_transposed_function,
)

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")
X = np.array([0.3, -2.0, 5.0])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of kept functions, and a process that has reported nothing."""
    monkeypatch.setenv("HYBRIDCTL_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(function_cache, "_REPORTED", set())
    function_cache._read_function.cache_clear()
    return tmp_path / "kept"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A temporary folder of the system that nobody else writes."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def function():
    x = ca.SX.sym("x", 3)
    return build_transposed_function("squares", [x], [x * x + 1.0])


def assert_right(made):
    np.testing.assert_array_equal(CompiledFunction(made, [(3,)])(X)[0], X * X + 1.0)


def is_machine_code(made):
    return made.class_name() == "External"


def cut(path, other):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path, other):
    path.write_bytes(b"")


def replace(path, other):
    path.write_bytes(other.read_bytes())


def link(path, other):
    path.rename(other)
    path.symlink_to(other)


def open_to_the_group(path, other):
    path.chmod(0o664)


DAMAGES = [
    (cut, "damaged"),
    (empty, "damaged"),
    (replace, "damaged"),
    pytest.param(link, "", marks=posix),  # in words of the system
    pytest.param(open_to_the_group, "written by others", marks=posix),
]


@needs_compiler
@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
@pytest.mark.parametrize("suffix", ["so", pytest.param("native", marks=pytest.mark.slow)])
def test_a_library_that_cannot_be_trusted_is_compiled_again(
    damage, reason, suffix, folder, tmp_path, caplog
):
    """A library cut in half would end the process by SIGBUS; others would run their own code."""
    compile_function(function())
    (path,) = folder.glob(f"*.{suffix}")
    before = path.stat().st_ino
    (tmp_path / "other").write_bytes(b"\x7fELF, of somebody else")
    damage(path, tmp_path / "other")
    made = compile_function(function())
    assert is_machine_code(made)
    assert_right(made)
    (line,) = caplog.messages
    assert str(folder) in line
    assert reason in line
    (again,) = folder.glob(f"*.{suffix}")
    assert again.stat().st_ino != before
    assert not again.is_symlink()
    caplog.clear()
    assert_right(compile_function(function()))  # of the new files, without a word
    assert not caplog.messages


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_an_expression_that_cannot_be_trusted_is_made_again(
    damage, reason, folder, tmp_path, caplog
):
    made = []
    build = lambda: (made.append(1), function())[1]  # noqa: E731
    load_or_build("key", build)
    (tmp_path / "other").write_text("0\nof somebody else")
    damage(folder / "key.casadi", tmp_path / "other")
    function_cache._read_function.cache_clear()
    for _ in range(2):
        assert_right(load_or_build("key", build))
    assert len(made) == 2
    (line,) = caplog.messages
    assert reason in line


@needs_compiler
@posix
def test_a_folder_that_others_can_write_is_not_used(folder, temporary, caplog):
    """Nothing in it is read, nothing is written there, and there is one line for all functions."""
    compile_function(function())
    load_or_build("key", function)
    folder.chmod(0o777)
    for path in folder.iterdir():
        path.write_bytes(b"not to be loaded")
    for made in (
        compile_function(function()),
        compile_function(function()),
        load_or_build("key", function),
    ):
        assert_right(made)
    assert {path.read_bytes() for path in folder.iterdir()} == {b"not to be loaded"}
    (line,) = caplog.messages
    assert "can be written by others" in line
    assert "chmod go-w" in line
    assert list(temporary.iterdir()) == []


@needs_compiler
@posix
def test_a_folder_of_another_user_is_not_used(folder, temporary, monkeypatch, caplog):
    compile_function(function())
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    made = compile_function(function())
    assert is_machine_code(made)
    assert_right(made)
    (line,) = caplog.messages
    assert "belongs to another user" in line
    assert list(temporary.iterdir()) == []


@needs_compiler
def test_without_a_folder_libraries_leave_nothing(folder, temporary, monkeypatch, caplog):
    """`off` says so; a file where the folder should be has a line in the log."""
    for setting, lines in (("off", 0), (str(folder / "file" / "kept"), 1)):
        monkeypatch.setenv("HYBRIDCTL_CACHE", setting)
        folder.mkdir(exist_ok=True)
        (folder / "file").write_text("")
        made = compile_function(function())
        assert is_machine_code(made)
        assert_right(made)
        assert_right(load_or_build("key", function))
        assert list(temporary.iterdir()) == []
        assert len(caplog.messages) == lines


@needs_compiler
def test_what_cannot_be_written_is_used_all_the_same(folder, temporary, monkeypatch, caplog):
    """As where the disk is full, or the folder is one to read."""

    def full(path):
        raise FileWriteError(f"{path} cannot be written: No space left on device")

    monkeypatch.setattr(function_cache, "atomic", full)
    assert_right(compile_function(function()))
    assert_right(load_or_build("key", function))
    assert list(temporary.iterdir()) == []
    assert list(folder.iterdir()) == []
    (line,) = caplog.messages
    assert "No space left" in line


@posix
def test_a_compiler_without_space_leaves_the_interpreter(tmp_path, monkeypatch, caplog):
    """Another failure of the compiler is an error: machine code was asked for."""
    compiler = tmp_path / "compiler"
    monkeypatch.setenv("CC", str(compiler))
    compiler.write_text('#!/bin/sh\necho "motion.c: No space left on device" >&2\nexit 1\n')
    compiler.chmod(0o755)
    made = compile_function(function())
    assert not is_machine_code(made)
    assert_right(made)
    assert "interpreted" in caplog.text
    compiler.write_text('#!/bin/sh\necho "no such header" >&2\nexit 1\n')
    with pytest.raises(InputError, match="no such header"):
        compile_function(function())


@posix
def test_a_library_that_cannot_be_loaded_leaves_the_interpreter(tmp_path, monkeypatch, caplog):
    """As where files may not be executed: here it is no library at all."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho nothing > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    made = compile_function(function())
    assert not is_machine_code(made)
    assert_right(made)
    assert len(caplog.messages) == 1


@needs_compiler
def test_machine_code_is_pickled_as_its_source(folder, monkeypatch, caplog):
    """The library may be gone, or be another's, where it is read: it is made anew there."""
    values = CompiledFunction(compile_function(function()), [(3,)])
    numbers = ca.SX.sym("x", 3), ca.SX.sym("p", 3)
    with_numbers = compile_function(
        build_transposed_function("products", numbers, [numbers[0] * numbers[1]])
    )
    mapped = CompiledFunction(with_numbers, [(3,)], np.array([1.0, 2.0, 3.0])).build_batched()
    np.testing.assert_array_equal(mapped(X[None])[0], X[None] * [1.0, 2.0, 3.0])
    text = pickle.dumps((values, mapped))
    shutil.rmtree(folder)
    again, mapped_again = pickle.loads(text)
    np.testing.assert_array_equal(again(X)[0], X * X + 1.0)
    np.testing.assert_array_equal(mapped_again(X[None])[0], X[None] * [1.0, 2.0, 3.0])
    assert isinstance(mapped_again, BatchedFunction)
    assert len(list(folder.glob("*.so"))) == 2
    monkeypatch.setenv("CC", "no-such-compiler")
    np.testing.assert_array_equal(pickle.loads(text)[0](X)[0], X * X + 1.0)
    assert "interpreted" in caplog.text


@needs_compiler
def test_builds_at_the_same_time_leave_files_that_fit(folder, caplog):
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(compile_function(function()))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 3
    for each in (*made, compile_function(function())):
        assert_right(each)
    assert not caplog.messages
    assert {path.suffix for path in folder.iterdir()} == {".so", ".native"}


@posix
def test_folder_and_files_are_private_whatever_the_umask(folder):
    mask = os.umask(0o002)
    try:
        load_or_build("key", function)
    finally:
        os.umask(mask)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "key.casadi").stat().st_mode & 0o777 == 0o600


@posix
def test_the_folder_of_the_user_is_made_private(tmp_path, monkeypatch, caplog):
    """Earlier versions made it by the umask, so that a group could write it."""
    monkeypatch.delenv("HYBRIDCTL_CACHE")
    monkeypatch.setattr(
        function_cache.platformdirs, "user_cache_path", lambda name: tmp_path / name
    )
    (tmp_path / "hybridctl").mkdir()
    (tmp_path / "hybridctl").chmod(0o775)
    assert_right(load_or_build("key", function))
    assert (tmp_path / "hybridctl").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "hybridctl" / "key.casadi").exists()
    assert not caplog.messages


@posix
def test_a_pipe_in_place_of_a_function_is_not_waited_for(folder, caplog):
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / "key.casadi", 0o600)
    assert_right(load_or_build("key", function))
    assert "no regular file" in caplog.text


def test_keys_tell_types_and_levels_of_sequences_apart():
    parts = [(1, 2), [1, 2], ((1, 2),), (1, (2,)), np.array([1, 2]), np.array([1, 2], object)]
    assert len({make_key(part) for part in parts}) == len(parts)


def test_keys_of_equal_arrays_of_objects_are_equal():
    """Bytes of such arrays are addresses."""
    first, again, other = (np.array([int(f"1{end:030d}")], object) for end in (0, 0, 1))
    assert first[0] is not again[0]
    assert make_key(first) == make_key(again) != make_key(other)


@needs_compiler
def test_a_compilation_of_more_than_a_second_is_announced(monkeypatch, caplog):
    """Before it begins, and not where the library is kept."""
    monkeypatch.setattr(function_cache, "_SECONDS_OF_INSTRUCTION", 1.0)
    assert_right(compile_function(function()))
    (line,) = caplog.messages
    assert "compiling squares" in line
    caplog.clear()
    assert_right(compile_function(function()))
    assert not caplog.messages
