"""Writing of files that belong to a run, where users import it from.

It is defined in `hybridctl.base.files`.
"""

from hybridctl.base.files import atomic as atomic
