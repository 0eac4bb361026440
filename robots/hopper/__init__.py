"""A one-legged hopper on a vertical rail, with its URDF and the licence of that."""
