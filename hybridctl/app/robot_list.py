"""The legged robots whose files come with hybridctl, by name; nothing is imported for them."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def list_robot_files() -> dict[str, Path]:
    """Return the YAML files of legged robots that come with hybridctl, by name."""
    # They are data in the folder `robots/legged`: nothing is imported.
    spec = importlib.util.find_spec("hybridctl.robots")
    if spec is None or spec.origin is None:
        return {}  # an installation without robots
    return {
        path.stem: path for path in sorted((Path(spec.origin).parent / "legged").glob("*.yaml"))
    }


def is_robot(text: str) -> bool:
    """Return whether a text names the YAML file of a robot, or a robot that `list` shows."""
    return Path(text).suffix in (".yaml", ".yml") or text in list_robot_files()
