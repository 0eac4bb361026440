"""Recorded logs: readers for many formats, mappings to one kind of log, and writers.

    file --(readers, by content)--> RawLog --(Mapping)--> Log --(examine)--> LogReport

`read_log` reads a file into a `Log`; `write_log` and `write_estimates` write files.
"""

from __future__ import annotations

from hybridctl.logs.build import read_log as read_log
from hybridctl.logs.estimates import PoseSeries as PoseSeries
from hybridctl.logs.estimates import write_estimates as write_estimates
from hybridctl.logs.log import Log as Log
from hybridctl.logs.mapping import Mapping as Mapping
from hybridctl.logs.native import write_log as write_log
from hybridctl.logs.quality import LogReport as LogReport
from hybridctl.logs.quality import examine as examine
from hybridctl.logs.readers import read_raw as read_raw
from hybridctl.logs.tum import read_tum as read_tum
from hybridctl.logs.tum import write_tum as write_tum
