"""Robot models as data: URDF, parameters in SI, contacts and nominal poses; no algorithms."""
