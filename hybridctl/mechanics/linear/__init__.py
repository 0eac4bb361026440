"""Linear equations with constraints, also where these depend on each other."""
