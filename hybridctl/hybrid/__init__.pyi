from .laws import DifferentiableLaw as DifferentiableLaw
from .plant import SimulatedPlant as SimulatedPlant
from .policy import DisturbedPolicy as DisturbedPolicy
from .policy import History as History
from .policy import Policy as Policy
from .relaxation.distance import GluedSpace as GluedSpace
from .relaxation.sliding import filippov as filippov
from .relaxation.zeno_rest import past_zeno as past_zeno
