from .batch import Batch as Batch
from .batch import simulate_batch as simulate_batch
from .filters import run_filter as run_filter
from .particle import ParticleFilter as ParticleFilter
from .unscented import UnscentedFilter as UnscentedFilter
