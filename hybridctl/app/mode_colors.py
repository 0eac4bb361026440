"""The colours of contact modes: one table for figures, pages and the player.

The colours are those of Okabe and Ito, which people who see fewer colours can tell apart.
"""

from __future__ import annotations

from hybridctl.hybrid.mode import ModeKey

OTHER_MODE_COLORS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00")
"""Colours of the words of other modes, in the order in which they come."""
CONTACT_MODE_COLORS = {
    "open": "#999999",
    "closed": "#56b4e9",
    "stick": "#0072b2",
    "slip": "#d55e00",
    "slip+": "#e69f00",
    "slip-": "#cc79a7",
    "strip": "#009e73",
    "jam": "#000000",
}
"""Colour of each contact mode. "strip" is the layer of a relaxed contact."""
_STANDING, _SLIDING = CONTACT_MODE_COLORS["stick"], CONTACT_MODE_COLORS["slip"]
_TINTS = (0.0, 0.06, 0.09, 0.12, 0.15)
"""Share of the colour in the shade of a mode, by how many contacts are closed. A choice: curves in
all colours are legible on these."""


def find_mode_color(word: str) -> str:
    """Return the colour of a contact mode; of a word that is none, that of an open contact."""
    return CONTACT_MODE_COLORS.get(word, CONTACT_MODE_COLORS["open"])


def is_contact_mode(mode: ModeKey) -> bool:
    """Return whether a mode key is a tuple of contact modes."""
    return isinstance(mode, tuple) and all(part in CONTACT_MODE_COLORS for part in mode)


def shade_contact_mode(mode: tuple[object, ...]) -> str:
    """Return the shade of a mode as "#rrggbb": white where all contacts are open.

    It is a tint of the colour of slipping if a contact slides, else of that of sticking, and the
    stronger the more contacts are closed.

    Args:
        mode: Modes of the contacts.
    """
    closed = sum(part != "open" for part in mode)
    slides = any(str(part).startswith("slip") for part in mode)
    tint = _TINTS[min(closed, len(_TINTS) - 1)]
    return mix_with_white(_SLIDING, 1.7 * tint) if slides else mix_with_white(_STANDING, tint)


def mix_with_white(color: str, share: float) -> str:
    """Return a colour "#rrggbb" of which a share is that of another, and the rest white.

    Args:
        color: The other colour, "#rrggbb".
        share: Share in [0, 1].
    """
    parts = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(255 + share * (part - 255)):02x}" for part in parts)
