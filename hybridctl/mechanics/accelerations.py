"""A point of a contact mode: accelerations and forces there, and their derivatives."""

from __future__ import annotations

from dataclasses import dataclass

from hybridctl.checks import Array
from hybridctl.mechanics.contact_states import STICK
from hybridctl.mechanics.equations import Solution


@dataclass(frozen=True)
class ContactAcceleration:
    """A point of a mode: acceleration (nv,), and forces in N, speeds in m/s, gaps in m of contacts.

    Of all contacts: `forces` (c,) are normal, `friction` (c, 2) tangential and `slip` (c, 2) v_t
    along the tangents of each surface (in a plane of motion the second is zero); zero where open.
    `gaps` (c,) are positive where open. `solution`: the equations behind it, None
    where all are open.
    """

    acceleration: Array
    forces: Array
    friction: Array
    slip: Array
    gaps: Array
    solution: Solution | None

    def holds(self, i: int) -> bool:
        """Whether contact i sticks, or is to slide but held where it stands."""
        return self.solution is not None and self.solution.phase.modes[i] == STICK


@dataclass(frozen=True)
class AccelerationDerivatives:
    """Derivatives by z = (q, v, u), n = 2 nv + nu columns, and the point itself.

    acceleration_z (nv, n), forces_z (c, n), friction_z (c, 2, n), slip_z (c, 2, n), gaps_z (c, n);
    slip and gaps of all contacts. rates_z (r, n): J v of all rows.
    """

    point: ContactAcceleration
    acceleration_z: Array
    forces_z: Array
    friction_z: Array
    slip_z: Array
    gaps_z: Array
    rates_z: Array
