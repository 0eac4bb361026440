"""Filters on logs: models, logs with and without truth, judgement, output."""
