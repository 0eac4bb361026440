"""How a run is drawn: `hybridctl/__init__.py` says it, since runs know nothing of figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

states: Callable[..., Any]  # of a run, a path or None, and names; returns the figure
