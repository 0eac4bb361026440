"""The models of `hybridctl filter` and `hybridctl record`, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridctl.experiments.filtering.door import DoorSettings, door_model
from hybridctl.experiments.filtering.model import FilterModel, Settings
from hybridctl.experiments.filtering.objects import (
    BallSettings,
    BlockSettings,
    CubeSettings,
    ball_model,
    block_model,
    cube_model,
)

from hybridctl.checks import member
from hybridctl.report import load_configuration


@dataclass(frozen=True)
class Kind:
    """Settings of a model, and the model that they make."""

    settings: type[Settings]
    make: Callable[[Any], FilterModel]


KINDS = {
    "ball": Kind(BallSettings, ball_model),
    "block": Kind(BlockSettings, block_model),
    "cube": Kind(CubeSettings, cube_model),
    "door": Kind(DoorSettings, door_model),
}


def load_settings(
    model: str, file: str | Path | None = None, assignments: Sequence[str] = ()
) -> Settings:
    """The settings of a model, from a JSON file and `key=value`, see `load_configuration`."""
    kind = KINDS[member("model", model, KINDS)]
    return load_configuration(kind.settings, file, assignments)


def make_model(model: str, settings: Settings) -> FilterModel:
    """The model of these settings."""
    return KINDS[member("model", model, KINDS)].make(settings)
