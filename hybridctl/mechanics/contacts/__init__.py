"""Contacts of robots with surfaces: where they are, their gaps, and the rows of their motion."""
