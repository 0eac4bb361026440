"""The loop of a controller and a plant that is stepped from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hybridctl.base.checks import Array
from hybridctl.hybrid.plant import Plant, Sample


def driven(
    plant: Plant, time: float, state: Array, control: Callable[[Sample], Array]
) -> Iterator[Sample]:
    """Step a plant under a control, without end.

    Args:
        plant: The plant.
        time: Time of the start, s.
        state: State at the start.
        control: Function of a sample that returns the input held until the next one. It is called
            when that sample is asked for.

    Yields:
        The samples, from the start on.
    """
    sample = plant.reset(time, state)
    while True:
        yield sample
        sample = plant.step(control(sample))
