"""Gains of reference spreading on the door, found by prediction and simulation."""
