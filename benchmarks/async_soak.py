"""Asynchronous training for an hour while retriever, sandbox, engine and the training process itself fail at random.

    OMP_NUM_THREADS=1 python benchmarks/async_soak.py --minutes 60

| what fails | how, at random |
| --- | --- |
| retriever | a search raises a fault, raises what nobody expects, or hangs past the deadline |
| engine | a batch of sampling breaks, or hangs past the deadline |
| sandbox | jails, or the first process in one, are killed; every turn runs a program with one right outcome |
| worker | the training process is killed (SIGKILL); another one resumes the run |

Wrong is, and the script leaves with 1: a step that does not come within ``--timeout`` seconds (no hang); descriptors,
threads, processes or memory that grow within the life of a process, or a process that outlives its owner (no leak); an
episode that was struck and counts as valid, a valid one that ended in a fault, a mean reward that a masked episode is in, a
fault that an environment or a strategy swallowed, a wrong outcome of a program, counters that do not add up, a group trained
twice (no silent zero). The time runs from the first step. At its end the run is told to end in order, with faults under way.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import gzip
import json
import math
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.core.concurrency.signals import Interrupted
from agentenv.core.protocols import Retriever
from agentenv.core.registry import register
from agentenv.core.types import EndReason, Passage, Query, RetrieverInfo, Step
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import Fault, RetrieverFault, SandboxFault
from agentenv.policies.hf import HFPolicy
from agentenv.progress import SilentDisplay
from agentenv.sandbox.backends import make_executor
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecStatus, ExecutionLimits
from agentenv.trainers.config.config_files import load_config, parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder

from common import arguments, finish, fork, run_script  # isort: skip  # sibling scripts
from kills import groups  # isort: skip
from sandbox_soak import descendants, harm, inodes, resident_mib  # isort: skip

ENV = "bench/SoakSearch-v0"
QUESTIONS, SIZE, STALENESS = 3, 4, 2
WORLD = {"documents": 200, "questions": 60}
LIMITS = ExecutionLimits(wall_s=60.0, cpu_s=30.0, memory_mb=128)
CENSUS, TALLY = "census.jsonl", "tally.jsonl"
GLANCE_S = 0.05
GONE_S = 30.0  # in which the processes of a killed worker must have ended
SETTLED = 30  # steps of a life from which on growth is judged
SPARE = {"descriptors": 8, "threads": 4, "processes": 6, "mib": 64.0}
"""By how much the most in the last third of a life may exceed the most in the first."""


class Over(Exception):
    """The time is up."""


@dataclass
class Storm:
    """What fails in this process, and who was struck."""

    rng: random.Random
    rates: dict[str, float]
    deadline_s: float
    raging: bool = False
    over: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    struck: set[str | None] = field(default_factory=set)
    """Episodes whose sampling failed."""
    failures: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def draw(self, place: str, kinds: Sequence[str]) -> str:
        """What happens at ``place`` now; mostly nothing."""
        with self._lock:
            if not self.raging or self.rng.random() >= self.rates[place]:
                return ""
            kind = self.rng.choice(kinds)
            self.counts[f"{place} {kind}"] += 1
            return kind


STORM = Storm(random.Random(0), {}, 0.0)
"""Of this process; a worker sets its own."""
SANDBOX: dict[str, JailExecutor] = {}
"""The executor of this process."""


class SoakSearch(LocalSearch):
    """LocalSearch that runs a program in every turn, over a retriever that may fail."""

    def __init__(self, **options: Any) -> None:
        """Takes what LocalSearch takes."""
        super().__init__(**options)
        self.stormy = StormyRetriever(self.search.retriever)
        search = replace(self.search, retriever=self.stormy)
        self.parts = replace(self.parts, tools={**self.parts.tools, "search": search})

    async def astep(self, action: str) -> Step:
        """Runs the program, then acts."""
        number = self.state.seed % 1000 + self.state.turns
        result = await asyncio.to_thread(SANDBOX["executor"].run, f"print({number} * 7)", limits=LIMITS)
        if result.status is ExecStatus.SANDBOX_ERROR:
            STORM.counts["sandbox masked"] += 1
            raise SandboxFault(result.fault)
        if (result.status, result.stdout) != (ExecStatus.OK, f"{number * 7}\n"):
            STORM.failures.append(f"a program ended otherwise: {result}")
        step = await super().astep(action)
        if self.stormy.failed:
            STORM.failures.append("a fault of the retriever was swallowed")
        return step


class StormyRetriever:
    """Fails at random; of one environment."""

    def __init__(self, inner: Retriever) -> None:
        self.inner = inner
        self.failed = False

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """What is found, or a fault."""
        kind = STORM.draw("retriever", ("refuses", "breaks", "hangs"))
        self.failed = self.failed or bool(kind)
        if kind == "refuses":
            raise RetrieverFault("told to fail")
        if kind == "breaks":
            raise OSError("told to break")
        if kind == "hangs":
            await asyncio.sleep(10 * STORM.deadline_s)
        return await self.inner.search(queries, k)

    def info(self) -> RetrieverInfo:
        """As the one behind it."""
        return self.inner.info()


def stormy(run: Callable[[HFPolicy, Any], Any]) -> Callable[[HFPolicy, Any], Any]:
    """The sampling of a batch that breaks or hangs at random."""

    @wraps(run)
    def failing(self: HFPolicy, requests: Any) -> Any:
        kind = STORM.draw("engine", ("breaks", "hangs"))
        if kind:
            STORM.struck |= {request.episode for request in requests}
        if kind == "breaks":
            raise RuntimeError("told to break")
        if kind == "hangs":
            time.sleep(1.5 * STORM.deadline_s)
        return run(self, requests)

    return failing


@dataclass
class Watch(SilentDisplay):
    """The display of a run: checks every step, counts what the process holds, and ends the run when told to."""

    folder: RunFolder
    life: int
    training: bool = False

    def phase(self, name: str, total: int) -> None:
        """Faults strike in training alone."""
        self.training = STORM.raging = name == "training"

    def advance(self, done: int, metrics: dict[str, Any]) -> None:
        """A step ended."""
        if not self.training:
            return
        path = self.folder.path / "trajectories" / f"step-{done:06d}.jsonl.gz"
        records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        STORM.failures += wrongs(done, records, metrics, STORM.struck)
        for record in records:
            STORM.counts[f"episodes {'valid' if record['valid'] else record['end_reason']}"] += 1
        append(self.folder.path / CENSUS, {"life": self.life, "step": done} | census())
        append(self.folder.path / TALLY, {"life": self.life, "failures": STORM.failures} | dict(STORM.counts))
        if STORM.over:
            raise Over


def wrongs(
    step: int, records: Sequence[dict[str, Any]], figures: dict[str, float], struck: set[str | None]
) -> Iterator[str]:
    """What is wrong with the episodes of a step."""
    faults = {str(reason) for reason in EndReason if reason.is_fault}
    for record in records:
        if record["valid"] and record["id"] in struck:
            yield f"step {step}: {record['id']} was struck and counts"
        if record["valid"] == (record["end_reason"] in faults) or record["valid"] == bool(record["error"]):
            yield f"step {step}: {record['id']} ended by {record['end_reason']} and valid is {record['valid']}"
    rewards = [record["reward"] for record in records if record["valid"]]
    if len(records) != QUESTIONS * SIZE or figures["faults"] != len(records) - len(rewards):
        yield f"step {step}: {len(records)} episodes, {figures['faults']} faults, {len(rewards)} rewards"
    if not math.isclose(figures["reward_mean"], sum(rewards) / len(rewards), abs_tol=1e-9):
        yield f"step {step}: the mean reward is {figures['reward_mean']}, of valid episodes {rewards}"
    if figures["staleness_max"] > STALENESS:
        yield f"step {step}: trained at an age of {figures['staleness_max']}"


def census() -> dict[str, float]:
    """What this process holds."""
    return {
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": threading.active_count(),
        "processes": len(descendants({os.getpid()})),
        "mib": resident_mib(os.getpid()),
    }


def append(path: Path, line: dict[str, Any]) -> None:
    """Adds a line to a log."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def configure(args: argparse.Namespace) -> TrainConfig:
    """A run without an end that dumps every step."""
    values = load_config("laptop-search").model_dump(mode="json", exclude_none=True)
    values |= {"policy": args.policy, "threads": args.threads}
    values |= {"trajectories_every": 1, "checkpoint_every": 5}
    values["env"]["id"] = ENV
    values["search"]["encoder"] = "hash"
    for name in ("train", "dev", "test"):
        values[name]["world"] |= WORLD
    values["test"]["limit"] = 1
    values["optimizer"] |= {"steps": 10**6, "learning_rate": 1e-5}
    values["evaluation"] |= {"every": 0, "bounds": False}
    budgets = {"questions": QUESTIONS, "group_size": SIZE, "deterministic": False}
    values["rollout"] |= budgets | {"deadline_s": args.deadline}
    values["asynchronous"] = {"staleness": STALENESS}
    return parse_config(values, "the benchmark")


