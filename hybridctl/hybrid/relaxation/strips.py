"""The strips of a system: which border a reset leads to, and whether it can be undone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hybridctl.checks import Array, member
from hybridctl.errors import SystemDefinitionError
from hybridctl.hybrid.mode import Mode, ModeKey, Reset
from hybridctl.hybrid.relaxation.chart import Border, chart, on_guard, passage, random_samples
from hybridctl.hybrid.relaxation.strip import Strip
from hybridctl.hybrid.system import HybridSystem

_LANDS = 1e-9  # of the size of a state, or of 1: how far from a guard its image may be


class Strips:
    """The strips of a width epsilon behind the guards of a system, made at first use.

    images, samples: see `relax`.
    """

    def __init__(
        self,
        system: HybridSystem,
        epsilon: float,
        images: Mapping[tuple[ModeKey, str], str | None],
        samples: Mapping[ModeKey, Array],
    ) -> None:
        self.system, self.epsilon = system, epsilon
        self.images, self.samples = dict(images), dict(samples)
        self._known: dict[tuple[ModeKey, str], Strip] = {}

    def of(self, key: ModeKey, name: str) -> Strip:
        """The strip behind guard `name` of mode `key`.

        Raises `SystemDefinitionError` where none is defined, see `relax`.
        """
        try:
            return self._known[key, name]
        except KeyError:
            return self._known.setdefault((key, name), self._made(key, name))

    def _made(self, key: ModeKey, name: str) -> Strip:
        guard, reset, target = passage(self.system, key, name)
        source = guard.mode
        if source.nu != target.nu:
            raise SystemDefinitionError(
                f"modes {key!r} and {target.key!r} have {source.nu} and {target.nu} inputs; a "
                "strip between them needs the same"
            )
        samples = self.samples.get(key)
        if samples is None:
            samples = random_samples(source)
        border = self._border(guard, reset, target, samples)
        found, basis = chart(guard, reset, border, target, samples)
        strip = Strip(guard, target, border, found, basis, np.zeros(basis.shape[1]), self.epsilon)
        return replace(strip, push=_push(strip, samples))

    def _border(self, guard: Border, reset: Reset, target: Mode, samples: Array) -> Border | None:
        """The guard of the target that is zero on the image of the reset, if there is one."""
        guards, named = self.system.outgoing(target.key).guards, (guard.mode.key, guard.name)
        if named in self.images:
            chosen = self.images[named]
            if chosen is None:
                return None
            name = member(f"image of guard {guard.name!r}", chosen, guards.names)
            return Border(target, guards, guards.names.index(name))
        touched = np.ones(len(guards.names), dtype=bool)
        for t, x, u in on_guard(guard, samples):
            image = reset(t, x, u).state
            size = max(1.0, float(np.abs(image).max(initial=0.0)))
            touched &= np.abs(guards.values(t, image, u)) <= _LANDS * size
        found = np.flatnonzero(touched).tolist()
        if len(found) > 1:
            names = [guards.names[i] for i in found]
            raise SystemDefinitionError(
                f"the reset of guard {guard.name!r} of mode {guard.mode.key!r} lands where guards "
                f"{names} of mode {target.key!r} are zero; choose one by images"
            )
        return Border(target, guards, found[0]) if found else None


def _push(strip: Strip, samples: Array) -> Array:
    """The direction (p,) of z along which the next mode's field leaves the border.

    Raises `SystemDefinitionError` where it changes, and where z would have to be held behind a
    reset that is no projection.
    """
    p = strip.basis.shape[1]
    if strip.border is None or p == 0:
        return np.zeros(p)
    directions, size = [], 0.0
    for t, x, u in on_guard(strip.guard, samples):
        image = strip.entered(t, strip.entry(x), u)
        inwards = strip.border.derivative(t, image, u)[1]
        along = inwards @ strip.target.jacobian(t, image, u).state @ strip.basis  # type: ignore[misc]
        directions.append(along)
        size = max(size, float(np.abs(along).max()))
    if size <= _LANDS:
        return np.zeros(p)
    units = [d / np.linalg.norm(d) for d in directions]
    name, key = strip.guard.name, strip.source.key
    if min(float(unit @ units[0]) for unit in units) < 1.0 - _LANDS:
        raise SystemDefinitionError(
            f"what the reset of guard {name!r} of mode {key!r} forgets moves its image off the "
            f"border in directions that change, {units[0]} and others: no auxiliary state is held"
        )
    for t, x, u in on_guard(strip.guard, samples):
        reset = strip.chart.at(t, x, u).reset
        square = reset.shape[0] == reset.shape[1]
        if not square or np.abs(reset @ reset - reset).max() > _LANDS * np.abs(reset).max():
            raise SystemDefinitionError(
                f"the reset of guard {name!r} of mode {key!r} has no inverse and is no projection, "
                f"so that what pushes back into the guard behind it is not known: D_x R = "
                f"{reset.tolist()}"
            )
    return np.asarray(units[0])
