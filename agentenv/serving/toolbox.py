"""An environment as a set of tools: what MCP and every library with tool calls of its own see of it.

The tools of a `ToolEnv` are these tools, and ``submit`` hands in the final answer. Any other environment takes text, and
has the one tool ``act``.
"""

import json
from collections.abc import Mapping
from typing import Any

from agentenv.core.env import Env
from agentenv.core.env_outputs import checked_step, mended_step, most_chars
from agentenv.core.grammar import without_half_escapes
from agentenv.core.images import text_alone
from agentenv.core.tools import Tool, ToolEnv
from agentenv.core.types import Step
from agentenv.errors import ConfigurationError, check_known

_MOST_CHARS = most_chars(10**9)  # of an observation; the context that it goes into is not known here


def submit(answer: str) -> str:
    """Hands in the final answer and ends the episode.

    Args:
        answer: The answer alone, without explanation.
    """
    return answer


def act(text: str) -> str:
    """Acts once, in the way that the task's instructions describe.

    Args:
        text: The action, as the instructions say it must be written.
    """
    return text


def toolbox(env: Env[Any]) -> dict[str, Tool]:
    """The tools that ``env`` can be played with, by name.

    Raises:
        ConfigurationError: a tool of the environment is called ``submit``.
    """
    if not isinstance(env, ToolEnv):
        return {"act": Tool.from_function(act)}
    if "submit" in env.tools:
        raise ConfigurationError(
            "a tool is called 'submit', the name under which the final answer is handed in: give it another name, or leave "
            "it out"
        )
    return {**env.tools, "submit": Tool.from_function(submit)}


async def play(env: Env[Any], name: str, arguments: Mapping[str, Any]) -> Step:
    """Steps ``env`` by one call of a tool.

    Args:
        env: An environment within an episode.
        name: Of one of `toolbox`.
        arguments: Of the call; those of the environment's own tools are checked by the environment.

    Raises:
        UnknownName: no such tool.
        ConfigurationError: ``submit`` or ``act`` without its text.
        EpisodeOver: the episode has ended or was never reset.
        Fault: the environment broke, or gave what cannot be used.
    """
    tools = toolbox(env)
    check_known("tool", name, tools)
    # Checked here, because these two are not the environment's: nobody behind this point knows their form.
    if name in ("submit", "act"):
        (argument,) = tools[name].json_schema["properties"]
        if set(arguments) != {argument} or not isinstance(text := arguments[argument], str):
            raise ConfigurationError(f"{name} takes the one argument {argument!r}, a text")
        return sound(env.answer(text)) if isinstance(env, ToolEnv) else await act_by_text(env, text)
    return await act_by_text(env, as_action(name, arguments))


async def act_by_text(env: Env[Any], action: str) -> Step:
    """Steps ``env`` as an episode loop of ours does.

    Raises:
        EpisodeOver: the episode has ended or was never reset.
        Fault: the environment broke, or gave what cannot be used.
    """
    return sound(await env.astep(readable(env, action)))


def readable(env: Env[Any], action: str) -> str:
    """``action`` as ``env`` is shown it: without escapes of half a character, unless it deals with those itself."""
    return action if env.refuses_half_escapes else without_half_escapes(action)


def sound(step: Step) -> Step:
    """``step``, once every part of it has been checked; text that cannot be encoded is mended.

    Raises:
        EnvFault: a part cannot be used, such as a reward that is not a number: no trainer may learn from it.
    """
    return checked_step(mended_step(step), _MOST_CHARS)[0]


def instructions(env: Env[Any], opening: str) -> str:
    """The first observation's text, and how an episode that is played by calls of tools ends."""
    if isinstance(env, ToolEnv):
        return f"{opening}\nHand in the final answer by calling the tool submit."
    return f"{opening}\nGive every action as the text of a call of the tool act."


def as_action(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as a policy writes it. Angle brackets are escaped, so that no argument can close the tag."""
    call = json.dumps({"name": name, "arguments": dict(arguments)})
    return f"<tool_call>{call.replace('<', chr(92) + 'u003c')}</tool_call>"


def observation_text(env: Env[Any], step: Step) -> str:
    """What a caller of tools sees of ``step``: the bare results of tools, or the observation of any other environment."""
    if isinstance(env, ToolEnv):
        text_alone(step.observation, "a caller of tools")  # an image beside the results is refused
        return "\n".join(result.text for result in step.info["tool_results"])
    return text_alone(step.observation, "a caller of tools")
