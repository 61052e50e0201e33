"""Ten thousand runs that leave nothing, then ten minutes in which jails, zygotes and the engine are killed at random.

    python benchmarks/sandbox_soak.py --backend bwrap
    python benchmarks/sandbox_soak.py --backend docker --engine      # with an engine of its own, which is killed too

Every program has one right outcome. A run gives that or an infrastructure failure, and nothing else: no fault can become a
reward. It fails, and says how, on any other outcome, on an error without a type, on counters that do not add up, and on
descriptors, processes, memory or files that grow.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentenv.errors import Fault, SnapshotError
from agentenv.sandbox import docker, image, labels
from agentenv.sandbox.backends import make_executor
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecStatus, ExecutionLimits

from common import RESULTS, finish, load, run_script  # isort: skip  # a sibling script

LIMITS = ExecutionLimits(wall_s=60.0, cpu_s=30.0, memory_mb=128)
BRIEF = ExecutionLimits(wall_s=0.3, memory_mb=128)
PROGRAMS: dict[str, tuple[str, ExecutionLimits, ExecStatus, str]] = {
    "right": ("print(sum(range(100)))", LIMITS, ExecStatus.OK, "4950\n"),
    "raises": ("1 / 0", LIMITS, ExecStatus.ERROR, ""),
    "exits": ("import os; os._exit(1)", LIMITS, ExecStatus.ERROR, ""),
    "writes": ("open('f', 'w').write('x' * 99); print(len(open('f').read()))", LIMITS, ExecStatus.OK, "99\n"),
    "sleeps": ("import time; time.sleep(600)", BRIEF, ExecStatus.TIMEOUT, ""),
    "allocates": ("held = [bytearray(10**7) for _ in iter(int, 1)]", LIMITS, ExecStatus.OOM, ""),
}
RIGHT = "as it should"
ENGINE_S = 60.0
SETTLE_S = 0.5  # in which every zygote makes its next supervisor
SPARE = {"descriptors": 4, "processes": 4, "owner_mib": 24.0, "jails_mib": 64.0, "inodes": 20}
"""By how much the last census may exceed the first."""


def main() -> None:
    """Runs both parts and writes the result file; leaves with 1 where something was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="bwrap", help="bwrap or docker")
    parser.add_argument("--runs", type=int, default=10_000, help="of the first part")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the second part")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two kills")
    parser.add_argument("--engine", action="store_true", help="start an engine, and kill it too")
    parser.add_argument("--out", type=Path, help="by default benchmarks/results/sandbox_soak_BACKEND.json")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    args = parser.parse_args()
    before = load()
    args.out = args.out or RESULTS / f"sandbox_soak_{args.backend}.json"
    with contextlib.ExitStack() as stack:
        # Whatever is left on the disk is left here, and can be counted.
        tempfile.tempdir = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentenv-soak-"))
        engine = stack.enter_context(Engine()) if args.engine else None
        judge = Judge()
        with make_executor(args.backend, limits=LIMITS, size=2, wait_s=120.0) as executor:
            censuses = flat(executor, args.runs, judge)
        quiet = dict(judge.counts)
        judge.failures += [f"{name}, though nothing was killed" for name in quiet if not name.endswith(RIGHT)]
        with make_executor(args.backend, limits=LIMITS, size=2, wait_s=120.0) as executor:
            kills = storm(executor, args.minutes * 60, args.every, judge, engine)
        judge.grown(censuses)
    figures = {
        **before,
        "backend": args.backend,
        "runs": args.runs,
        "censuses": censuses,
        "minutes": args.minutes,
        "kills": dict(sorted(kills.items())),
        "started": judge.started,
        "outcomes": {name: judge.counts[name] for name in sorted(judge.counts)},
        "outcomes_without_kills": {name: quiet[name] for name in sorted(quiet)},
        "failures": len(judge.failures),
        "first_failures": judge.failures[:5],
    }
    finish(
        "sandbox_soak",
        args,
        figures,
        [f"{name:<24}{value}" for name, value in figures.items()],
    )
    sys.exit(1 if judge.failures else 0)


