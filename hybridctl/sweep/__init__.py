"""Many runs of an experiment over settings and seeds, on as many processes or machines."""
