"""What speaks against the contacts that a filter of a legged base has found."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridctl.base.time_series import Series
from hybridctl.estimation.result import FilterResult
from hybridctl.legged.readings import Hysteresis, stretches
from hybridctl.legged.system import LeggedBase

_SHORT_CONTACT_SHARE = 0.2
"""Share of the time of a step: a contact that is shorter is chatter."""
_MOST_SHORT_SHARE = 0.2
"""Share of the contacts of a foot that may be short."""


def count_contact_changes(base: LeggedBase, result: FilterResult) -> dict[str, tuple[int, int]]:
    """Return how often each foot touched down, and lifted off, by its frame.

    Args:
        base: The feet.
        result: What the filter made of a log.
    """
    standing = [base.standing(mode) for mode in result.modes]
    states = [[float(foot in feet) for foot in base.feet] for feet in standing]
    changes = np.diff(np.array(states), axis=0)
    counts = zip((changes > 0).sum(axis=0), (changes < 0).sum(axis=0), strict=True)
    return {
        foot: (int(downs), int(ups)) for foot, (downs, ups) in zip(base.feet, counts, strict=True)
    }


def find_suspicious_contacts(
    base: LeggedBase,
    contact: Hysteresis,
    result: FilterResult,
    step: float,
    loads: Mapping[str, Series],
) -> list[str]:
    """Return flags of feet whose contacts are too short, or never change.

    Args:
        base: The feet.
        contact: Thresholds of the forces.
        result: What the filter made of a log.
        step: Time in s that a foot stands or swings, as a rule.
        loads: Forces by foot. By motion alone a foot that slips for a moment stands twice in a
            step, and the number of its contacts is not judged.
    """
    times, least, found = result.times, _SHORT_CONTACT_SHARE * step, []
    walks = any(downs for downs, _ in count_contact_changes(base, result).values())
    for foot in base.feet:
        stands = np.array([foot in base.standing(mode) for mode in result.modes])
        # The first and the last contact may be cut short by the ends of the log.
        lasted = np.array([times[b] - times[a] for a, b in stretches(stands)][1:-1])
        short = int((lasted < least).sum())
        if foot in loads and short > max(1.0, _MOST_SHORT_SHARE * len(lasted)):
            found.append(
                f"{short} of {len(lasted)} contacts of {foot!r} are shorter than {least:.3g} s: "
                "forces or evidence chatter, or steps are shorter than `evidence.step` says"
            )
        if walks and (stands.all() or not stands.any()):
            always = "always" if stands.all() else "never"
            found.append(
                f"{foot!r} is {always} in contact while others step: its force may have another "
                f"unit, or thresholds of {contact.on:.0f} and {contact.off:.0f} N do not suit it"
            )
    return found
