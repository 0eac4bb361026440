"""Jobs of sweeps that other processes import: they die, fail or count as their settings say."""

import os
import signal
from pathlib import Path

from hybridctl.app.sweep import Unit


def units(count, **extra):
    """Units whose number is in their settings."""
    return tuple(Unit("slope", {"k": k}, {"k": k, **extra}) for k in range(count))


def square(unit):
    k = unit.settings["k"]
    return {"status": "done", "message": "", "values": {"square": k * k / 7.0, "k": k}}


def square_but_die_once(unit):
    """The worker of unit 3 is killed in the middle of it, once."""
    mark = Path(unit.settings["folder"]) / "died"
    if unit.settings["k"] == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    (Path(unit.settings["folder"]) / f"ran-{unit.settings['k']}-{os.getpid()}").touch()
    return square(unit)


def square_but_always_die(unit):
    """The worker of unit 2 is killed whenever it comes to it."""
    if unit.settings["k"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(unit)


def cost(gain=1.0, seed=0, kind="soft"):
    """Results by name, nested, one that does not vary, and one that is another's copy."""
    return {"peak": gain + seed, "inner": {"half": gain / 2.0}, "mass": 1.0, "copy": gain + seed}
