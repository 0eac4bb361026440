from .laws import DifferentiableLaw as DifferentiableLaw
from .policy import DisturbedPolicy as DisturbedPolicy
from .policy import History as History
from .policy import Policy as Policy
from .relaxation.distance import GluedSpace as GluedSpace
from .relaxation.past import past_zeno as past_zeno
from .relaxation.sliding import filippov as filippov
