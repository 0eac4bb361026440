"""Base estimation of a legged robot: a recorded walk, with motion capture as truth."""
