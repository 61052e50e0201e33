"""An engine does not outlive its owner, played by ordinary processes; no vLLM is needed."""

import subprocess
import sys

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
