from . import jax as jax
from . import torch as torch
from .batch import BatchGradient as BatchGradient
from .batch import RunLoss as RunLoss
from .differentiable import DifferentiableFlow as DifferentiableFlow
from .differentiable import differentiable as differentiable
from .tape import Gradient as Gradient
from .tape import Tape as Tape
