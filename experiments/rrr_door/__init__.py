"""The arm that pushes a door open: its model's reference, tracking, and parameters."""
