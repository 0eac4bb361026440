"""A five-link biped walks: gaits by optimisation, and feedback around them."""
