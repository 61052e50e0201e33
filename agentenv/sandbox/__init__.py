"""Executors for code; empty until the sandbox lands."""
