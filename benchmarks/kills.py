"""Nothing lost: a training run killed (SIGKILL) at random moments, resumed, and compared with the undisturbed one.

    python benchmarks/kills.py
    python benchmarks/kills.py --staleness 2
    python benchmarks/kills.py --cluster 2

``--kills`` runs, each killed once and then resumed to its end. The moment is drawn evenly over the steps: after a whole
number of logged ones and a random share of the time that a step takes, from before the first to the evaluation after the
last. A run that has ended before its moment is not counted and drawn again. A synchronous run must end in equal bytes:
metrics, every trajectory, the evaluations, the weights. With ``--staleness`` above 0, and with the workers of a Ray cluster
of this machine (``--cluster``), what is sampled depends on time; then every group that was drawn must have been trained
exactly once, under its own id, in as many steps of as many groups.

Of every run that was killed three things are checked as well: every process that it had started, those of Ray included, ends
by itself within ``GONE_S`` seconds; no step before the newest checkpoint is played again; and no half-written file is left
when the resumed run is complete. No process is waited for longer than ``--timeout`` seconds.
"""

import argparse
import gzip
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.trainers.config.config_files import load_config, parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder

from common import arguments, finish, fork, run_script  # isort: skip  # sibling scripts
from throughput import Clock  # isort: skip

QUESTIONS, SIZE = 3, 4
GLANCE_S = 0.005
GONE_S = 60.0
MARK = "AGENTENV_KILLS"
"""Environment variable that every process inherits which a run starts; its value tells this benchmark from another."""
WORLD = {"documents": 200, "questions": 24}
FAMILIES: dict[int, str] = {}
"""Processes below the runs that were killed, with the times at which they were started."""


def configure(args: argparse.Namespace) -> TrainConfig:
    """A run of seconds with a checkpoint at every other step."""
    values = load_config("laptop-search").model_dump(mode="json", exclude_none=True)
    values |= {"policy": args.policy, "threads": 1, "trajectories_every": 1, "checkpoint_every": 2}
    values["search"]["encoder"] = "hash"
    for name in ("train", "dev", "test"):
        values[name]["world"] |= WORLD
    values["test"]["limit"] = values["dev"]["limit"] = 4
    values["optimizer"]["steps"] = args.steps
    values["evaluation"] |= {"every": 3, "bounds": False}
    ahead = args.staleness > 0
    values["rollout"] |= {"questions": QUESTIONS, "group_size": SIZE, "deterministic": not ahead}
    values["asynchronous"] = {"staleness": args.staleness}
    if args.cluster:
        values["cluster"] = {"address": "local", "workers": args.cluster}
    return parse_config(values, "the benchmark")


@dataclass(frozen=True)
class Moment:
    """When a run is killed."""

    lines: int
    """So many steps are logged."""
    seconds: float
    """And so much time has passed since, or since the process began."""


def run(folder: Path, config: TrainConfig, patience_s: float, moment: Moment | None = None) -> bool:
    """Begins or resumes the run in a process of its own; whether it came to its end before its moment.

    The process is forked before any thread of torch has begun, so that nothing is imported anew.
    """
    child = fork()
    if child == 0:
        try:
            begun = (folder / "config.toml").exists()
            train(RunFolder.open(folder) if begun else RunFolder.create(folder, config), Clock())
        except BaseException as error:
            print(f"the run in {folder.name} ended with {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    status = None
    try:
        if moment is not None:
            status = ended(child, patience_s, lambda: logged(folder) >= moment.lines)
            status = ended(child, moment.seconds) if status is None else status
        else:
            status = ended(child, patience_s)
    finally:
        if status is None:
            FAMILIES.update(family(child))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if status is None and moment is None:
        raise SystemExit(f"a run took longer than {patience_s:g} s")
    if status:
        raise SystemExit("a run failed where it should have gone on")
    return status is not None


def ended(child: int, seconds: float, enough: Callable[[], bool] = lambda: False) -> int | None:
    """How the process has ended; None where it still runs after ``seconds``, or once there is ``enough``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not enough():
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(GLANCE_S)
    return None


def logged(folder: Path) -> int:
    """Steps in the log so far."""
    log = folder / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def contents(folder: Path) -> dict[str, bytes]:
    """What must not depend on interruptions."""
    patterns = ("metrics.jsonl", "trajectories/*", "evaluation/*/episodes.jsonl", "policy/model.safetensors")
    paths = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def groups(folder: Path) -> Counter[str]:
    """Steps in which each group was trained."""
    counts: Counter[str] = Counter()
    for path in folder.glob("trajectories/*"):
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        counts.update({json.loads(line)["group_id"] for line in lines})
    return counts


def same(folder: Path, whole: Path, *, exact: bool) -> bool:
    """Whether the resumed run is the undisturbed one, as far as that is determined."""
    if exact:
        return contents(folder) == contents(whole)
    ours, theirs = groups(folder), groups(whole)
    return set(ours.values()) == {1} and ours == theirs and logged(folder) == logged(whole)


def left_running(mark: str) -> list[str]:
    """The command lines of processes with ``mark`` that have not ended by themselves; they are then killed."""
    end = time.monotonic() + GONE_S
    while (found := marked(mark)) and time.monotonic() < end:
        time.sleep(GLANCE_S)
    for process in found:
        os.kill(process, signal.SIGKILL)
    return list(found.values())


def family(parent: int) -> dict[int, str]:
    """The processes below ``parent``, with the times at which they were started."""
    known: dict[int, str] = {}
    parents, started = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        fields = stat_of(int(path.name))
        if fields:
            parents[int(path.name)], started[int(path.name)] = int(fields[1]), fields[19]
    edge = {parent}
    while edge := {process for process, above in parents.items() if above in edge and process not in known}:
        known |= {process: started[process] for process in edge}
    return known


def stat_of(process: int) -> list[str]:
    """The fields of a process from its state on, as proc(5) lists them; none where it has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    fields = text.rpartition(")")[2].split()
    return [] if fields[0] == "Z" else fields


def marked(mark: str) -> dict[int, str]:
    """The processes that were started by a run of this benchmark, with their command lines.

    They are known by an environment variable, and by having been below a run that was killed: a program that changes its
    title, as Ray's do, may overwrite its environment.
    """
    below = {process for process, started in FAMILIES.items() if stat_of(process)[19:20] == [started]}
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            noted = f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0")
            if noted or int(path.name) in below:
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(path.name)] = command.decode(errors="replace").strip()
        except OSError:  # it has just ended
            continue
    return found


