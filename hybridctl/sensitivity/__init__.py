"""First-order maps through events: saltation, B-derivatives, and the flow between them.

From one event to a whole run:

- `saltation`: the jump of an event of one guard.
- `piecewise`, `bderivative`: the jump of simultaneous guards as a function, given that of each
  guard.
- `simultaneous`, `phantom_modes`: the jump of any event of a simulation.
- `merged_events`, `event_order`: events that follow each other closely, and their order.
- `collocation`, `propagation`: the flow on arcs, as a linear equation and along a record.
- `linearization`: the map of a run. `radius` says how far it holds, `floquet` and `lyapunov`
  whether perturbations grow, `moments` what a covariance becomes, `symmetry` how an orbit closes.
- `parameter_models`, `parameters`: the same for parameters of the system.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
