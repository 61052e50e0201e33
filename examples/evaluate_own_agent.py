"""Evaluates an agent of your own: any function from messages to text. A call of a model would stand where ``act`` reads.

Run it with ``python examples/evaluate_own_agent.py``.
"""

import json

import agentenv


async def act(messages: list[dict[str, str]]) -> str:
    """Uses the calculator once and repeats what it says; fails on large numbers, as agents do now and then."""
    if len(messages) > 1:
        return messages[-1]["content"].split()[1]  # within <tool_response>
    expression = messages[0]["content"].rpartition("what is ")[2].rstrip("?")
    if expression.startswith("99"):
        raise RuntimeError("the model's server has hung up")
    call = {"name": "calculate", "arguments": {"expression": expression}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


if __name__ == "__main__":
    result = agentenv.evaluate(act, env="agentenv/Calculator-v0", limit=200)
    print(f"reward {result.score.mean} on {result.n} questions, 95 % interval {result.score.ci95}")
    print(f"{result.faults} episodes failed and are in no mean:")
    for episode in result.episodes:
        if not episode["valid"]:
            print(f"  {episode['question']}: {episode['error']}")
