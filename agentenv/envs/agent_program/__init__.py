"""The environment ``agentenv/AgentProgram-v0``: an agent program of your own, whose model is the policy."""
