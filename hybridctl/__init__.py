"""Simulation, control and estimation for robots that hit, stick and slip.

`import hybridctl as hc` gives the public names; each is imported from its module when it is
first used, so that starting the command line does not load the numerical libraries.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridctl import mechanics as mechanics
    from hybridctl import plots as plots
    from hybridctl import symbolic as symbolic
    from hybridctl.batch.simulate import Batch as Batch
    from hybridctl.batch.simulate import simulate_batch as simulate_batch
    from hybridctl.control.baselines import ImpactInvariantTracking as ImpactInvariantTracking
    from hybridctl.control.baselines import NearestTracking as NearestTracking
    from hybridctl.control.detection import Detection as Detection
    from hybridctl.control.detection import ForceSignal as ForceSignal
    from hybridctl.control.extension import extend_by_rule as extend_by_rule
    from hybridctl.control.feasibility import feasibility as feasibility
    from hybridctl.control.gains import GainCurve as GainCurve
    from hybridctl.control.gains import GainSchedule as GainSchedule
    from hybridctl.control.ilqr.cost import QuadraticCost as QuadraticCost
    from hybridctl.control.ilqr.search import ilqr as ilqr
    from hybridctl.control.lqr.continuous import hybrid_lqr as hybrid_lqr
    from hybridctl.control.lqr.discrete import discrete_lqr as discrete_lqr
    from hybridctl.control.lqr.periodic import periodic_lqr as periodic_lqr
    from hybridctl.control.reference import Reference as Reference
    from hybridctl.control.reference import extend as extend
    from hybridctl.control.spreading import ClockTracking as ClockTracking
    from hybridctl.control.spreading import ReferenceSpreading as ReferenceSpreading
    from hybridctl.control.tracking import tracking_error as tracking_error
    from hybridctl.control.tuning.ensemble import Ensemble as Ensemble
    from hybridctl.control.tuning.prediction import Prediction as Prediction
    from hybridctl.control.tuning.search import tune as tune
    from hybridctl.control.tuning.structure import EntryGains as EntryGains
    from hybridctl.control.tuning.structure import LqrWeights as LqrWeights
    from hybridctl.estimation.contact_signal import ContactSignal as ContactSignal
    from hybridctl.estimation.estimate import Estimate as Estimate
    from hybridctl.estimation.filter import SaltedKalmanFilter as SaltedKalmanFilter
    from hybridctl.estimation.filter_model import FilterModel as FilterModel
    from hybridctl.estimation.identify import identify as identify
    from hybridctl.estimation.judgement import judge as judge
    from hybridctl.estimation.likelihood import fit_noise as fit_noise
    from hybridctl.estimation.measurement import Measurement as Measurement
    from hybridctl.estimation.noise import EventNoise as EventNoise
    from hybridctl.estimation.noise import Noise as Noise
    from hybridctl.estimation.particle import ParticleFilter as ParticleFilter
    from hybridctl.estimation.record import Record as Record
    from hybridctl.estimation.smoother import smooth as smooth
    from hybridctl.estimation.start import first_estimate as first_estimate
    from hybridctl.estimation.unscented import UnscentedFilter as UnscentedFilter
    from hybridctl.hybrid.laws import DifferentiableLaw as DifferentiableLaw
    from hybridctl.hybrid.mode import Guard as Guard
    from hybridctl.hybrid.mode import Jump as Jump
    from hybridctl.hybrid.mode import Mode as Mode
    from hybridctl.hybrid.mode import Reset as Reset
    from hybridctl.hybrid.mode import Transition as Transition
    from hybridctl.hybrid.policy import DisturbedPolicy as DisturbedPolicy
    from hybridctl.hybrid.policy import History as History
    from hybridctl.hybrid.policy import Policy as Policy
    from hybridctl.hybrid.policy import SampledPolicy as SampledPolicy
    from hybridctl.hybrid.relaxation.distance import GluedSpace as GluedSpace
    from hybridctl.hybrid.relaxation.past import past_zeno as past_zeno
    from hybridctl.hybrid.relaxation.relax import relax as relax
    from hybridctl.hybrid.relaxation.sliding import filippov as filippov
    from hybridctl.hybrid.simulate import simulate as simulate
    from hybridctl.hybrid.system import HybridSystem as HybridSystem
    from hybridctl.hybrid.trajectory import HybridTrajectory as HybridTrajectory
    from hybridctl.logs import Log as Log
    from hybridctl.logs import read_log as read_log
    from hybridctl.logs import write_log as write_log
    from hybridctl.sensitivity.augmentation import ParameterDerivatives as ParameterDerivatives
    from hybridctl.sensitivity.bderivative import BDerivative as BDerivative
    from hybridctl.sensitivity.discrete import discretize as discretize
    from hybridctl.sensitivity.gains import JumpGains as JumpGains
    from hybridctl.sensitivity.gains import jump_gains as jump_gains
    from hybridctl.sensitivity.gains import saltation_matrix as saltation_matrix
    from hybridctl.sensitivity.linearize import Linearization as Linearization
    from hybridctl.sensitivity.linearize import linearize as linearize
    from hybridctl.sensitivity.moments import propagate_moments as propagate_moments
    from hybridctl.sensitivity.orbits import floquet_multipliers as floquet_multipliers
    from hybridctl.sensitivity.orbits import lyapunov_exponents as lyapunov_exponents
    from hybridctl.sensitivity.parameters import parameter_sensitivity as parameter_sensitivity
    from hybridctl.sensitivity.rest import rest_derivative as rest_derivative
    from hybridctl.sensitivity.return_map import periodic_orbit as periodic_orbit
    from hybridctl.sensitivity.simultaneous import jump_derivative as jump_derivative
    from hybridctl.sensitivity.symmetry import Symmetry as Symmetry
    from hybridctl.series import Series as Series
    from hybridctl.spaces import VectorSpace as VectorSpace

__version__ = "0.1.0"

_HOME = {
    "Batch": "hybridctl.batch.simulate",
    "BDerivative": "hybridctl.sensitivity.bderivative",
    "ClockTracking": "hybridctl.control.spreading",
    "ContactSignal": "hybridctl.estimation.contact_signal",
    "Detection": "hybridctl.control.detection",
    "DifferentiableLaw": "hybridctl.hybrid.laws",
    "DisturbedPolicy": "hybridctl.hybrid.policy",
    "Ensemble": "hybridctl.control.tuning.ensemble",
    "EntryGains": "hybridctl.control.tuning.structure",
    "Estimate": "hybridctl.estimation.estimate",
    "EventNoise": "hybridctl.estimation.noise",
    "FilterModel": "hybridctl.estimation.filter_model",
    "ForceSignal": "hybridctl.control.detection",
    "GainCurve": "hybridctl.control.gains",
    "GainSchedule": "hybridctl.control.gains",
    "GluedSpace": "hybridctl.hybrid.relaxation.distance",
    "Guard": "hybridctl.hybrid.mode",
    "History": "hybridctl.hybrid.policy",
    "HybridSystem": "hybridctl.hybrid.system",
    "HybridTrajectory": "hybridctl.hybrid.trajectory",
    "ImpactInvariantTracking": "hybridctl.control.baselines",
    "Jump": "hybridctl.hybrid.mode",
    "JumpGains": "hybridctl.sensitivity.gains",
    "Linearization": "hybridctl.sensitivity.linearize",
    "Log": "hybridctl.logs",
    "LqrWeights": "hybridctl.control.tuning.structure",
    "Measurement": "hybridctl.estimation.measurement",
    "Mode": "hybridctl.hybrid.mode",
    "NearestTracking": "hybridctl.control.baselines",
    "Noise": "hybridctl.estimation.noise",
    "ParameterDerivatives": "hybridctl.sensitivity.augmentation",
    "ParticleFilter": "hybridctl.estimation.particle",
    "Policy": "hybridctl.hybrid.policy",
    "Prediction": "hybridctl.control.tuning.prediction",
    "QuadraticCost": "hybridctl.control.ilqr.cost",
    "Record": "hybridctl.estimation.record",
    "Reference": "hybridctl.control.reference",
    "ReferenceSpreading": "hybridctl.control.spreading",
    "Reset": "hybridctl.hybrid.mode",
    "SampledPolicy": "hybridctl.hybrid.policy",
    "SaltedKalmanFilter": "hybridctl.estimation.filter",
    "Series": "hybridctl.series",
    "Symmetry": "hybridctl.sensitivity.symmetry",
    "Transition": "hybridctl.hybrid.mode",
    "UnscentedFilter": "hybridctl.estimation.unscented",
    "VectorSpace": "hybridctl.spaces",
    "discrete_lqr": "hybridctl.control.lqr.discrete",
    "discretize": "hybridctl.sensitivity.discrete",
    "extend": "hybridctl.control.reference",
    "extend_by_rule": "hybridctl.control.extension",
    "feasibility": "hybridctl.control.feasibility",
    "filippov": "hybridctl.hybrid.relaxation.sliding",
    "first_estimate": "hybridctl.estimation.start",
    "fit_noise": "hybridctl.estimation.likelihood",
    "floquet_multipliers": "hybridctl.sensitivity.orbits",
    "hybrid_lqr": "hybridctl.control.lqr.continuous",
    "identify": "hybridctl.estimation.identify",
    "ilqr": "hybridctl.control.ilqr.search",
    "judge": "hybridctl.estimation.judgement",
    "jump_derivative": "hybridctl.sensitivity.simultaneous",
    "jump_gains": "hybridctl.sensitivity.gains",
    "linearize": "hybridctl.sensitivity.linearize",
    "lyapunov_exponents": "hybridctl.sensitivity.orbits",
    "parameter_sensitivity": "hybridctl.sensitivity.parameters",
    "past_zeno": "hybridctl.hybrid.relaxation.past",
    "periodic_lqr": "hybridctl.control.lqr.periodic",
    "periodic_orbit": "hybridctl.sensitivity.return_map",
    "propagate_moments": "hybridctl.sensitivity.moments",
    "read_log": "hybridctl.logs",
    "relax": "hybridctl.hybrid.relaxation.relax",
    "rest_derivative": "hybridctl.sensitivity.rest",
    "saltation_matrix": "hybridctl.sensitivity.gains",
    "simulate": "hybridctl.hybrid.simulate",
    "simulate_batch": "hybridctl.batch.simulate",
    "smooth": "hybridctl.estimation.smoother",
    "tracking_error": "hybridctl.control.tracking",
    "tune": "hybridctl.control.tuning.search",
    "view": "hybridctl.viewer.view",
    "write_log": "hybridctl.logs",
}
_MODULES = ("mechanics", "plots", "symbolic")

__all__ = ["__version__", *_HOME, *_MODULES]

# A wheel carries robots/ and experiments/ inside the package; a checkout has them beside it.
if not (Path(__file__).parent / "robots").is_dir():
    __path__.append(str(Path(__file__).parent.parent))


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"hybridctl.{name}")
    raise AttributeError(f"module 'hybridctl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