def work(place: Path, config: TrainConfig, args: argparse.Namespace, life: int) -> None:
    """One life of the training process, to the end of the run's time or of its own."""
    global STORM
    rates = {"retriever": args.rate, "engine": args.rate / 4}
    STORM = Storm(random.Random(1000 * args.seed + life), rates, args.deadline)
    signal.signal(signal.SIGTERM, lambda *_: setattr(STORM, "over", True))
    faulthandler.register(signal.SIGUSR1)  # where it hangs, if it does
    HFPolicy._run = stormy(HFPolicy._run)  # type: ignore[method-assign,assignment]
    begun = (place / "config.toml").exists()
    folder = RunFolder.open(place) if begun else RunFolder.create(place, config)
    with make_executor(args.backend, limits=LIMITS, size=2, wait_s=60.0) as executor:
        SANDBOX["executor"] = executor
        striker = threading.Thread(target=strike, args=(executor, args.every), daemon=True)
        striker.start()
        with contextlib.suppress(Over, Interrupted):  # the run ends in order at SIGTERM
            train(folder, Watch(folder, life))
        STORM.over = True
        striker.join()


def strike(executor: JailExecutor, every: float) -> None:
    """Kills jails and first processes until the process's time is over."""
    draw = random.Random(STORM.rng.random())
    while not STORM.over:
        time.sleep(draw.uniform(0, 2 * every))
        if STORM.raging:
            STORM.counts[f"sandbox {harm(executor, draw, None)} killed"] += 1


