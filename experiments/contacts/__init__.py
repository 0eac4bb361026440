"""Motions with contact against closed forms, time stepping and recordings."""
