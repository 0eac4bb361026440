r"""The first-order map of a whole trajectory: variational flow on its arcs, jumps at its events.

Linear through isolated events and piecewise linear through simultaneous ones,

.. math:: \delta x(t_{end}) = \Phi_N\, \mathcal G_N \cdots \mathcal G_1\, \Phi_0\, \delta x_0,

with deviations at fixed time: the fundamental solution, [Salt] (27); LTTHS and PTTHS of [RS] 3.2
and 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hybridctl.base.checks import format_count
from hybridctl.base.progress import Progress, report_share
from hybridctl.hybrid.laws import InputLaw
from hybridctl.hybrid.policy import Policy
from hybridctl.hybrid.system import HybridSystem
from hybridctl.hybrid.trajectory import HybridTrajectory
from hybridctl.sensitivity.first_order import FirstOrderMap
from hybridctl.sensitivity.floquet import FloquetMultipliers, floquet_multipliers
from hybridctl.sensitivity.radius import Radius, least_radius, radius_of
from hybridctl.sensitivity.simultaneous import PhantomInput, Simultaneous
from hybridctl.sensitivity.symmetry import Symmetry


@dataclass(frozen=True, eq=False, repr=False)
class Linearization(FirstOrderMap):
    """The first-order map of a run, how far it may be believed, and what it says of an orbit."""

    def __repr__(self) -> str:
        run, kind = self.trajectory, "linear" if self.is_linear else "piecewise linear"
        kind = "piecewise affine" if self.nearby else kind
        span = f"{run.start:.6g} to {run.end:.6g} s"
        under = "" if self.gains is None else ", under feedback"
        merged = [f"{group.first} to {group.last} merged" for group in self.nearby]
        radius = least_radius(self)
        if radius is not None and np.isfinite(radius):
            merged.append(f"in this order for |dx0| below {radius:.3g}")
        more = "".join(f", {one}" for one in merged)
        return (
            f"Linearization({span}, {format_count(len(self.jumps), 'jump')}, {kind}{under}{more})"
        )

    def radius(
        self,
        direction: ArrayLike,
        *,
        policy: Policy | InputLaw | None = None,
        event_window: float | None = None,
        error: float = 0.1,
    ) -> Radius:
        """How large a deviation along a direction (ndx,) may be, in units of it.

        Where the map is off by the relative `error` of what it predicts, in the Euclidean norm of
        the tangent space, and where the order of events changes first: see `radius`. Some motions
        from deviated starts are simulated for it. policy: the one that made the run, whose laws
        have derivatives; by default the recorded input is replayed. event_window: in s, for maps
        with simultaneous="at once": that of `simulate` within which contacts are one impact. The
        order changes where their touches get farther apart.

        Raises `InputError` for a direction without effect, for a map under feedback without its
        policy or one "at once" without its window, and where no motion nearby has the events of
        the run.
        """
        return radius_of(self, direction, policy, event_window, error)

    def floquet_multipliers(
        self, *, symmetry: Symmetry | None = None, tolerance: float = 1e-6
    ) -> FloquetMultipliers:
        """The eigenvalues of `state_transition` on a periodic orbit, see `orbits`.

        Raises `InputError` where the trajectory does not end as it starts, to `tolerance` and up
        to a `symmetry`.
        """
        return floquet_multipliers(self, symmetry=symmetry, tolerance=tolerance)


def linearize(
    system: HybridSystem,
    trajectory: HybridTrajectory,
    *,
    policy: Policy | InputLaw | None = None,
    merge: float | None = None,
    phantom_input: PhantomInput = "pushing",
    simultaneous: Simultaneous = "in turn",
    rtol: float = 1e-9,
    atol: float = 1e-9,
    progress: Progress = None,
) -> Linearization:
    """The first-order map of a simulated trajectory.

    policy: the one that made the trajectory. Then the map has its feedback, as `closed_loop` has
    that of gains: D_x u of each law, in phantom modes of the law that the policy has there. Its
    laws have to be a `DifferentiableLaw`, as those of tracking policies are where they know events
    at once, or a `HeldInput` given as policy. By default the input is that of the record, whatever
    made it.
    merge: a window in s. Events that follow each other within it, in whatever order, are one
    piecewise affine jump (see `nearby`), so that the map holds for deviations that change their
    order. It warns with `OrderChangeWarning` where a deviation changes that of others.
    phantom_input, simultaneous: see `jump_derivative`; with a policy its own law counts, and guards
    of merged events fire in turn. rtol, atol: of every entry of the variational flow, step by step,
    see `collocation`.
    progress: True prints the share of the events that is linearized on standard error; a function
    is called with it, from 0 to 1. The flow between events is linearized when it is asked for.

    Raises what `jump_derivative` raises, `SystemDefinitionError` where a law has no derivative, and
    `InputError` where the system or the policy is not the one of the trajectory.
    """
    return Linearization.of(
        system,
        trajectory,
        policy=policy,
        merge=merge,
        simultaneous=simultaneous,
        rtol=rtol,
        atol=atol,
        phantom_input=phantom_input,
        report=report_share(progress, "linearize"),
    )
