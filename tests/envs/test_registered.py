"""Every registered environment keeps the contract: registering is enough to be tested."""

import functools

import pytest

import agentenv
from agentenv.core.contract import CHECKS, run_check
from agentenv.sandbox.spec import unavailable


@functools.cache
def missing(id: str) -> str:
    """What the environment needs and this machine does not have; empty where nothing is missing."""
    return unavailable("bwrap") if id == "agentenv/Code-v0" else ""


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("id", agentenv.registered())
def test_contract(id: str, name: str) -> None:
    if reason := missing(id):
        pytest.skip(reason)
    result = run_check(name, lambda: agentenv.make(id))
    if result.status == "skipped":
        pytest.skip(result.detail)
    assert result.status == "ok", result.detail
