"""The page of a run: one HTML file with its tables, figures, motion and settings."""
