"""The door experiment on a reference found by optimisation, and a comparison with equal tuning."""
