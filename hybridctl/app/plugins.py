"""What packages offer to the command line, found by their entry points.

A package announces an object under a name in its `pyproject.toml`, such as

    [project.entry-points."hybridctl.models"]
    my-robot = "my_package.filtering:my_model"

Groups: `hybridctl.experiments` (modules with `Config`, `quick` and `run`), `hybridctl.models`
(functions that return a `FilterModel`), `hybridctl.validations` (functions that return cases) and
`hybridctl.tunings` (modules like those of experiments).
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hybridctl.base.errors import InputError


def names(group: str) -> tuple[str, ...]:
    """Return what there is in a group, such as "experiments", in alphabetical order."""
    return tuple(sorted(_announced(group)))


def load(group: str, name: str) -> Any:
    """Return the object of that name; its module is imported now.

    Raises `UnknownNameError` for a name that no package has announced, `InputError` for one whose
    module cannot be imported.
    """
    from hybridctl.base.checks import (
        check_member,  # numpy comes with it, and names are wanted without
    )

    found = _announced(group)
    point = found[check_member(group.removesuffix("s"), name, sorted(found))]
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
            f"{group.removesuffix('s')} {name!r} is announced as {point.value!r}, which cannot be "
            f"imported: {reason}"
        ) from error


def robot_files() -> dict[str, Path]:
    """Return the YAML files of legged robots that come with hybridctl, by name.

    They are data in the folder `robots/legged`; nothing is imported.
    """
    spec = find_spec("hybridctl.robots")
    if spec is None or spec.origin is None:
        return {}
    return {
        path.stem: path for path in sorted((Path(spec.origin).parent / "legged").glob("*.yaml"))
    }


def _announced(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"hybridctl.{group}")}
