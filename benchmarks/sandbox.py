"""What a run, a cell, a snapshot, a restore and eight forks cost, beside a fresh interpreter and Docker.

    python benchmarks/sandbox.py

Every row is measured in turn, round by round, so that a busy moment of the machine falls on all of them. Rows of Docker are
there where a daemon answers.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.spec import make_executor
from agentenv.sandbox.types import Limits

from common import finish  # type: ignore[import-not-found]  # isort: skip  # a sibling script

LIMITS = Limits(memory_mb=512, wall_s=60.0, cpu_s=60.0)
STATE = "held = bytearray(50 << 20)\nheld[::4096] = b'1' * len(held[::4096])"
FILES = {f"data/{index}.bin": bytes(100_000) for index in range(10)}
FULL = {f"data/{index}.bin": bytes(7_000_000) for index in range(2)}
Row = Callable[[], None]


def main() -> None:
    """Measures and writes the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="bwrap", help="bwrap, docker or unsafe-local")
    parser.add_argument("--rounds", type=int, default=200, help="measurements of each quick row")
    parser.add_argument("--seconds", type=float, default=10.0, help="of sustained runs")
    parser.add_argument("--out", type=Path, help="result file; by default benchmarks/results/sandbox.json")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    args = parser.parse_args()
    with make_executor(args.backend, limits=LIMITS, size=1) as executor:
        executor.run("1")
        executor.warm()
        rows = measure(executor, args.rounds)
        rows |= {"sustained runs": sustained(executor, args.seconds)}
    figures = {"backend": args.backend, "rows": rows}
    finish("sandbox", args, figures, [f"{name:<44} {json.dumps(row)}" for name, row in rows.items()])


def measure(executor: JailExecutor, rounds: int) -> dict[str, Any]:
    """Milliseconds of every row: median, 99th percentile, number."""
    with sessions(executor) as made:
        rows: dict[str, Row] = {"warm run": lambda: _ok(executor.run("print(1)"))}
        for name, session in made.items():
            rows |= session_rows(name, session)
        slow = {"fresh python -c with numpy": fresh_python, **docker_rows()}
        found: dict[str, list[float]] = {name: [] for name in (*rows, *slow)}
        for index in range(rounds):
            for name, row in rows.items():
                found[name].append(timed(row))
            if index % 10 == 0:
                for name, row in slow.items():
                    found[name].append(timed(row))
    return {name: summary(times) for name, times in found.items()}


@contextmanager
def sessions(executor: JailExecutor) -> Iterator[dict[str, Any]]:
    """Two sessions with 50 MB of state: one with 1 MB of files, one with a full workspace."""
    made = {}
    for name, files in (("1 MB of files", FILES), ("14 MB of files", FULL)):
        made[name] = executor.open(files=files)
        _ok(made[name].run(STATE))
    try:
        yield made
    finally:
        for session in made.values():
            session.close()


def session_rows(name: str, session: Any) -> dict[str, Row]:
    """Cell, snapshot and restore, and eight forks, of one session."""
    kept: list[Any] = []

    def snapshot() -> None:
        kept.append(session.snapshot())

    def restore() -> None:
        session.restore(kept[-1])

    def fork() -> None:
        kept.append(session.fork(8))

    def clean() -> None:
        for one in kept:
            for fork in one if isinstance(one, list) else ():
                fork.close()
            if not isinstance(one, list):
                one.release()
        kept.clear()

    return {
        f"warm cell, {name}": lambda: _ok(session.run("1")),
        f"snapshot, {name}": snapshot,
        f"restore, {name}": restore,
        f"fork(8), {name}": fork,
        f"(release of those), {name}": clean,
    }


def fresh_python() -> None:
    """What a sandbox without a fork server pays before its first line."""
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)


def docker_rows() -> dict[str, Row]:
    """Rows of Docker, where a daemon answers and has an image called agentenv-sandbox."""
    program = shutil.which("docker")
    if program is None:
        return {}
    asked = subprocess.run(
        [program, "image", "inspect", "agentenv-sandbox"], capture_output=True, check=False
    )
    if asked.returncode:
        return {}
    command = [
        program,
        "run",
        "--rm",
        "--network",
        "none",
        "agentenv-sandbox",
        "python3",
        "-c",
        "import numpy",
    ]
    return {"docker run": lambda: _quietly(command)}


def _quietly(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def sustained(executor: JailExecutor, seconds: float) -> dict[str, float]:
    """Isolated runs a second from as many threads as there are processors."""
    end, counts = time.perf_counter() + seconds, [0, 0, 0]

    def go(index: int) -> None:
        while time.perf_counter() < end:
            _ok(executor.run("print(1)"))
            counts[index] += 1

    threads = [threading.Thread(target=go, args=(index,)) for index in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"per_second": round(sum(counts) / seconds, 1), "n": sum(counts)}


def timed(row: Row) -> float:
    """Milliseconds of one call."""
    begin = time.perf_counter()
    row()
    return (time.perf_counter() - begin) * 1000


def summary(times: list[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds."""
    ordered = sorted(times)
    high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"median_ms": round(statistics.median(times), 2), "p99_ms": round(high, 2), "n": len(times)}


def _ok(result: Any) -> None:
    if not result.ok:
        raise SystemExit(f"a measured program failed: {result}")


if __name__ == "__main__":
    main()
