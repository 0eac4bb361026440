"""Figures say what they show: numbered axes, names of what was measured, jumps that are jumps."""

import numpy as np
import pytest
from hybridctl.experiments.contacts.closed_form import Comparison, comparison_table
from matplotlib.figure import Figure
from rich.console import Console

from hybridctl.app import plots
from hybridctl.app.models import find_model
from hybridctl.app.plots import Line, number_log_axis
from hybridctl.app.plots.filters import break_line


@pytest.mark.parametrize(
    ("low", "high"), [(14.2, 18.9), (2e-3, 2.3e-3), (3.0, 900.0), (0.02, 0.3), (1e-6, 1e3)]
)
def test_logarithmic_axes_have_numbers(low, high):
    """Whatever the candidates' inputs are: between 14 and 19 there is no 1, 2 or 5."""
    figure = Figure()
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    number_log_axis(axes.xaxis)
    figure.draw_without_rendering()
    inside = [
        label.get_text()
        for value, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if low <= value <= high
    ]
    assert len([text for text in inside if text]) >= 3


@pytest.mark.parametrize("name", ["ball", "block", "cube", "door"])
def test_residuals_are_named_by_what_was_measured(name):
    model = find_model(name).make()
    for sensor in model.sensors:
        names = sensor.residual_names
        assert len(names) == len(set(names)) == sensor.measurement.dimension
    if name == "cube":
        assert names == (
            *(f"position {axis}" for axis in "xyz"),
            *(f"orientation about {axis}" for axis in "xyz"),
        )


def test_estimates_are_not_joined_across_events():
    line = break_line(Line(np.arange(5.0), np.arange(5.0), "estimate"), np.array([0, 2, 2, 5]))
    assert np.isnan(line.values).tolist() == [False, False, True, False, False, False]
    assert line.times.tolist() == [0.0, 1.0, 1.5, 2.0, 3.0, 4.0]


def test_quantities_stand_in_tables_as_they_are(capsys):
    rows = {"slides": [Comparison("impact [s]", 1.0, 1.0)]}
    Console(width=200).print(comparison_table("A ball", rows))
    assert "slides: impact [s] " in capsys.readouterr().out


def _linear(color):
    """Linear RGB of "#rrggbb"."""
    c = np.array([int(color[k : k + 2], 16) for k in (1, 3, 5)]) / 255.0
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


# Viénot, Brettel and Mollon (1999): linear RGB as seen without long- or middle-wave cones.
SEEN = {
    "protan": [(0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)],
    "deutan": [(0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)],
}


@pytest.mark.parametrize("kind", SEEN)
def test_colours_can_be_told_apart_without_red_or_green(kind):
    colors = (plots.BLUE, plots.VERMILION, plots.ORANGE, plots.GREEN, plots.SKY, plots.BASELINE)
    seen = [np.cbrt(np.clip(np.array(SEEN[kind]) @ _linear(c), 0, 1)) for c in colors]
    distances = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]]
    # Twice what blue and violet of one lightness, #1f5fa8 and #8e44ad, are apart for deutans.
    assert min(distances) > 0.15
