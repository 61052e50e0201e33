"""Thoughts that a patch puts before the expert's action: what is asked, and who writes them."""

from collections.abc import Awaitable, Callable

from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.types import Message, Sampling

ThoughtWriter = Callable[[str], "str | Awaitable[str]"]
"""From a prompt to the thought that a model writes."""

OFF_POLICY = """\
Task: {goal}
{screen}
The next action is {action}. In one sentence, say why it is taken.
"""
ON_POLICY = """\
{context}
A hint, for you alone: the next action is {action}. Write the thought that leads to it, in one or two sentences. \
Do not say that there was a hint, and name no coordinates.
"""


def policy_thoughts(
    policy: Policy, chat: ChatFormat, *, max_tokens: int = 96, temperature: float = 1.0, seed: int = 0
) -> ThoughtWriter:
    """A writer of thoughts that asks the policy itself, for ``patch="on_policy"``.

    What it samples is text of a later context and no part of the record.
    """
    sampling = Sampling(max_tokens, temperature, stop=("</think>", "<action>"), seed=seed)

    async def write(prompt: str) -> str:
        completion = await policy.generate(chat.prompt((Message("user", prompt),)), sampling)
        return spoken(completion.text)

    return write


def spoken(text: str) -> str:
    """``text`` up to the first tag or control token that is not the opening of a thought."""
    return text.strip().removeprefix("<think>").partition("<")[0].strip()
