"""A few sessions of one server: all are held at once, all are gone after the clients are, and so is the server."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn", "websockets")),
    reason="the extra serve is not installed",
)


def test_three_clients(
    tmp_path: Path, here: Callable[..., str], script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = script("serving_sessions")
    servers: list[Any] = []
    started = benchmark.subprocess.Popen

    def start(*given: Any, **named: Any) -> Any:
        servers.append(started(*given, **named))
        return servers[-1]

    monkeypatch.setattr(benchmark.subprocess, "Popen", start)
    out = tmp_path / "out.json"
    words = ("--clients", "3", "--concurrency", "2", "--threads", "1", "--json", "--out", str(out))
    printed = json.loads(here("serving_sessions", *words))
    assert printed == json.loads(out.read_text(encoding="utf-8"))
    (run,) = printed["runs"]
    assert (run["clients"], run["failed"], run["held_at_once"], run["left"]) == (3, 0, 3, 0)
    assert run["server_mib_at_most"] >= run["server_mib_before"] > 0
    (server,) = servers
    assert server.returncode is not None
