"""Batches, deadlines, threads, event loops and signals."""
