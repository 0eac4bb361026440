"""What the documentation says to import from modules of the top folder is there."""

import hybridctl as hc
import hybridctl.errors
import hybridctl.files
import hybridctl.workers
from hybridctl.base import errors, files, workers


def test_paths_of_the_documentation_lead_to_the_room():
    classes = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    assert len(classes) > 30
    for name, kind in classes.items():
        assert getattr(hybridctl.errors, name) is getattr(hc.errors, name) is kind
    assert hybridctl.workers.crew is workers.crew
    assert hybridctl.workers.Crew is workers.Crew
    assert hybridctl.files.atomic is files.atomic
