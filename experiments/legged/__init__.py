"""Base estimation of legged robots: a recorded walk, and synthetic ones with truth."""
