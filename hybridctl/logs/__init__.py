"""Recorded logs: one schema, readers for many formats, a mapping between them, and writers.

    file --(readers, by content)--> RawLog --(Mapping)--> Log --(examine)--> LogReport

`read_log` does all of it; `write_log` and `write_estimates` go the other way.
"""

from __future__ import annotations

from hybridctl.logs.build import read_log as read_log
from hybridctl.logs.mapping import Mapping as Mapping
from hybridctl.logs.quality import LogReport as LogReport
from hybridctl.logs.quality import examine as examine
from hybridctl.logs.readers import read_raw as read_raw
from hybridctl.logs.schema import Log as Log
from hybridctl.logs.tum import read_tum as read_tum
from hybridctl.logs.tum import write_tum as write_tum
from hybridctl.logs.writers import PoseSeries as PoseSeries
from hybridctl.logs.writers import write_estimates as write_estimates
from hybridctl.logs.writers import write_log as write_log
