from .augmentation import ParameterDerivatives as ParameterDerivatives
from .augmentation import ParameterModel as ParameterModel
from .floquet import floquet_multipliers as floquet_multipliers
from .floquet import lyapunov_exponents as lyapunov_exponents
from .linearize import Linearization as Linearization
from .moments import propagate_moments as propagate_moments
from .parameters import parameter_sensitivity as parameter_sensitivity
from .symmetry import Symmetry as Symmetry
