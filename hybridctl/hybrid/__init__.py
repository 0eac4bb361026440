"""Mode graphs, their exact simulation, and the trajectories that come of it; knows no robot."""
