"""Hybrid LQR, and motions that find their events."""
