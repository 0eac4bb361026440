"""Objects that installed packages announce under names, found by their entry points.

A package announces an object in its `pyproject.toml`, such as

    [project.entry-points."hybridctl.models"]
    my-robot = "my_package.filtering:my_model"

Groups: `hybridctl.experiments` (modules with `Config`, `quick` and `run`), `hybridctl.models`
(functions that return a `FilterModel`), `hybridctl.validations` (functions that return cases),
`hybridctl.tunings` (modules like those of experiments), and `hybridctl.run_plots` (functions of a
trajectory, a path and names, see `HybridTrajectory.plot`).
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from hybridctl.base.errors import InputError


def list_plugins(group: str) -> tuple[str, ...]:
    """Return the names that packages announce in a group, such as "experiments", sorted."""
    return tuple(sorted(_find_entry_points(group)))


def load_plugin(group: str, name: str, argument: str | None = None) -> Any:
    """Return the object that a package announces; its module is imported now.

    Args:
        group: Group without its prefix, such as "experiments".
        name: Name under which it is announced.
        argument: What an error calls the name; by default the group in the singular.

    Raises:
        UnknownNameError: No installed package announces the name.
        InputError: None announces any in the group, as where hybridctl itself is not installed, or
            the module cannot be imported.
    """
    # Here, since numpy comes with it: the command line lists names without.
    from hybridctl.base.checks import check_member

    called, found = argument or group.removesuffix("s"), _find_entry_points(group)
    if not found:
        raise InputError(
            f"{called} {name!r} cannot be found: no installed package has entry points of the "
            f"group 'hybridctl.{group}'; install hybridctl itself, a checkout by `pip install -e`"
        )
    point = found[check_member(called, name, sorted(found))]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        reason = str(error)
        if getattr(error, "name", None) == "hybridctl.experiments":
            # `python` in a checkout imports the package of the checkout, where the experiments
            # stand beside it: only an editable installation joins the two.
            reason += (
                f"; hybridctl was imported from the checkout {Path(__file__).parents[2]}: run "
                "outside of it, or install it there by `pip install -e .`"
            )
        raise InputError(
            f"{called} {name!r} is announced as {point.value!r}, which cannot be imported: {reason}"
        ) from error


def _find_entry_points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"hybridctl.{group}")}
