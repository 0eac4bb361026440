from .floquet import floquet_multipliers as floquet_multipliers
from .linearization import Linearization as Linearization
from .lyapunov import lyapunov_exponents as lyapunov_exponents
from .moments import propagate_moments as propagate_moments
from .parameter_models import ParameterDerivatives as ParameterDerivatives
from .parameter_models import ParameterModel as ParameterModel
from .parameters import parameter_sensitivity as parameter_sensitivity
from .symmetry import Symmetry as Symmetry
