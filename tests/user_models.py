"""A user's robot in YAML, and recordings of it with names and units of their own."""

import numpy as np

ROBOT = """
urdf: ball.urdf
contacts:
  foot: {frame: ball, plane: {normal: [0, 0, 1]}, restitution: 0.7}
encoders:
  rails: {joints: [x, z], deviation: 2e-3, unit: m}
noise: {force: 1e-2, surface: 1e-4}
"""
COLUMNS = "channels: {{{name}: {{fields: {fields}, unit: mm}}}}\ntime: {{field: t_ms, unit: ms}}\n"


def write_csv(path, columns, run, rows):
    """A run at 60 Hz in ms and mm, with noise of 2 mm."""
    times = np.arange(0.0, run.end, 1.0 / 60.0)
    rng = np.random.default_rng(1)
    values = np.array([run(t)[rows] for t in times]) + rng.normal(
        0.0, 2e-3, (len(times), len(rows))
    )
    table = np.column_stack([1e3 * times, 1e3 * values])
    np.savetxt(path, table, delimiter=",", header=",".join(["t_ms", *columns]), comments="")
