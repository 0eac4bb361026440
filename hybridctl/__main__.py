"""`python -m hybridctl`."""

from hybridctl.cli import main

main()