def kept(folder: Path) -> dict[str, int]:
    """When the trajectories of the steps up to the newest checkpoint were written, in nanoseconds."""
    saved = max((number(path) for path in folder.glob("checkpoints/step-??????")), default=0)
    steps = (path for path in folder.glob("trajectories/step-*.jsonl.gz") if number(path) <= saved)
    return {path.name: path.stat().st_mtime_ns for path in steps}


def number(path: Path) -> int:
    """The step that a file or folder is named after."""
    return int(path.name.partition(".")[0].removeprefix("step-"))


def half_written(folder: Path) -> list[str]:
    """Files that were to be renamed once they are complete."""
    return [path.name for path in folder.rglob("*") if path.suffix in (".part", ".old")]


def trials(args: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Kills, and what came of them."""
    config, rng = configure(args), random.Random(args.seed)
    os.environ[MARK] = mark = uuid.uuid4().hex
    exact = args.staleness == 0 and not args.cluster
    began = time.perf_counter()
    run(place / "whole", config, args.timeout)
    seconds = time.perf_counter() - began
    folder = place / "killed"
    moments: list[int] = []
    checkpoints: list[int] = []
    right = Counter({"equal": 0, "gone_on_from_the_checkpoint": 0, "nothing_half_written": 0})
    orphans = left_running(mark)
    while len(moments) < args.kills:
        moment = Moment(rng.randint(0, args.steps), rng.random() * seconds / args.steps)
        early = run(folder, config, args.timeout, moment)
        orphans += left_running(mark)
        if not early:
            moments.append(logged(folder))
            checkpoints.append(len(list(folder.glob("checkpoints/step-??????"))))
            before = kept(folder)
            run(folder, config, args.timeout)
            orphans += left_running(mark)
            right["equal"] += same(folder, place / "whole", exact=exact)
            right["gone_on_from_the_checkpoint"] += before.items() <= kept(folder).items()
            right["nothing_half_written"] += not half_written(folder)
        shutil.rmtree(folder)
    return {
        "kills": len(moments),
        **right,
        "processes_left": orphans,
        "lines_at_the_kill": moments,
        "checkpoints_at_the_kill": checkpoints,
        "seconds_undisturbed": seconds,
    }


def main() -> None:
    """Kills, resumes and compares; exits with 1 where a run differs."""
    parser = arguments(__doc__ or "", steps=8)
    parser.add_argument("--kills", type=int, default=20, help="runs that are killed")
    parser.add_argument(
        "--staleness", type=int, default=0, help="bound of asynchronous training; 0 is synchronous"
    )
    parser.add_argument(
        "--cluster", type=int, default=0, help="workers of a Ray cluster of this machine; 0 plays here"
    )
    parser.add_argument("--seed", type=int, default=0, help="seeds the moments")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds that any run may take")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        figures = trials(args, Path(place))
    lines = [
        f"of {figures['kills']} killed runs {figures['equal']} equal the undisturbed one, "
        f"{figures['gone_on_from_the_checkpoint']} went on from their checkpoint, {figures['nothing_half_written']} left "
        f"nothing half-written; {len(figures['processes_left'])} processes were left"
    ]
    name = "kills_cluster" if args.cluster else "kills_asynchronous" if args.staleness else "kills"
    settings = {"staleness": args.staleness, "cluster": args.cluster, "steps": args.steps}
    finish(name, args, settings | figures, lines)
    right = (figures["equal"], figures["gone_on_from_the_checkpoint"], figures["nothing_half_written"])
    if min(right) < figures["kills"] or figures["processes_left"]:
        raise SystemExit(1)


if __name__ == "__main__":
    run_script(main)
