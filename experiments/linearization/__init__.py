"""Derivatives through events, against ensembles and differences."""
