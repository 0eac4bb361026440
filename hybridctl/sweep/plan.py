"""What a sweep runs: one unit for each combination of settings and each seed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np

from hybridctl.checks import count, did_you_mean
from hybridctl.errors import InputError, UnknownNameError
from hybridctl.models import experiment_module, from_anywhere
from hybridctl.report import build_configuration

Settings = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """One run: the settings that vary, with the seed among them, and all settings.

    Its results depend on the experiment and the settings alone.
    """

    experiment: str
    varied: Settings
    settings: Settings

    @property
    def key(self) -> str:
        """A name for the file of its results: the same for the same settings."""
        content = json.dumps([self.experiment, self.settings], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:20]

    @property
    def label(self) -> str:
        """What varies, in words."""
        return ", ".join(f"{name}={value}" for name, value in self.varied.items())


def plan(experiment: str, base: Any, vary: Sequence[str], seeds: int | None) -> tuple[Unit, ...]:
    """The units of a sweep around the configuration `base`, the last of `vary` changing fastest.

    vary: texts as of `values_of`. seeds: each combination runs with that many seeds, from the one
    of `base` on.

    Raises `InputError` for a value that the setting does not take or no setting that varies, and
    `UnknownNameError` for one that the experiment does not have.
    """
    module, start = experiment_module("experiments", experiment), dataclasses.asdict(base)
    axes = dict(values_of(text) for text in vary)
    if seeds is not None:
        first = _at(start, "seed", experiment)
        axes["seed"] = [first + k for k in range(count("seeds", seeds))]
    if not axes:
        raise InputError("a sweep must vary a setting (KEY=a:b:n) or have seeds, got neither")
    units = []
    for combination in product(*axes.values()):
        settings = start
        for name, value in zip(axes, combination, strict=True):
            settings = _with(settings, name, value, experiment)
        units.append(_unit(from_anywhere(experiment), module, settings, list(axes)))
    return tuple(units)


def values_of(text: str) -> tuple[str, list[Any]]:
    """The values that "KEY=a:b:n" (n evenly from a to b) or "KEY=v,w,..." (JSON or text) lists."""
    key, equals, given = text.partition("=")
    if not equals or not key or not given:
        raise InputError(f"vary must look like KEY=a:b:n or KEY=v,w,..., got {text!r}")
    parts = given.split(":")
    if len(parts) == 1:
        return key, [_parsed(value) for value in given.split(",")]
    try:
        low, high, steps = float(parts[0]), float(parts[1]), int(parts[2])
        if len(parts) != 3 or steps < 1 or not np.isfinite([low, high]).all():
            raise ValueError
    except (ValueError, IndexError) as error:
        raise InputError(
            f"vary must have a finite start, end and number of values, KEY=a:b:n, got {text!r}"
        ) from error
    return key, np.linspace(low, high, steps).tolist()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _unit(experiment: str, module: ModuleType, settings: Settings, names: list[str]) -> Unit:
    """A unit whose settings are those of a valid configuration."""
    checked = dataclasses.asdict(build_configuration(module.Config, settings))
    varied = {name: _at(checked, name, experiment) for name in names}
    return Unit(experiment, varied, json.loads(json.dumps(checked)))


def _at(settings: Mapping[str, Any], name: str, experiment: str) -> Any:
    """A setting by its dotted name."""
    found: Any = settings
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            known = found if isinstance(found, Mapping) else ()
            raise UnknownNameError(
                f"{experiment} has no setting {name!r}, expected one of {list(known)}"
                + did_you_mean(part, known)
            )
        found = found[part]
    return found


def _with(settings: Settings, name: str, value: Any, experiment: str) -> Settings:
    """The settings with another value under a dotted name; whole numbers stay whole."""
    now = _at(settings, name, experiment)
    whole = isinstance(now, int) and not isinstance(now, bool)
    if whole and isinstance(value, float) and value.is_integer():
        value = int(value)
    head, _, rest = name.partition(".")
    inner = _with(settings[head], rest, value, experiment) if rest else value
    return {**settings, head: inner}
