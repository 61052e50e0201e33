"""What every HTTP server and client of the package shares."""
