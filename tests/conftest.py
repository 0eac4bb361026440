"""Random cases are drawn the same on every run: a failure found once is found again."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
