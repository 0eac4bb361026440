"""What several tests of experiments start from."""

import pytest


@pytest.fixture(scope="session")
def gait():
    """The gait of `biped-walk`, found once."""
    from hybridctl.experiments.walking import biped_walk

    config = biped_walk.Config()
    return biped_walk.find_gait(config, config.speed)
