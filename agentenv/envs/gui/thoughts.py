"""Thoughts that are put before the expert's action in a patch: the prompts for them, and who writes them."""

from collections.abc import Awaitable, Callable

from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.types import Message, Sampling

ThoughtWriter = Callable[[str], "str | Awaitable[str]"]
"""A function of a prompt that returns the thought of a model."""

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
    """Makes a writer of thoughts that asks the policy itself, for ``patch="on_policy"``.

    The tokens that it samples are not recorded; their text becomes part of a later context.
    """
    sampling = Sampling(max_tokens, temperature, stop=("</think>", "<action>"), seed=seed)

    async def write(prompt: str) -> str:
        completion = await policy.generate(chat.prompt((Message("user", prompt),)), sampling)
        return spoken(completion.text)

    return write


def spoken(text: str) -> str:
    """Returns ``text`` up to the first tag or control token that does not open a thought."""
    return text.strip().removeprefix("<think>").partition("<")[0].strip()
