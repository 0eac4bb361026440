"""Parameters of the law of contact from recordings."""
