"""Impacts of contacts and their derivatives, resets of contact modes, and blows on bodies."""
