"""Bounds of a server that mean nothing are refused before it listens."""

from typing import Any

import pytest

from agentenv.cli.serve import Serve
from agentenv.errors import ConfigurationError


@pytest.mark.parametrize(
    "given",
    [
        {"sessions": 0},
        {"per_client": 0},
        {"wait": 0.0},
        {"wait": float("nan")},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"idle": float("inf")},
    ],
    ids=str,
)
def test_a_bound_without_meaning_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="--" + next(iter(given)).replace("_", "-")):
        Serve("agentenv/Calculator-v0", port=0, **given).run()
