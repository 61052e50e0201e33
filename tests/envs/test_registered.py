"""Every registered environment keeps the contract: registering is enough to be tested."""

import pytest

import agentenv
from agentenv.core.contract import CHECKS, run_check
from agentenv.errors import ConfigurationError, MissingExtra


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("id", agentenv.registered())
def test_contract(id: str, name: str) -> None:
    try:
        agentenv.make(id).close()
    except (ConfigurationError, MissingExtra) as error:  # a sandbox that this machine does not have
        pytest.skip(str(error))
    result = run_check(name, lambda: agentenv.make(id))
    if result.status == "skipped":
        pytest.skip(result.detail)
    assert result.status == "ok", result.detail
