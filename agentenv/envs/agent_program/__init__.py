"""The environment ``agentenv/AgentProgram-v0``: an agent program of somebody's own, whose model is the policy."""
