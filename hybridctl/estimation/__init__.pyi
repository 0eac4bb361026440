from .contact_signal import ContactSignal as ContactSignal
from .estimate import Estimate as Estimate
from .filter_model import FilterModel as FilterModel
from .filters import first_estimate as first_estimate
from .judgement import judge as judge
from .likelihood import fit_noise as fit_noise
from .noise import EventNoise as EventNoise
from .record import Record as Record
