"""Hybrid LQR: Riccati equations along arcs, jumps at events, orbits, and fixed grids."""