@dataclass
class Worker:
    """A training process; forked before any thread of torch has begun, so that nothing is imported anew."""

    place: Path
    pid: int = 0
    status: int | None = None

    def start(self, config: TrainConfig, args: argparse.Namespace, life: int) -> None:
        """Lets it begin."""
        self.pid = fork()
        if self.pid == 0:
            try:
                work(self.place, config, args, life)
            except Fault as error:  # every episode of a step was struck, which ends a run
                append(
                    self.place / TALLY, {"life": life, "failures": [], "stops": 1, "said": str(error)[:200]}
                )
            except BaseException as error:
                print(f"life {life} ended with {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)

    @property
    def progress(self) -> int:
        """Bytes that grow with every checked step, of this life and of those before."""
        path = self.place / CENSUS
        return path.stat().st_size if path.exists() else 0

    def ended(self) -> bool:
        """Whether the process has ended, in whatever way."""
        if self.status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if found else None
        return self.status is not None

    def end(self) -> set[int]:
        """Kills what is left of it; the processes below it that are still there after a while."""
        left = descendants({self.pid}) if self.status is None else set()
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)
        end = time.monotonic() + GONE_S
        while (left := {pid for pid in left if running(pid)}) and time.monotonic() < end:
            time.sleep(GLANCE_S)
        return left


