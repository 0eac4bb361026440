"""A recorded jump of a hopper on a rail."""
