"""What going back costs in rollouts: by snapshots, by repeating the prefix, and by playing episodes anew.

    python benchmarks/time_travel.py

Three jobs in a Python interpreter whose every cell takes ``--tool-ms``: a failed call of turn t is taken back and corrected
(rollback); an episode is played again from its turn t on (retry); an episode forks at turn t into ``--branches`` (tree).
Each is done with snapshots; with an environment that goes back by a fresh start and all earlier actions again; and with
whole episodes instead, as a trainer without time travel samples them. The policy is a script, so that seconds are those of
environments and of the loop; what a policy would have had to sample is counted.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, capture, open_episode, play, rewind, take_turn
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Completion, Sampling, Step, Task
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.code import Code
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import complete
from agentenv.sandbox.backends import make_executor
from agentenv.sandbox.executor import JailExecutor
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy

from common import common_arguments, finish, run_script  # isort: skip  # a sibling script

TOKENIZER = ByteTokenizer()
CONFIG = RolloutConfig(context_tokens=1 << 20, turn_tokens=1 << 12)
_SURE, _UNSURE = -0.1, -5.0  # log-prob of every token, elsewhere and where a tree is to fork


class Writer:
    """Writes a cell in every turn and hands in at the last; fails once, or is unsure once, at turn ``at``."""

    version = 0

    def __init__(self, turns: int, at: int, tool_ms: float, *, fails: bool = False) -> None:
        self.turns, self.at, self.fails = turns, at, fails
        self.cell = f"import time; time.sleep({tool_ms / 1000}); "
        self.sampled = 0
        """Tokens so far."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """The turn is the number of outputs in the prompt."""
        turn = TOKENIZER.decode(prompt_ids).count("\n<output>\n")
        body = "1 / 0" if self.fails and turn == self.at else f"t = {turn}"
        text = f"<python>{self.cell}{body}</python>" if turn < self.turns else "<submit></submit>"
        done = complete(text, TOKENIZER, sampling)
        self.sampled += len(done.ids)
        sure = _UNSURE if turn == self.at else _SURE
        return replace(done, logprobs=(sure,) * len(done.ids))

    def release(self, episode: str) -> None:
        """Nothing is kept."""

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """Zeros."""
        return [0.0] * len(ids)


class Counted(Code):
    """Counts the steps of all its environments in ``steps[0]``."""

    def __init__(self, steps: list[int], **options: Any) -> None:
        super().__init__(**options)
        self.steps = steps

    def step(self, action: str) -> Step:
        """Acts and counts."""
        self.steps[0] += 1
        return super().step(action)


class Past:
    """A moment to go back to by repeating what was done before it."""

    released = False
    holds_resources = False

    def __init__(self, actions: Sequence[str]) -> None:
        self.actions = tuple(actions)

    def release(self) -> None:
        """Nothing is held."""


class Repeating(Counted):
    """Goes back by a fresh start and all actions again."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Remembers how it began."""
        self.done: list[str] = []
        self.start = {"seed": seed, "options": options}
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Step:
        """Remembers what was done."""
        self.done.append(action)
        return super().step(action)

    def snapshot(self) -> Any:
        """What was done so far."""
        return Past(self.done)

    def restore(self, snapshot: Any) -> None:
        """Does it again."""
        self.reset(**self.start)  # type: ignore[arg-type]
        for action in snapshot.actions:
            self.step(action)

    def fork(self, n: int = 1) -> Any:
        """Environments of their own that do it again."""
        options = {"tasks": self._tasks, "executor": self._executor, "max_turns": self._max_turns}
        twins = [Repeating(self.steps, **options) for _ in range(n)]
        for twin in twins:
            twin.start, twin.done = self.start, []
            twin.restore(Past(self.done))
        return twins


Make = Callable[[], Env[Any]]
Job = Callable[[Make, Writer, Task, int], Coroutine[Any, Any, Any]]


def _context(writer: Writer) -> RolloutContext:
    return RolloutContext(writer, InlineFormat(TOKENIZER), CONFIG, TOKENIZER.decode)


async def rollback(make: Make, writer: Writer, task: Task, branches: int) -> list[Trajectory]:
    """One episode in which a failed call is taken back."""
    strategy = get_strategy("rollback", {"similarity": "parity"})
    return await _group(strategy, make, writer, task, 1)


async def tree(make: Make, writer: Writer, task: Task, branches: int) -> list[Trajectory]:
    """One episode that forks where the policy is unsure."""
    options = {"roots": 1, "width": branches, "depth": 1, "fork_at": "surprise", "surprise": 1.0}
    return await _group(get_strategy("tree", options), make, writer, task, branches)


