"""Executors for work in many parts, where users import them from.

They are defined in `hybridctl.base.workers`.
"""

from hybridctl.base.workers import Crew as Crew
from hybridctl.base.workers import crew as crew
