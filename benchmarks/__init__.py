"""Costs as ratios, measured in one process: `python -m benchmarks`."""

import os

# As the command line does: OpenBLAS starts threads even for matrices of six rows.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
