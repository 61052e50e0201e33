"""The applications of the miniature desktop."""
