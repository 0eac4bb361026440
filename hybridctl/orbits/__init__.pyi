from .return_map import PeriodicOrbit as PeriodicOrbit
from .return_map import periodic_orbit as periodic_orbit
from .shaping import orbit_derivatives as orbit_derivatives
from .stability import Stability as Stability
from .stability import stability as stability
