"""How many sessions at once one server of environments holds: so many clients on 127.0.0.1, each in an episode of its own.

The clients connect, reset, step three times and stay; then they vanish at once, without a word, and the time until the
server has no session is taken. Everything is bounded in number and in time.
"""

import argparse
import asyncio
import json
import re
import resource
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from common import common_arguments, finish, load, run_script

STEPS = 3
BOUND_S = 120.0


async def play(url: str, gate: asyncio.Semaphore, steps: list[float], sockets: list[Any]) -> None:
    """One client; its connection stays open."""
    from websockets.asyncio.client import connect

    async with gate:
        socket = await connect(url, open_timeout=BOUND_S, ping_interval=None, compression=None, proxy=None)
        sockets.append(socket)
        await asked(socket, "reset", seed=len(sockets))
        for _ in range(STEPS):
            began = time.perf_counter()
            await asked(
                socket,
                "step",
                text='<tool_call>{"name": "calculate", "arguments": {"expression": "2 + 2"}}</tool_call>',
            )
            steps.append(time.perf_counter() - began)


async def asked(socket: Any, type: str, **data: Any) -> None:
    """Sends a frame and takes its answer."""
    await socket.send(json.dumps({"type": type, "data": data}))
    answer = json.loads(await socket.recv())
    if answer["type"] != "observation":
        raise RuntimeError(f"the server answered {answer}")


async def open_sessions(url: str, clients: int, concurrency: int) -> dict[str, Any]:
    """Figures of so many clients against a server of their own."""
    gate, steps, sockets = asyncio.Semaphore(concurrency), list[float](), list[Any]()
    began = time.perf_counter()
    async with asyncio.timeout(BOUND_S):
        played = await asyncio.gather(
            *(play(f"{url.replace('http', 'ws', 1)}/ws", gate, steps, sockets) for _ in range(clients)),
            return_exceptions=True,
        )
    seconds = time.perf_counter() - began
    held = sessions(url)
    for socket in sockets:
        socket.transport.abort()
    gone = time.perf_counter()
    while sessions(url) and time.perf_counter() - gone < BOUND_S:
        await asyncio.sleep(0.05)
    steps.sort()
    return {
        "clients": clients,
        "failed": sum(isinstance(one, BaseException) for one in played),
        "held_at_once": held,
        "seconds": round(seconds, 2),
        "steps_per_second": round(len(steps) / seconds, 1),
        "step_p50_ms": round(1e3 * steps[len(steps) // 2], 2),
        "step_p99_ms": round(1e3 * steps[int(len(steps) * 0.99)], 2),
        "seconds_until_empty": round(time.perf_counter() - gone, 2),
        "left": sessions(url),
    }


def sessions(url: str) -> int:
    """Sessions that the server holds now."""
    with urllib.request.urlopen(f"{url}/health", timeout=BOUND_S) as reply:
        return int(json.load(reply)["sessions"])


def measured(clients: int, concurrency: int) -> dict[str, Any]:
    """Starts a server with places for all, and ends it."""
    command = [sys.executable, "-m", "agentenv.cli.main", "serve", "agentenv/Calculator-v0", "--port", "0"]
    with subprocess.Popen(
        [*command, "--sessions", str(clients), "--per-client", str(clients)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            assert child.stderr is not None
            url = child.stderr.readline().split()[-1]
            while json.load(urllib.request.urlopen(f"{url}/health", timeout=BOUND_S))["status"] != "healthy":
                time.sleep(0.1)
            before = memory(child.pid, "VmRSS")
            figures = asyncio.run(open_sessions(url, clients, concurrency))
            peak = memory(child.pid, "VmHWM")
            return figures | {"server_mib_before": before, "server_mib_at_most": peak}
        finally:
            child.terminate()


def memory(pid: int, what: str) -> int:
    """MiB of a process."""
    found = re.search(rf"{what}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) // 1024 if found else 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[250, 1000, 4000], help="clients at once, a run each"
    )
    parser.add_argument("--concurrency", type=int, default=64, help="clients that connect and play at a time")
    return parser.parse_args()


def main() -> None:
    """Measures, writes and prints."""
    args, state = arguments(), load()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(args.clients) + 256
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    runs = [measured(clients, args.concurrency) for clients in args.clients]
    lines = [
        f"{run['clients']:>6} clients: {run['held_at_once']} held, {run['failed']} failed, "
        f"p99 {run['step_p99_ms']} ms, {run['server_mib_at_most']} MiB, empty after {run['seconds_until_empty']} s"
        for run in runs
    ]
    finish("serving_sessions", args, state | {"runs": runs}, lines)


if __name__ == "__main__":
    run_script(main)
