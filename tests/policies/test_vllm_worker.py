"""An engine does not outlive its owner, played by ordinary processes, and what it is started with; no vLLM is needed."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentenv.policies.engine import EngineConfig
from agentenv.policies.vllm_local import _arguments

_WORKER = """
import sys, time
from agentenv.policies.vllm_worker import EngineWorker
EngineWorker().end_with(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""
_CORE = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])"


def test_worker_and_engine_end_when_the_owner_is_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    words = [sys.executable, "-c", _CORE, _WORKER, str(owner.pid)]
    core = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert core.stdout is not None
    try:
        assert core.stdout.readline() == "ready\n"
        owner.kill()
        owner.wait(10)
        assert core.wait(10) == -9
        assert core.stdout.read() == ""  # the worker holds the other end until it has ended
    finally:
        owner.kill()
        core.kill()
        core.stdout.close()


@pytest.mark.parametrize("cpu", [True, False])
def test_an_engine_launches_each_operation_by_itself_on_a_cpu_alone(
    cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card it records its steps; prompts are cut into pieces there as well."""
    platform = SimpleNamespace(is_cpu=lambda: cpu)
    modules = {
        "vllm": SimpleNamespace(),
        "vllm.engine": SimpleNamespace(),
        "vllm.engine.arg_utils": SimpleNamespace(AsyncEngineArgs=dict),
        "vllm.platforms": SimpleNamespace(current_platform=platform),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    given = _arguments(Path("policy"), EngineConfig(kind="vllm"), 512, None)
    assert given["enforce_eager"] is cpu
    assert ("enable_chunked_prefill" in given) is cpu
