"""The environment ``agentenv/AgentProgram-v0``: the user's own agent program, with the policy as its model."""
