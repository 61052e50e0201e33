"""How busy environment workers are, and how long a run takes, as rollouts are coupled to the learner or not; simulated time.

    python benchmarks/decoupling.py

The library's own scheduling (`RolloutScheduler`) drives episodes whose environment takes seconds a turn and whose policy and
learner take fixed times. Nothing sleeps: an event loop of its own moves its clock to the next timer once nothing else can
happen, so that the figures are the same on every machine, however busy. All runs have the same workers, tasks, turns and
seconds a turn, and make as many optimiser steps. Turns of an episode are drawn by its seed from a geometric law cut to
``--longest``, seconds of a turn by seed and turn from the Pareto law of `async_training.py`.
"""

import argparse
import asyncio
import selectors
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.core import env_calls
from agentenv.core.chat import InlineFormat
from agentenv.core.concurrency.background import BackgroundLoop
from agentenv.core.env import AsyncEnv
from agentenv.core.rollout import RolloutConfig
from agentenv.core.types import Completion, EndReason, Info, Message, Observation, Sampling, Step, Task
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import complete
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.task_sampling.samplers import get_sampler
from agentenv.trainers.task_sampling.training_tasks import TrainedEnvironment, TrainingTasks
from agentenv.trainers.workers.group_runner import GroupRunner
from agentenv.trainers.workers.rollout_scheduler import RolloutScheduler

from async_training import pareto  # isort: skip  # sibling scripts
from common import common_arguments, finish, run_script  # isort: skip

T = TypeVar("T")
TOKENIZER = ByteTokenizer()
TASKS = [Task(f"t{i}", "?", ("x",)) for i in range(1000)]


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Time passes at once, where somebody waits for this loop and nothing can happen before the next timer."""

    def __init__(self) -> None:
        self.now, self.awaited = 0.0, 0
        super().__init__(_Jump(self))
        # Environments are called on this loop: another one has a clock of its own.
        env_calls._env_loops.add(self)

    def time(self) -> float:
        """Simulated seconds."""
        return self.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Here and now: no other thread takes time."""
        done: asyncio.Future[T] = self.create_future()
        done.set_result(func(*args))
        return done


class _Jump(selectors.SelectSelector):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._owner = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        """As any selector; in place of waiting for a timer the clock is moved to it."""
        if ready := super().select(0):
            return ready
        if timeout is None or not self._owner.awaited:
            return super().select(None if timeout != 0 else 0)
        self._owner.now += max(timeout, 0.0)
        return []


class Simulation(BackgroundLoop):
    """The loop of the rollouts; the learner's seconds pass on it as well."""

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """As above; while the caller waits, time may pass."""

        async def awaited() -> T:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop)
            loop.awaited += 1
            try:
                return await coroutine
            finally:
                loop.awaited -= 1

        return super().run(awaited(), timeout_s)

    def now(self) -> float:
        """Simulated seconds so far."""

        async def time() -> float:
            return asyncio.get_running_loop().time()

        return self.run(time())


@dataclass
class Meter:
    """What one run's workers did, in simulated seconds."""

    acting: float = 0.0
    """Environments were acting."""
    held: float = 0.0
    """Episodes had a worker, those that waited for the policy included."""
    turns: int = 0


