"""DomSim: steps a second on one core without pixels and with, and how long a snapshot, a restore and a fork take.

The expert plays tasks of all kinds, one after the other. A step is all that an episode does: reading the reply, acting,
layout, and the UI tree as text. Times are processor time of the process, so that other work on the machine does not count;
wall time stands beside them.

    python benchmarks/gui_speed.py --steps 20000
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from common import common_arguments, finish, run_script

from agentenv.envs.domsim.env import DomSim
from agentenv.envs.domsim.tasks import TEMPLATES


def speed(env: DomSim, steps: int) -> dict[str, float]:
    """Steps a second of episodes of all kinds; resets and the expert's thinking are not counted."""
    done, processor, wall, seed = 0, 0.0, 0.0, 0
    while done < steps:
        env.reset(seed=seed)
        actions = env.expert()
        began, clock = time.process_time(), time.perf_counter()
        for action in actions:
            env.step(action)
        processor, wall = processor + time.process_time() - began, wall + time.perf_counter() - clock
        done, seed = done + len(actions), seed + 1
    return {"steps": done, "steps_per_core_second": done / processor, "steps_per_wall_second": done / wall}


def travel(env: DomSim, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of processor time of each operation in the middle of an episode."""
    env.reset(seed=1)
    actions = env.expert()
    for action in actions[: len(actions) // 2]:
        env.step(action)
    snapshot = env.snapshot()
    return {
        "snapshot": spread(lambda: env.snapshot().release(), repeats),
        "restore": spread(lambda: env.restore(snapshot), repeats),
        "fork": spread(lambda: env.fork(1), repeats),
    }


def spread(act: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median and 99th percentile of ``act``, in milliseconds of processor time."""
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        act()
        taken.append((time.process_time() - began) * 1000)
    return {"median_ms": statistics.median(taken), "p99_ms": statistics.quantiles(taken, n=100)[98]}


def table(figures: dict[str, Any]) -> list[str]:
    """One line a measurement."""
    lines = [
        f"{name:<10}{row['steps_per_core_second']:>10.0f} steps a core second{row['steps_per_wall_second']:>10.0f} a second"
        for name, row in figures["speed"].items()
    ]
    lines += [
        f"{name:<10}{row['median_ms']:>10.3f} ms median{row['p99_ms']:>10.3f} ms p99"
        for name, row in figures["time_travel"].items()
    ]
    return lines


def main() -> None:
    """Measures and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument(
        "--steps", type=int, default=20_000, help="steps without pixels; a fiftieth with them"
    )
    parser.add_argument("--repeats", type=int, default=1000, help="snapshots, restores and forks")
    args = parser.parse_args()
    figures = {
        "templates": len(TEMPLATES),
        "speed": {
            "tree": speed(DomSim(), args.steps),
            "pixels": speed(DomSim(pixels=True), max(1, args.steps // 50)),
        },
        "time_travel": travel(DomSim(), args.repeats),
    }
    finish("gui_speed", args, figures, table(figures))


if __name__ == "__main__":
    run_script(main)
