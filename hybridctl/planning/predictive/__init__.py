"""Predictive control across events: a horizon through touchdowns, planned anew at each sample."""
