"""What a run, a cell, a snapshot, a restore and eight forks cost, beside a fresh interpreter and Docker's own ways.

    python benchmarks/sandbox.py

Every row is measured in turn, round by round, so that a busy moment of the machine falls on all of them. Backends that
this machine does not have are left out, and so are the claims about them.
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
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.sandbox import docker
from agentenv.sandbox.backends import make_executor, unavailable
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecutionLimits

from common import finish, load, run_script  # isort: skip  # a sibling script

WARM_RUN_MS = {"bwrap": 5.0, "docker": 10.0, "unsafe-local": 5.0}
LIMITS = ExecutionLimits(memory_mb=512, wall_s=60.0, cpu_s=60.0)
STATE = "held = bytearray(50 << 20)\nheld[::4096] = b'1' * len(held[::4096])"
FILES = {f"data/{index}.bin": bytes(100_000) for index in range(10)}
FULL = {f"data/{index}.bin": bytes(7_000_000) for index in range(2)}
SMALL_FILES = "1 MB of files"
PROGRAMS = {"print": "print(1)", "numpy": "import sys; sys.path.append('/site'); import numpy; print(1)"}
"""The programs that every way of running a program is given: one that prints, and one that imports numpy first."""
SETTLE_S = 0.02
"""After the eight forks of one row have been let go, their memory is still being freed; sustained runs include that."""
Row = Callable[[], None]


def main() -> None:
    """Measures and writes the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", nargs="+", default=["bwrap", "docker"], help="which to measure")
    parser.add_argument("--rounds", type=int, default=200, help="measurements of each quick row")
    parser.add_argument("--seconds", type=float, default=10.0, help="of sustained runs")
    parser.add_argument("--out", type=Path, help="result file; by default benchmarks/results/sandbox.json")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    args = parser.parse_args()
    before = load()
    reasons = {name: unavailable(name) for name in args.backends}
    with ExitStack() as stack:
        executors = {
            name: stack.enter_context(make_executor(name, limits=LIMITS, size=1))
            for name, reason in reasons.items()
            if not reason
        }
        for executor in executors.values():
            executor.run("1")
            executor.warm()
        rows = measure(executors, args.rounds)
        for name, executor in executors.items():
            rows[f"{name}: sustained runs"] = sustained(executor, args.seconds)
    left_out = {name: reason for name, reason in reasons.items() if reason}
    figures = {
        **before,
        "left_out": left_out,
        "rows": rows,
        "claims": claims(rows, list(executors)),
    }
    finish("sandbox", args, figures, list(lines(figures)))


def measure(executors: dict[str, JailExecutor], rounds: int) -> dict[str, Any]:
    """Milliseconds of every row: median, 99th percentile, number."""
    with ExitStack() as stack:
        rows: dict[str, Row] = {}
        for backend, executor in executors.items():
            for program, source in PROGRAMS.items():
                rows[f"{backend}: warm run, {program}"] = partial(_run_ok, executor, source)
            for name, session in stack.enter_context(sessions(executor)).items():
                rows |= {f"{backend}: {row}": act for row, act in session_rows(name, session).items()}
        slow: dict[str, Row] = {
            f"fresh python -c, {program}": partial(_quietly, [sys.executable, "-c", source])
            for program, source in PROGRAMS.items()
        }
        if "docker" in executors:
            slow |= stack.enter_context(docker_rows())
        found: dict[str, list[float]] = {name: [] for name in (*rows, *slow)}
        for index in range(rounds):
            for name, row in rows.items():
                found[name].append(timed(row))
            if index % 10 == 0:
                for name, row in slow.items():
                    found[name].append(timed(row))
    return {name: summary(times) for name, times in found.items()}


def claims(rows: dict[str, Any], backends: list[str]) -> dict[str, Any]:
    """Each target with what was measured, and whether that reaches it."""
    found: dict[str, Any] = {}

    def claim(name: str, value: float, target: float, *, at_least: bool = False) -> None:
        holds = value >= target if at_least else value <= target
        found[name] = {"measured": round(value, 2), "target": target, "holds": holds}

    for backend in backends:
        median = {
            name.partition(": ")[2]: row["median_ms"]
            for name, row in rows.items()
            if name.startswith(f"{backend}: ") and "median_ms" in row
        }
        claim(f"{backend}: warm run, ms", median["warm run, print"], WARM_RUN_MS[backend])
        both = median[f"snapshot, {SMALL_FILES}"] + median[f"restore, {SMALL_FILES}"]
        claim(f"{backend}: snapshot and restore, ms", both, 10.0)
        rate = rows[f"{backend}: sustained runs"]["per_second"]
        claim(f"{backend}: runs a second", rate, 150.0, at_least=True)
        for name, times in {"docker run": 40.0, "docker exec": 10.0}.items():
            for program in PROGRAMS:
                if f"{name}, {program}" in rows:
                    ratio = rows[f"{name}, {program}"]["median_ms"] / median[f"warm run, {program}"]
                    claim(f"{backend}: times faster than {name}, {program}", ratio, times, at_least=True)
    return found


def lines(figures: dict[str, Any]) -> Iterator[str]:
    """The figures for people."""
    for name, row in figures["rows"].items():
        yield f"{name:<44} {json.dumps(row)}"
    for name, found in figures["claims"].items():
        verdict = "holds" if found["holds"] else "MISSES"
        yield f"{verdict:<7} {name}: {found['measured']} (target {found['target']})"
    for name, reason in figures["left_out"].items():
        yield f"left out: {name}, {reason}"
    yield f"load of the machine before: {figures['load_before']}, {figures['timings']}"


@contextmanager
def sessions(executor: JailExecutor) -> Iterator[dict[str, Any]]:
    """Two sessions with 50 MB of state: one with 1 MB of files, one with a full workspace."""
    made = {}
    for name, files in ((SMALL_FILES, FILES), ("14 MB of files", FULL)):
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


@contextmanager
def docker_rows() -> Iterator[dict[str, Row]]:
    """The same programs by ``docker run``, and by ``docker exec`` in a container that is there already."""
    program = shutil.which("docker")
    if program is None:
        yield {}
        return
    python = ["/py/bin/python3", "-c"]
    run = [program, "run", "--rm", "--network", "none"]
    started = subprocess.run(
        [*run, "--detach", docker.IMAGE, "sleep", "infinity"], check=True, capture_output=True, text=True
    )
    name = started.stdout.strip()
    try:
        rows: dict[str, Row] = {}
        for kind, command in {"run": [*run, docker.IMAGE], "exec": [program, "exec", name]}.items():
            for work, source in PROGRAMS.items():
                words = [*command, *python, source]
                rows[f"docker {kind}, {work}"] = partial(_quietly, words)
        yield rows
    finally:
        _quietly([program, "rm", "--force", name])


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
    """Milliseconds of one call, made once what the one before left has been cleared away."""
    time.sleep(SETTLE_S)
    begin = time.perf_counter()
    row()
    return (time.perf_counter() - begin) * 1000


def summary(times: list[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds."""
    ordered = sorted(times)
    high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"median_ms": round(statistics.median(times), 2), "p99_ms": round(high, 2), "n": len(times)}


def _run_ok(executor: Any, source: str) -> None:
    _ok(executor.run(source))


def _ok(result: Any) -> None:
    if not result.ok:
        raise SystemExit(f"a measured program failed: {result}")


if __name__ == "__main__":
    run_script(main)
