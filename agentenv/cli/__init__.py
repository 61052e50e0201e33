"""The command ``agentenv``."""
