"""The canonical solutions of HumanEval and MBPP against their hidden tests, in bulk through the pool: programs a second.

    AGENTENV_DATA=FOLDER python benchmarks/sandbox_bulk.py

Leaves with 1 where a canonical solution fails. Backends that this machine does not have are left out.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.data.code_sets import CodeSet, load_code_set
from agentenv.sandbox.backends import make_executor, unavailable
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.grading import grade
from agentenv.sandbox.types import ExecutionLimits

from common import finish, load, run_script  # isort: skip  # a sibling script

SETS = ("humaneval", "mbpp")
LIMITS = ExecutionLimits(wall_s=60.0, cpu_s=30.0, memory_mb=512)


def main() -> None:
    """Grades both sets on every backend and writes the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", nargs="+", default=["bwrap", "docker"], help="which to measure")
    parser.add_argument("--out", type=Path, help="by default benchmarks/results/sandbox_bulk.json")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    args = parser.parse_args()
    data = os.environ.get("AGENTENV_DATA")
    if not data:
        sys.exit("Set AGENTENV_DATA to the folder of the real sets.")
    before = load()
    reasons = {name: unavailable(name) for name in args.backends}
    rows: dict[str, Any] = {}
    for backend in (name for name, reason in reasons.items() if not reason):
        with make_executor(backend, limits=LIMITS) as executor:
            executor.warm()
            for name in SETS:
                rows[f"{backend}: {name}"] = graded(executor, load_code_set(name, Path(data), executor))
    left_out = {name: reason for name, reason in reasons.items() if reason}
    lines = [f"{name:<24}{row}" for name, row in {**rows, **before, "left out": left_out}.items()]
    finish("sandbox_bulk", args, {**before, "left_out": left_out, "rows": rows}, lines)
    sys.exit(any(row["failed"] for row in rows.values()))


def graded(executor: JailExecutor, loaded: CodeSet) -> dict[str, Any]:
    """How the solutions did, from as many threads as programs run at a time."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        grades = list(
            threads.map(lambda task: grade(executor, task.data["solution"], task.data["tests"]), loaded.tasks)
        )
    seconds = time.perf_counter() - begin
    return {
        "programs": len(grades),
        "failed": [task.id for task, found in zip(loaded.tasks, grades, strict=True) if not found.all_passed],
        "left_out": dict(loaded.exceptions),
        "programs_per_second": round(len(grades) / seconds, 1),
    }


if __name__ == "__main__":
    run_script(main)
