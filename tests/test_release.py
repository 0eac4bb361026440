"""A version stands in one place, and what cites or lists it agrees."""

from pathlib import Path

import yaml

import hybridctl

ROOT = Path(__file__).parent.parent


def test_the_citation_and_the_changelog_are_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == hybridctl.__version__
    assert f"\n## {hybridctl.__version__} " in (ROOT / "CHANGELOG.md").read_text()