async def anew(make: Make, writer: Writer, task: Task, branches: int) -> list[Trajectory]:
    """Whole episodes."""
    return await _group(get_strategy("plain"), make, writer, task, branches)


async def retry(make: Make, writer: Writer, task: Task, branches: int) -> Trajectory:
    """One episode, then once more from turn ``writer.at`` on."""
    env, chat = make(), InlineFormat(TOKENIZER)
    try:
        state = await open_episode(EpisodeSpec(env, task, 0), writer, chat, CONFIG, episode="e")
        while len(state.turns) < writer.at:
            await take_turn(state, writer, chat, CONFIG)
        past, snapshot = state.copy(), await capture(state, CONFIG.deadline_s)
        await play(state, writer, chat, CONFIG)
        assert snapshot is not None
        await rewind(past, snapshot, CONFIG.deadline_s)
        snapshot.release()
        return await play(past, writer, chat, CONFIG)
    finally:
        env.close()


async def _group(strategy: Any, make: Make, writer: Writer, task: Task, n: int) -> list[Trajectory]:
    specs = [EpisodeSpec(make(), task, seed) for seed in range(n)]
    try:
        group: list[Trajectory] = await strategy.play(specs, _context(writer))
    finally:
        for spec in specs:
            spec.env.close()
    assert all(trajectory.valid for trajectory in group), group[0].error
    return group


JOBS: dict[str, Job] = {"rollback": rollback, "retry": retry, "tree": tree}


def measure(executor: JailExecutor, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each job and turn: seconds (median), steps of the environment and sampled tokens of each way."""
    (task,) = generate_code_tasks(1)
    turns = args.turns
    rows = []
    for name, job in JOBS.items():
        episodes = args.branches if name == "tree" else 2
        for at in sorted({1, turns // 2, turns - 2}):
            ways = {
                "snapshots": (job, Counted, args.branches),
                "prefix repeated": (job, Repeating, args.branches),
                "whole episodes": (anew, Counted, episodes),
            }
            row: dict[str, Any] = {"job": name, "turn": at}
            for way, (work, kind, n) in ways.items():
                row[way] = _timed(work, kind, n, executor, task, at, args, fails=name == "rollback")
            rows.append(row)
    return rows


def _timed(
    work: Job, kind: Any, n: int, executor: JailExecutor, task: Task, at: int, args: Any, *, fails: bool
) -> dict[str, Any]:
    seconds = []
    for _ in range(args.repeats):
        steps = [0]
        writer = Writer(args.turns, at, args.tool_ms, fails=fails)

        def make(steps: list[int] = steps) -> Env[Any]:
            env: Env[Any] = kind(steps, tasks=[task], executor=executor, max_turns=args.turns)
            return env

        began = time.perf_counter()
        asyncio.run(work(make, writer, task, n))
        seconds.append(time.perf_counter() - began)
    return {
        "seconds": round(statistics.median(seconds), 4),
        "steps": steps[0],
        "sampled_tokens": writer.sampled,
    }


def main() -> None:
    """Measures and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--backend", default="bwrap", help="bwrap or unsafe-local")
    parser.add_argument(
        "--turns", type=int, default=8, help="cells before the program is handed in; at least 3"
    )
    parser.add_argument("--branches", type=int, default=8, help="of a tree")
    parser.add_argument("--tool-ms", type=float, default=100.0, help="that one cell takes")
    parser.add_argument(
        "--repeats", type=int, default=3, help="measurements of each row, of which the median counts"
    )
    args = parser.parse_args()
    with make_executor(args.backend, size=1) as executor:
        executor.warm()
        rows = measure(executor, args)
    settings = {name: getattr(args, name) for name in ("backend", "turns", "branches", "tool_ms", "repeats")}
    finish("time_travel", args, settings | {"rows": rows}, table(rows))


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line a row: seconds, steps and tokens of each way."""
    ways = [name for name in rows[0] if name not in ("job", "turn")]
    lines = [f"{'':<16}" + "".join(f"{way:>28}" for way in ways)]
    for row in rows:
        cells = (
            f"{row[w]['seconds']:.2f} s {row[w]['steps']:>4} {row[w]['sampled_tokens']:>6}" for w in ways
        )
        lines.append(f"{row['job']:<10} t={row['turn']:<3}" + "".join(f"{cell:>28}" for cell in cells))
    return lines


if __name__ == "__main__":
    run_script(main)
