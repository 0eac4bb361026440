from .filters import run_filter as run_filter
from .particle import ParticleFilter as ParticleFilter
from .simulate import Batch as Batch
from .simulate import simulate_batch as simulate_batch
from .unscented import UnscentedFilter as UnscentedFilter