def running(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    return False


@dataclass
class Supervisor:
    """Starts workers one after the other, kills them at random, and sees that steps keep coming."""

    args: argparse.Namespace
    place: Path
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    began: float | None = None
    """When the first step was made."""

    def supervise(self) -> None:
        """Until the time is up and a worker has ended in order, or one hangs."""
        config, rng = configure(self.args), random.Random(self.args.seed)
        while not self.failures:
            worker = Worker(self.place / "run")
            worker.start(config, self.args, self.counts["lives"])
            self.counts["lives"] += 1
            try:
                over = self._see(worker, rng.uniform(0, 2 * self.args.worker_every))
            finally:
                left = worker.end()
            if left:
                self.failures.append(f"{len(left)} processes outlived their worker")
            if over:
                break

    def _see(self, worker: Worker, life_s: float) -> bool:
        """One life of ``life_s`` seconds after its first step; whether it was the last."""
        seen, first, told = worker.progress, None, False
        moved = time.monotonic()
        while not worker.ended():
            time.sleep(GLANCE_S)
            now = time.monotonic()
            if worker.progress > seen:
                seen, moved = worker.progress, now
                first, self.began = first or now, self.began or now
            if now - moved > self.args.timeout:
                os.kill(worker.pid, signal.SIGUSR1)
                time.sleep(1.0)
                self.failures.append(f"no step for {self.args.timeout:g} s")
                return True
            if self.began is not None and now - self.began > 60 * self.args.minutes:
                if not told:
                    os.kill(worker.pid, signal.SIGTERM)
                told = True
            elif first is not None and now - first > life_s:
                self.counts["worker killed"] += 1
                return False
        if worker.status:
            self.failures.append(f"a worker ended with {worker.status}")
        return told


def growth(lines: Sequence[dict[str, float]]) -> Iterator[str]:
    """What grew within a life that was long enough to say."""
    for life, group in groupby(lines, key=lambda line: line["life"]):
        mine = list(group)
        third = len(mine) // 3
        for name, spare in SPARE.items():
            if len(mine) < SETTLED:
                break
            first = max(line[name] for line in mine[:third])
            last = max(line[name] for line in mine[-third:])
            if last > first + spare:
                yield f"{name} grew from {first} to {last} in life {life}"


def read(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a log."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def judged(supervisor: Supervisor, place: Path) -> dict[str, Any]:
    """All that was seen."""
    folder = place / "run"
    lines, tallies = read(folder / CENSUS), read(folder / TALLY)
    last = {tally["life"]: tally for tally in tallies if "stops" not in tally}  # the counts of a life add up
    counts, failures = Counter(supervisor.counts), list(supervisor.failures)
    for tally in (*last.values(), *(tally for tally in tallies if "stops" in tally)):
        failures += tally["failures"]
        counts.update({k: v for k, v in tally.items() if k not in ("life", "failures", "said")})
    failures += growth(lines)
    trained = groups(folder)
    steps = [line["step"] for line in RunFolder.open(folder).history()]
    if set(trained.values()) != {1} or len(trained) != QUESTIONS * len(steps):
        failures.append(
            f"{len(trained)} groups in {len(steps)} steps, trained {Counter(trained.values())} times"
        )
    if steps != list(range(1, len(steps) + 1)):
        failures.append("steps are missing from the log")
    return {
        "steps": len(steps),
        "steps_made": len(lines),
        "counts": dict(sorted(counts.items())),
        "most": {name: max(line[name] for line in lines) for name in SPARE},
        "files_left_in_the_temporary_folder": inodes(tempfile.gettempdir()),
        "failures": len(failures),
        "first_failures": failures[:5],
    }


def main() -> None:
    """Soaks, judges and writes the result file."""
    parser = arguments(__doc__ or "", steps=0)
    parser.set_defaults(threads=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="from the first step on")
    parser.add_argument("--backend", default="bwrap", help="of the sandbox: bwrap or unsafe-local")
    parser.add_argument("--rate", type=float, default=0.01, help="share of searches that fail")
    parser.add_argument("--every", type=float, default=5.0, help="mean seconds between kills in the sandbox")
    parser.add_argument("--worker-every", type=float, default=180.0, help="mean seconds of a worker's life")
    parser.add_argument("--deadline", type=float, default=20.0, help="seconds of one call of policy or env")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds without a step that are a hang")
    parser.add_argument("--seed", type=int, default=0, help="seeds the faults")
    args = parser.parse_args()
    register(ENV, "async_soak:SoakSearch")
    with tempfile.TemporaryDirectory() as run, tempfile.TemporaryDirectory() as scratch:
        tempfile.tempdir = scratch  # what workers leave on the disk is left here, and can be counted
        supervisor = Supervisor(args, Path(run))
        supervisor.supervise()
        figures = judged(supervisor, Path(run))
    settings = {name: getattr(args, name) for name in ("minutes", "backend", "rate", "deadline", "seed")}
    figures = settings | figures
    finish("async_soak", args, figures, [f"{name:<36}{value}" for name, value in figures.items()])
    sys.exit(1 if figures["failures"] else 0)


if __name__ == "__main__":
    from async_soak import main as soak  # the module that environments are made from, not a second one

    run_script(soak)
