from .augmentation import ParameterDerivatives as ParameterDerivatives
from .linearize import Linearization as Linearization
from .moments import propagate_moments as propagate_moments
from .orbits import floquet_multipliers as floquet_multipliers
from .orbits import lyapunov_exponents as lyapunov_exponents
from .parameters import parameter_sensitivity as parameter_sensitivity
from .return_map import periodic_orbit as periodic_orbit
from .symmetry import Symmetry as Symmetry
