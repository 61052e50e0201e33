"""The retrieval server."""
