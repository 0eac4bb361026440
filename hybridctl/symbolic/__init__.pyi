from .systems import Joint as Joint
from .systems import Mode as Mode
from .systems import SymbolicMode as SymbolicMode
from .systems import SymbolicTransition as SymbolicTransition
from .systems import Transition as Transition
from .systems import hybrid_system as hybrid_system
from .systems import parametric_system as parametric_system
from .systems import variational as variational
