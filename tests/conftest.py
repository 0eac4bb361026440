"""What holds for all tests.

Random cases are drawn the same on every run: a failure found once is found again. Generated
functions are kept in a directory of this run, which its processes share, not in that of the user.
"""

import os
from tempfile import TemporaryDirectory

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # the process that starts the workers
        directory = TemporaryDirectory(prefix="hybridctl-")
        config.add_cleanup(directory.cleanup)
        os.environ["HYBRIDCTL_CACHE"] = directory.name
