"""An environment as a set of tools, as MCP and libraries with tool calls see it.

A `ToolEnv` has its own tools, and ``submit`` for the final answer. Any other environment takes text, and has the one tool
``act``.
"""

import json
from collections.abc import Mapping
from typing import Any

from agentenv.core.env import Env
from agentenv.core.env_outputs import checked_step, most_chars, step_without_surrogates
from agentenv.core.grammar import without_half_escapes
from agentenv.core.images import text_alone
from agentenv.core.tools import Tool, ToolEnv
from agentenv.core.types import Step
from agentenv.errors import ConfigurationError, check_known

_MOST_CHARS = most_chars(10**9)  # characters of an observation; the length of the caller's context is unknown


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
    """Returns the tools with which ``env`` is played, by name.

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
    """Steps ``env`` by one tool call.

    Args:
        env: An environment within an episode.
        name: The name of a tool of `toolbox`.
        arguments: The arguments of the call; the environment checks those of its own tools.

    Raises:
        UnknownName: there is no such tool.
        ConfigurationError: the call of ``submit`` or ``act`` lacks its text.
        EpisodeOver: the episode has ended or was never reset.
        Fault: the environment broke, or returned an unusable step.
    """
    tools = toolbox(env)
    check_known("tool", name, tools)
    # These two are checked here, because the environment does not know them.
    if name in ("submit", "act"):
        (argument,) = tools[name].json_schema["properties"]
        if set(arguments) != {argument} or not isinstance(text := arguments[argument], str):
            raise ConfigurationError(f"{name} takes the one argument {argument!r}, a text")
        return sound(env.answer(text)) if isinstance(env, ToolEnv) else await act_by_text(env, text)
    return await act_by_text(env, as_action(name, arguments))


async def act_by_text(env: Env[Any], action: str) -> Step:
    """Steps ``env`` by a text, with the checks of an episode loop.

    Raises:
        EpisodeOver: the episode has ended or was never reset.
        Fault: the environment broke, or returned an unusable step.
    """
    return sound(await env.astep(readable(env, action)))


def readable(env: Env[Any], action: str) -> str:
    """Returns ``action`` without escapes of unpaired surrogates, unless ``env`` handles those itself."""
    return action if env.refuses_half_escapes else without_half_escapes(action)


def sound(step: Step) -> Step:
    """Checks every part of ``step`` and returns it; replaces characters that cannot be encoded.

    Raises:
        EnvFault: a part is unusable, such as a reward that is no finite number, which no trainer may learn from.
    """
    return checked_step(step_without_surrogates(step), _MOST_CHARS)[0]


def instructions(env: Env[Any], opening: str) -> str:
    """Returns the text of the first observation, and how an episode with tool calls ends."""
    if isinstance(env, ToolEnv):
        return f"{opening}\nHand in the final answer by calling the tool submit."
    return f"{opening}\nGive every action as the text of a call of the tool act."


def as_action(name: str, arguments: Mapping[str, Any]) -> str:
    """Writes a call as a policy does. Angle brackets are escaped, so that no argument can close the tag."""
    call = json.dumps({"name": name, "arguments": dict(arguments)})
    return f"<tool_call>{call.replace('<', chr(92) + 'u003c')}</tool_call>"


def observation_text(env: Env[Any], step: Step) -> str:
    """Returns what a caller of tools sees of ``step``: the results of the tools, or else the whole observation."""
    if isinstance(env, ToolEnv):
        text_alone(step.observation, "a caller of tools")  # an image beside the results is refused
        return "\n".join(result.text for result in step.info["tool_results"])
    return text_alone(step.observation, "a caller of tools")
