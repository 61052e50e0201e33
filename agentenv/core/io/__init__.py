"""Reads and writes files such that no half-written file is ever left behind."""
