"""What runs inside a jail. It imports the standard library alone."""
