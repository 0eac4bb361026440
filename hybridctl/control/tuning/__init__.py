"""Tuning of gains: the predicted cost with its gradient, ensembles of simulated runs, search."""
