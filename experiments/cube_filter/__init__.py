"""Filters on recorded tosses of a cube: fitted on some, judged on others."""
