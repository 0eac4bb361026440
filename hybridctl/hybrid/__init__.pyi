from .laws import DifferentiableLaw as DifferentiableLaw
from .plant import Plant as Plant
from .plant import SimulatedPlant as SimulatedPlant
from .policy import DisturbedPolicy as DisturbedPolicy
from .policy import History as History
from .policy import Policy as Policy