class Slow(AsyncEnv[SimpleNamespace]):
    """Ends after as many turns as the seed says; every turn takes a while."""

    def __init__(self, args: argparse.Namespace, meter: Meter) -> None:
        super().__init__()
        self._args, self._meter = args, meter

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Draws the number of turns."""
        await super().areset(seed=seed)
        rng = np.random.default_rng(seed)
        self.state = SimpleNamespace(turns=0, seed=seed, began=asyncio.get_running_loop().time())
        self._length = min(int(rng.geometric(1 / self._args.turns)), self._args.longest)
        return (Message("user", "?"),), {"task_id": (options or {})["task"].id}

    async def astep(self, action: str) -> Step:
        """Waits, then counts."""
        share = float(np.random.default_rng([self.state.seed, self.state.turns]).random())
        seconds = pareto(share, self._args.fastest, self._args.slowest)
        await asyncio.sleep(seconds)
        self.state.turns += 1
        self._meter.acting += seconds
        self._meter.turns += 1
        if self.state.turns < self._length:
            return self.result((Message("tool", "."),))
        self._meter.held += asyncio.get_running_loop().time() - self.state.began
        return self.result((), reward=float(self.state.seed % 2), end=EndReason.ANSWERED)


class Answering:
    """A policy that answers after a fixed time, however many ask."""

    def __init__(self, seconds: float) -> None:
        self.tokenizer, self.version, self._seconds = TOKENIZER, 0, seconds

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """One letter."""
        await asyncio.sleep(self._seconds)
        said = complete("a", TOKENIZER, sampling)
        return Completion(said.ids, said.text, said.logprobs, said.finish, self.version)

    def release(self, episode: str) -> None:
        """Nothing is kept."""

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """Zeros."""
        return [0.0] * len(ids)


def configure(args: argparse.Namespace, staleness: int, concurrent: int, workers: int) -> TrainConfig:
    """Equal work, however it is scheduled."""
    values = {
        "rollout": {
            "questions": args.questions,
            "group_size": args.group_size,
            "workers": workers,
            "deterministic": False,
        },
        "asynchronous": {"staleness": staleness, "concurrent": concurrent},
        "optimizer": {"steps": args.steps},
    }
    return parse_config(values, "the benchmark")


def measure(args: argparse.Namespace, config: TrainConfig) -> dict[str, float]:
    """Simulated seconds of all steps, and what the workers did in them."""
    meter, policy = Meter(), Answering(args.policy_seconds)
    field = SimpleNamespace(source=SimpleNamespace(tasks=TASKS), retriever=None)
    field.make_env = lambda: Slow(args, meter)
    field.varied = lambda **options: field
    limits = RolloutConfig(context_tokens=1000, turn_tokens=4, deadline_s=1e9, deterministic=False)
    seed, steps = config.seed, config.optimizer.steps
    chat = InlineFormat(TOKENIZER)
    training = TrainingTasks([TrainedEnvironment("env", 1.0, field, limits, {})])  # type: ignore[arg-type]
    runner = GroupRunner(config.rollout, policy, chat, training, seed=seed, steps=steps)  # type: ignore[arg-type]
    made = RolloutScheduler(
        runner,
        policy,  # type: ignore[arg-type]
        get_sampler("uniform"),
        TASKS,
        config.rollout,
        seed=seed,
        steps=steps,
        staleness=config.asynchronous.staleness,
        concurrent=config.concurrent_groups,
    )
    made._loop = simulation = Simulation()
    began, oldest, episodes = simulation.now(), 0, 0
    try:
        for step in range(1, args.steps + 1):
            batch = made.batch(step)
            simulation.run(asyncio.sleep(args.update_seconds))
            policy.version = step
            oldest = max(oldest, int(batch.metrics.get("staleness_max", 0)))
            episodes += int(batch.metrics["rollouts"])
        seconds = simulation.now() - began
    finally:
        made.close()
    workers = args.questions * args.group_size
    return {
        "seconds": seconds,
        "environment_utilisation": meter.acting / (workers * seconds),
        "workers_held": meter.held / (workers * seconds),
        "actions_per_minute": 60 * meter.turns / seconds,
        "episodes": episodes,
        "turns": meter.turns,
        "staleness_max": oldest,
    }


def main() -> None:
    """Measures and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=20, help="optimiser steps")
    parser.add_argument("--questions", type=int, default=4, help="groups a step")
    parser.add_argument("--group-size", type=int, default=8, help="episodes a group")
    parser.add_argument(
        "--turns", type=float, default=8.0, help="turns of an episode, on average before the cut"
    )
    parser.add_argument("--longest", type=int, default=30, help="most turns of an episode")
    parser.add_argument("--fastest", type=float, default=0.5, help="seconds of the fastest turn")
    parser.add_argument("--slowest", type=float, default=10.0, help="seconds of the slowest turn")
    parser.add_argument("--policy-seconds", type=float, default=0.5, help="seconds of an answer")
    parser.add_argument("--update-seconds", type=float, default=20.0, help="seconds of an update")
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 2, 4], help="bounds that are tried")
    args = parser.parse_args()
    workers = args.questions * args.group_size
    runs = {"coupled": (0, 0, workers)}
    for bound in args.staleness:
        runs[f"groups, staleness {bound}"] = (bound, args.questions, 0)
        runs[f"single episodes, staleness {bound}"] = (bound, 0, workers)
    with simulated_loops():
        figures = {name: measure(args, configure(args, *how)) for name, how in runs.items()}
    base = figures["coupled"]
    for one in figures.values():
        one["speedup"] = base["seconds"] / one["seconds"]
        one["utilisation_gain"] = one["environment_utilisation"] / base["environment_utilisation"]
    lines = [
        f"{name:<30}{one['seconds']:>8.0f} s  {one['speedup']:>5.2f} times  environments busy "
        f"{one['environment_utilisation']:.1%}, {one['utilisation_gain']:.2f} times"
        for name, one in figures.items()
    ]
    setting = {name: value for name, value in vars(args).items() if name not in ("out", "json", "threads")}
    finish("decoupling", args, {"workers": workers, "setting": setting, "runs": figures}, lines)


class _Simulated(asyncio.DefaultEventLoopPolicy):
    _loop_factory = SimulatedLoop


@contextmanager
def simulated_loops() -> Iterator[None]:
    """In it event loops are simulated ones; an ordinary loop elsewhere would wait for a clock that nobody moves."""
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_Simulated())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)


if __name__ == "__main__":
    run_script(main)
