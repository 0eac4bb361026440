"""Many states of one hybrid system, simulated at once."""
