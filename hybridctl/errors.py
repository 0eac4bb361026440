"""The errors and warnings of hybridctl, where users import them from.

They are defined in `hybridctl.base.errors`.
"""

from hybridctl.base.errors import *  # noqa: F403
