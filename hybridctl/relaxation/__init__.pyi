from .distance import GluedSpace as GluedSpace
from .relax import relax as relax
from .sliding import filippov as filippov
from .zeno_rest import ZenoRelaxation as ZenoRelaxation
from .zeno_rest import past_zeno as past_zeno
