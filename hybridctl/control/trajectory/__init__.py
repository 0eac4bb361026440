"""Trajectories by optimisation over a given sequence of modes.

`hybridctl.control.trajectory.optimise` is the function. The module of the same name can be imported
from.
"""

# Not lazily: importing the module later would put it in the place of the function.
from hybridctl.control.trajectory.optimise import OptimalTrajectory as OptimalTrajectory
from hybridctl.control.trajectory.optimise import optimise as optimise
from hybridctl.control.trajectory.spread import SpreadOptimum as SpreadOptimum
from hybridctl.control.trajectory.spread import optimise_over_spread as optimise_over_spread
from hybridctl.control.trajectory.task import Condition as Condition
from hybridctl.control.trajectory.task import Margins as Margins
from hybridctl.control.trajectory.task import Phase as Phase
from hybridctl.control.trajectory.task import Task as Task
from hybridctl.control.trajectory.task import TransitionWeight as TransitionWeight
