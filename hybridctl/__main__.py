"""The entry of `python -m hybridctl`."""

from hybridctl.app.cli import main

main()
