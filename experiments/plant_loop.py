"""The loop of a controller and a plant that is stepped from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hybridctl.base.checks import Array
from hybridctl.hybrid.plant import Plant, Sample


def driven(
    plant: Plant, time: float, state: Array, control: Callable[[Sample], Array]
) -> Iterator[Sample]:
    """The samples of a plant from a time in s and a state on, without end.

    control: makes of a sample the input that is held until the next one; asked when that is.
    """
    sample = plant.reset(time, state)
    while True:
        yield sample
        sample = plant.step(control(sample))
