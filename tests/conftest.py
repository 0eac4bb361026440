"""What holds for all tests.

Random cases are drawn the same on every run: a failure found once is found again. Generated
functions are kept in a directory of this run, which its processes share, not in that of the user.
None are compiled beside tests, which would take their time.
"""

import os
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # the process that starts the workers
        directory = TemporaryDirectory(prefix="hybridctl-")
        config.add_cleanup(directory.cleanup)
        os.environ["HYBRIDCTL_CACHE"] = directory.name
        os.environ["HYBRIDCTL_COMPILE"] = "off"


@pytest.fixture(scope="session")
def processes():
    """An executor of two processes that have nothing but what is sent to them.

    They are there for all tests, as each of them imports for some seconds.
    """
    from hybridctl.base.workers import crew

    with crew(2) as two:
        yield two.pool


@pytest.fixture
def undrawn(monkeypatch):
    """Runs draw no figures, which take the most time of short ones."""
    from hybridctl.base.run_folder import RunFolder

    never = property(lambda folder: False, lambda folder, wanted: None)
    monkeypatch.setattr(RunFolder, "draws", never, raising=False)
