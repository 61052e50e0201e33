"""Large requests take little more memory than their passages in a retrieval server, and leave none behind."""

import ctypes
import http.client
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

for module in ("fastapi", "orjson", "prometheus_client", "uvicorn"):
    pytest.importorskip(module, reason=f"{module} is not installed")

SERVER = """
from agentenv.core.types import Passage, RetrieverInfo
from agentenv.retrievers.service.app import run_service
from agentenv.retrievers.service.service import Service, ServiceLimits
from agentenv.web.server import listen
BASE = "harbour " * 250
class Fresh:
    info = lambda self: RetrieverInfo("fresh", 20000, "f" * 16)
    async def search(self, queries, k):
        return [[Passage(f"d{j}", f"T{j}", f"{BASE[:700]}{j}", 1 / (j + 1)) for j in range(k)] for _ in queries]
sock = listen("127.0.0.1", 0)
print(sock.getsockname()[1], flush=True)
run_service(Service(ServiceLimits(cache=0)), lambda: {"c": Fresh()}, sock)
"""
MIB = 2**20


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 // MIB


def most_resident(pid: int) -> int:
    """The most that a process has ever held."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:"))


def ask(port: int, queries: int, k: int) -> int:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        body = json.dumps({"queries": [f"query {number}" for number in range(queries)], "topk": k})
        client.request("POST", "/retrieve", body, {"Content-Type": "application/json"})
        return len(client.getresponse().read())
    finally:
        client.close()


@pytest.mark.skipif(
    not (Path("/proc/self/statm").exists() and hasattr(ctypes.CDLL(None), "malloc_trim")),
    reason="resident memory is read from /proc and given back by glibc",
)
def test_a_large_request_takes_little_memory_and_leaves_none_behind() -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            end = time.monotonic() + 30
            while ask(port, 1, 1) < 100 and time.monotonic() < end:  # not ready yet
                time.sleep(0.05)
            before = resident(server.pid)
            assert ask(port, 131, 500) > 40 * MIB
            end = time.monotonic() + 10
            while resident(server.pid) - before > 40 and time.monotonic() < end:
                time.sleep(0.1)
            assert resident(server.pid) - before <= 40
            # The passages themselves, and no copy of them all.
            assert most_resident(server.pid) - before <= 110
        finally:
            server.terminate()
