"""Tools of a server of the Model Context Protocol (MCP) as an environment."""
