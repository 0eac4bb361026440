"""Robots and states in other engines, and those engines as plants."""
