"""Figures: of runs, of filters, and the panels, snapshots and animations that they are made of.

Every figure is returned, and saved where a path is given.
"""

from __future__ import annotations

from hybridctl.plots.filters import errors as errors
from hybridctl.plots.filters import nis as nis
from hybridctl.plots.panels import BANDS as BANDS
from hybridctl.plots.panels import BASELINE as BASELINE
from hybridctl.plots.panels import BLUE as BLUE
from hybridctl.plots.panels import CURVES as CURVES
from hybridctl.plots.panels import GREEN as GREEN
from hybridctl.plots.panels import ORANGE as ORANGE
from hybridctl.plots.panels import REFERENCE as REFERENCE
from hybridctl.plots.panels import SKY as SKY
from hybridctl.plots.panels import TRACKING as TRACKING
from hybridctl.plots.panels import VERMILION as VERMILION
from hybridctl.plots.panels import Band as Band
from hybridctl.plots.panels import Figure as Figure
from hybridctl.plots.panels import Line as Line
from hybridctl.plots.panels import Panel as Panel
from hybridctl.plots.panels import Pose as Pose
from hybridctl.plots.panels import animation as animation
from hybridctl.plots.panels import canvas as canvas
from hybridctl.plots.panels import grid as grid
from hybridctl.plots.panels import power_law as power_law
from hybridctl.plots.panels import save_figure as save_figure
from hybridctl.plots.panels import series as series
from hybridctl.plots.panels import snapshots as snapshots
from hybridctl.plots.runs import energy as energy
from hybridctl.plots.runs import forces as forces
from hybridctl.plots.runs import mode_bands as mode_bands
from hybridctl.plots.runs import modes as modes
from hybridctl.plots.runs import short_mode as short_mode
from hybridctl.plots.runs import states as states
