"""Files that are read: what no file can be, digests of them, and those that settings name."""

import hashlib
from pathlib import Path

import pytest

from hybridctl.base.digests import hash_bytes, hash_file
from hybridctl.base.errors import FileFormatError
from hybridctl.base.files import find_named_files, read_text


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "", "no/such/file"])
def test_a_path_that_names_no_file_is_an_error_of_the_file(path):
    """A zero byte is a `ValueError` of Python, too long a name an `OSError` of the system."""
    with pytest.raises(FileFormatError, match=r"urdf .*cannot be read"):
        read_text("urdf", path)


def test_the_digest_of_a_start_is_that_of_its_bytes(tmp_path):
    """Also beyond the 1 MiB that is read at a time, and not beyond the end of the file."""
    content = b"0123456789" * 150_000
    path = tmp_path / "data"
    path.write_bytes(content)
    for size in (0, 1, 2**20, 2**20 + 1, len(content), len(content) + 5):
        assert hash_file(path, size) == hashlib.sha256(content[:size]).hexdigest()
    assert hash_file(path) == hash_bytes(content)


def test_files_are_named_by_texts_and_paths_within_settings(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    text, path = str(tmp_path / "a"), tmp_path / "b"
    settings = {"model": text, text: 3.0, "more": [(path, "\0"), {"no": str(tmp_path)}, None]}
    assert find_named_files(settings) == {text: Path(text), str(path): path}
    assert find_named_files(3.0) == find_named_files("") == {}
