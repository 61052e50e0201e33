"""The code that runs inside a jail. It imports only the standard library."""
