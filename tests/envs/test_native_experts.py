"""Every expert earns in its model's native form what it earns by tags: thoughts count, and tools do what tags do."""

import asyncio
import json
import re
from typing import Any

import pytest

import agentenv
from agentenv.core.assistant_turns import AssistantTurn, NativeCall
from agentenv.core.env import Env
from agentenv.core.types import EndReason
from agentenv.envs.search.search_env import SearchEnv
from agentenv.envs.sql import Sql
from tests.envs.test_registered import SMALLER, missing

NO_EXPERT = ("<search> it </search>", "<answer> ready </answer>")


def in_native_form(env: Env[Any], action: str) -> AssistantTurn:
    """``action`` as a model writes it that thinks in a part of its own, and calls tools where some are declared."""
    thought, _, content = action.removeprefix("<think>").partition("</think>")
    said = (
        AssistantTurn(thought, content.strip())
        if action.startswith("<think>")
        else AssistantTurn(None, action)
    )
    if (call := re.fullmatch("<tool_call>(.*)</tool_call>", action)) is not None and env.native_tools():
        written = json.loads(call[1])
        return AssistantTurn(None, "", (NativeCall(written["name"], written["arguments"]),))
    for tool in (form.to_openai()["function"] for form in env.native_tools()):
        if (tag := re.search(f"<{tool['name']}>(.*?)</{tool['name']}>", action, re.DOTALL)) is not None:
            (argument,) = tool["parameters"]["properties"]
            return AssistantTurn(None, "", (NativeCall(tool["name"], {argument: tag[1]}),))
    return said


def earned(env: Env[Any], *, native: bool) -> list[tuple[float, EndReason | None]]:
    """What each turn of the expert earns, and how the episode ends."""
    env.native = native
    env.reset(seed=3)
    actions = env.expert() or (NO_EXPERT if isinstance(env, SearchEnv) else ())
    said = [env.native_action(in_native_form(env, action)) if native else action for action in actions]
    steps = [asyncio.run(env.astep(action)) for action in said]
    return [(step.reward, step.info.get("end_reason")) for step in steps]


@pytest.mark.parametrize("id", [id for id in agentenv.registered() if id.startswith("agentenv/")])
def test_an_expert_earns_in_the_native_form_what_it_earns_by_tags(id: str) -> None:
    if reason := missing(id):
        pytest.skip(reason)
    env = agentenv.make(id, **SMALLER.get(id, {}))
    by_tags, natively = earned(env, native=False), earned(env, native=True)
    env.close()
    if not by_tags:
        pytest.skip(env.no_expert)
    assert by_tags[-1][1] is not None
    assert natively == by_tags


def test_a_form_that_asks_for_a_thought_finds_that_of_the_model() -> None:
    env = Sql(reward="think2sql")
    assert earned(env, native=True) == earned(env, native=False)
    env.close()
