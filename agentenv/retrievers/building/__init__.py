"""Builds indexes, imports existing ones, and advises which one fits."""
