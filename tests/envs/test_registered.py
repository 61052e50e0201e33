"""Every registered environment keeps the contract: registering is enough to be tested."""

import functools
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentenv
from agentenv.core import env_contract, probes
from agentenv.core.env_contract import CHECKS, run_check
from agentenv.data.harbor import read_harbor_tasks
from agentenv.envs.browser.driver import unavailable as no_browser
from agentenv.envs.browser.sites import miniwob_task
from agentenv.errors import ConfigurationError
from agentenv.sandbox.backends import unavailable


def no_sdk() -> str:
    """Why there is no MCP; empty where there is."""
    return "" if importlib.util.find_spec("mcp") else "the mcp extra is not installed"


def no_textarena() -> str:
    """Why there is no TextArena; empty where there is."""
    return "" if importlib.util.find_spec("textarena") else "the textarena extra is not installed"


@functools.cache
def missing(id: str) -> str:
    """What the environment needs and this machine does not have; empty where nothing is missing."""
    needs: dict[str, Callable[[], str]] = {
        "agentenv/Code-v0": lambda: unavailable("bwrap"),
        "agentenv/Browser-v0": no_browser,
        "agentenv/MCP-v0": no_sdk,
        "agentenv/Terminal-v0": lambda: unavailable("docker"),
        "agentenv/TextArena-v0": no_textarena,
    }
    return needs[id]() if id in needs else ""


TERMINAL_TASKS = read_harbor_tasks(Path(__file__).with_name("terminal_tasks"), "test")
MCP_SERVER = f"stdio:{sys.executable} {Path(__file__).with_name('mcp') / 'servers.py'} stdio"
# A page is opened a hundred times: one that loads fast, and short episodes.
SMALLER: dict[str, dict[str, Any]] = {
    "agentenv/Terminal-v0": {"tasks": TERMINAL_TASKS, "max_turns": 4},
    "agentenv/Browser-v0": {"tasks": [miniwob_task("click-test")], "max_steps": 2},
    "agentenv/AgentProgram-v0": {"agent": "python:tests.envs.agent_program.agents:plain"},
    "agentenv/MCP-v0": {"server": MCP_SERVER, "server_state": "none"},
}
ONE_SEED = ("agentenv/Browser-v0", "agentenv/Terminal-v0")
"""Environments that play under one seed in place of three, and probes under two in place of five, except where equal seeds
are compared."""


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("id", [id for id in agentenv.registered() if id.startswith("agentenv/")])
def test_contract(id: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := missing(id):
        pytest.skip(reason)
    if id in ONE_SEED and name != "determinism":
        monkeypatch.setattr(env_contract, "SEEDS", (0,))
        monkeypatch.setattr(probes, "SEEDS", range(2))
    result = run_check(name, lambda: agentenv.make(id, **SMALLER.get(id, {})))
    if result.status == "skipped":
        pytest.skip(result.detail)
    assert result.status == "ok", result.detail


@pytest.mark.parametrize("action", [3, None, ["<answer>a</answer>"]])
@pytest.mark.parametrize("id", [id for id in agentenv.registered() if id.startswith("agentenv/")])
def test_an_action_that_is_no_text_is_refused(id: str, action: Any) -> None:
    """The episode stays where it was."""
    if reason := missing(id):
        pytest.skip(reason)
    env = agentenv.make(id, **SMALLER.get(id, {}))
    env.reset(seed=0)
    with pytest.raises(ConfigurationError, match=re.escape(repr(action))):
        env.step(action)
    assert env.step("").info["turn"] == 1
    env.close()