class Judge:
    """Counts every outcome and knows which ones are wrong."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.started = 0
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def see(self, executor: JailExecutor, draw: random.Random) -> None:
        """Runs one program, or one session, and takes down how it ended."""
        name = draw.choice([*PROGRAMS, "session"])
        with self._lock:
            self.started += 1
        try:
            found = rewind(executor) if name == "session" else once(executor, name)
        except (Fault, SnapshotError) as error:
            found = type(error).__name__
        except BaseException as error:
            found = f"untyped {error!r}"
        with self._lock:
            self.counts[f"{name}: {found}"] += 1
            if found.startswith(("wrong", "untyped")):
                self.failures.append(f"{name}: {found}")

    def grown(self, censuses: list[dict[str, float]]) -> None:
        """Adds a failure for whatever grew, and one if a run was lost."""
        first, last = censuses[0], censuses[-1]
        for name, spare in SPARE.items():
            if last[name] > first[name] + spare:
                self.failures.append(f"{name} grew from {first[name]} to {last[name]}")
        if self.started != sum(self.counts.values()):
            self.failures.append(f"{self.started} runs were started, {sum(self.counts.values())} ended")


def once(executor: JailExecutor, name: str) -> str:
    """How a program ended: ``as it should``, ``masked``, or what was wrong."""
    code, limits, status, stdout = PROGRAMS[name]
    result = executor.run(code, limits=limits)
    if result.status is ExecStatus.SANDBOX_ERROR:
        return "masked"
    right = result.status is status and (status is not ExecStatus.OK or result.stdout == stdout)
    return RIGHT if right else f"wrong: {result}"


def rewind(executor: JailExecutor) -> str:
    """A session that goes back; as ``once``."""
    with executor.open() as session:
        session.run("x = [1]")
        point = session.snapshot()
        changed = session.run("x.append(2)\nx")
        session.restore(point)
        result = session.run("x")
        if ExecStatus.SANDBOX_ERROR in (changed.status, result.status) or changed.state_lost:
            return "masked"
        return RIGHT if (changed.value, result.value) == ("[1, 2]", "[1]") else f"wrong: {result}"


def flat(executor: JailExecutor, runs: int, judge: Judge) -> list[dict[str, float]]:
    """Runs programs from two threads, with a census after every fifth of them; the first fifth is the warm-up."""
    censuses: list[dict[str, float]] = []
    for part in range(5):
        drive(lambda draw: judge.see(executor, draw), part, runs // 10)
        censuses.append({"runs": judge.started, **census(executor)})
    return censuses


def drive(act: Callable[[random.Random], None], seed: int, times: int) -> None:
    """``act`` so many times in each of two threads."""

    def go(index: int) -> None:
        draw = random.Random(f"{seed} {index}")
        for _ in range(times):
            act(draw)

    threads = [threading.Thread(target=go, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def census(executor: JailExecutor) -> dict[str, float]:
    """What the owner and its jails hold once nothing runs."""
    executor.warm()
    time.sleep(SETTLE_S)
    jails = descendants(roots(executor))
    return {
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "processes": len(jails),
        "owner_mib": resident_mib(os.getpid()),
        "jails_mib": sum(map(resident_mib, jails)),
        "inodes": inodes(tempfile.gettempdir()),
    }


def inodes(root: str) -> int:
    """Files and folders below ``root``, without what is mounted there."""
    count = 0
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not os.path.ismount(f"{folder}/{name}")]
        count += len(folders) + len(names)
    return count


def roots(executor: JailExecutor) -> set[int]:
    """The processes below which everything of the jails is."""
    if executor.info().name != "docker":
        return {os.getpid()}
    with contextlib.closing(docker.engine()) as client:
        own = [name for name, owner in docker.owners(client).items() if owner == labels.owner_of(os.getpid())]
        return {client.inspect_container(name)["State"]["Pid"] for name in own} - {0}


def descendants(above: set[int]) -> set[int]:
    """``above`` and every process below it, without this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
    found, fresh = set(), set(above)
    while fresh:
        found |= fresh
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
    return found - {os.getpid()}


def resident_mib(pid: int) -> float:
    """Memory of a process that lies in RAM; 0 where it has ended."""
    with contextlib.suppress(OSError):
        return round(
            int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1
        )
    return 0.0


class Engine:
    """A Docker engine of this script's own, which can be killed and comes back."""

    def __enter__(self) -> "Engine":
        self._folder = tempfile.TemporaryDirectory(prefix="agentenv-engine-")
        os.environ["DOCKER_HOST"] = f"unix://{self._folder.name}/socket"
        self.start()
        image.build_from_interpreter()
        return self

    def start(self) -> None:
        """Starts it and waits until it answers."""
        place = self._folder.name
        for old in ("pid", "run/containerd/containerd.pid"):  # it would wait for the one that died with it
            Path(place, old).unlink(missing_ok=True)
        folders = [f"--pidfile={place}/pid", f"--data-root={place}/data", f"--exec-root={place}/run"]
        self._process = subprocess.Popen(
            ["dockerd", "--iptables=false", "--bridge=none", f"--host=unix://{place}/socket", *folders],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + ENGINE_S
        while True:
            with contextlib.suppress(Exception), contextlib.closing(docker.engine()):
                return
            if time.monotonic() > end:
                raise SystemExit("no Docker engine could be started")
            time.sleep(0.2)

    def kill(self) -> None:
        """Kills it without warning and starts it again."""
        self._process.kill()
        self._process.wait()
        self.start()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(ENGINE_S)
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        left = [line.split()[4] for line in lines if line.split()[4].startswith(self._folder.name)]
        for place in reversed(left):  # one that was killed leaves its mounts to nobody
            subprocess.run(["umount", "--lazy", place], check=False)
        self._folder.cleanup()


def storm(
    executor: JailExecutor, seconds: float, every: float, judge: Judge, engine: Engine | None
) -> Counter[str]:
    """Runs programs from two threads while jails, zygotes and now and then the engine are killed; counts the kills."""
    end = time.monotonic() + seconds
    kills: Counter[str] = Counter()
    draw = random.Random(0)

    def work(draw: random.Random) -> None:
        while time.monotonic() < end:
            judge.see(executor, draw)

    worker = threading.Thread(target=drive, args=(work, 99, 1))
    worker.start()
    while time.monotonic() < end:
        time.sleep(draw.uniform(0, 2 * every))
        kills[harm(executor, draw, engine)] += 1
    worker.join()
    return kills


def harm(executor: JailExecutor, draw: random.Random, engine: Engine | None) -> str:
    """Kills something; says what."""
    if engine is not None and draw.random() < 0.1:
        engine.kill()
        return "engine"
    with contextlib.suppress(Exception):  # what was to be killed may have ended
        if draw.random() < 0.5:
            executor._pool.jail("").close()
            return "jail"
        os.kill(draw.choice(sorted(zygotes(executor))), signal.SIGKILL)
        return "zygote"
    return "nothing"


def zygotes(executor: JailExecutor) -> Iterator[int]:
    """The first process of every jail."""
    above = roots(executor)
    if executor.info().name == "docker":
        return iter(above)
    outer = {pid for pid in descendants(above) if parent_of(pid) == os.getpid()}
    return iter({pid for pid in descendants(outer) if parent_of(pid) in outer})


def parent_of(pid: int) -> int:
    """A process's parent, 0 where it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


if __name__ == "__main__":
    run_script(main)
