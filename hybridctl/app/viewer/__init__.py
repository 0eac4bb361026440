"""A run of a robot in the browser, in space: its meshes, forces, modes, reference, estimate."""
