"""Figures: of runs, of filters, and the panels and snapshots that they are made of.

Every figure is returned, and saved where a path is given.
"""

from __future__ import annotations

from hybridctl.app.plots.deviations import growth as growth
from hybridctl.app.plots.deviations import prediction as prediction
from hybridctl.app.plots.filters import errors as errors
from hybridctl.app.plots.filters import nis as nis
from hybridctl.app.plots.panels import BANDS as BANDS
from hybridctl.app.plots.panels import BASELINE as BASELINE
from hybridctl.app.plots.panels import BLUE as BLUE
from hybridctl.app.plots.panels import CURVES as CURVES
from hybridctl.app.plots.panels import GREEN as GREEN
from hybridctl.app.plots.panels import ORANGE as ORANGE
from hybridctl.app.plots.panels import REFERENCE as REFERENCE
from hybridctl.app.plots.panels import SKY as SKY
from hybridctl.app.plots.panels import TRACKING as TRACKING
from hybridctl.app.plots.panels import VERMILION as VERMILION
from hybridctl.app.plots.panels import Band as Band
from hybridctl.app.plots.panels import Figure as Figure
from hybridctl.app.plots.panels import Line as Line
from hybridctl.app.plots.panels import Panel as Panel
from hybridctl.app.plots.panels import Pose as Pose
from hybridctl.app.plots.panels import canvas as canvas
from hybridctl.app.plots.panels import grid as grid
from hybridctl.app.plots.panels import number_log_axis as number_log_axis
from hybridctl.app.plots.panels import plane as plane
from hybridctl.app.plots.panels import power_law as power_law
from hybridctl.app.plots.panels import save_figure as save_figure
from hybridctl.app.plots.panels import series as series
from hybridctl.app.plots.panels import snapshots as snapshots
from hybridctl.app.plots.runs import energy as energy
from hybridctl.app.plots.runs import forces as forces
from hybridctl.app.plots.runs import mode_bands as mode_bands
from hybridctl.app.plots.runs import modes as modes
from hybridctl.app.plots.runs import short_mode as short_mode
from hybridctl.app.plots.runs import states as states
