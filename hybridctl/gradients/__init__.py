"""Gradients of whole runs: one adjoint sweep over the arcs and events of a recorded run.

- `differentiable`: the function of initial state, sampled inputs and parameters that a run is.
- `tape`: a recorded run with what its sweep needs, and the sweep itself.
- `batch`: many runs, with a gradient of each.
- `arc_adjoint`, `event_adjoint`: the adjoint along an arc, and across an event.
- `parametric_system`: a system as a function of named parameters.
- `torch`, `jax`: the same function for automatic differentiation by these libraries.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
