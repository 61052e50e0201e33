"""An environment with the tools of a server of the Model Context Protocol (MCP)."""
