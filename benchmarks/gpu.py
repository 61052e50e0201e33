"""What one card does with this package, in ten minutes: numerics, memory, speed, and a run from end to end.

    make gpu                                   # or: python benchmarks/gpu.py
    python benchmarks/gpu.py --only loss training --cells "1.5B.*compiled"
    python benchmarks/gpu.py --only-missing    # what the result file lacks, because a budget or a deadline cut it off
    python benchmarks/gpu.py --tiny            # the same sections with tiny shapes, on the CPU, in a minute

It needs torch, transformers and this package's light dependencies, and no network: models are made from configurations, with
random weights. Each section runs in a process of its own with a deadline, so that one that fails, hangs or runs out of
memory costs its own figures alone. What is not installed is skipped, and the reason is printed and written.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import RESULTS, common_arguments, run_script, write  # isort: skip
from gpu_models import Plan, describe_card, tried  # isort: skip
from gpu_sections import SECTIONS  # isort: skip

GRACE_S = 20.0
"""What stays of the budget for the last section's end and the result file."""
LOOK_S = 1.0
"""Seconds between two looks at what a section has measured so far, which is in the result file if this process is killed."""
CARD = "card"
"""The section, named by nobody, in which a process says which card it sees and measures nothing."""
UNDER_WAY = "this process was ended while the section was being measured"
"""What a section says in the result file until it has ended."""
CARD_S = 90.0
"""Seconds after which a card that has not answered is given up; importing torch takes most of them."""


Figures = dict[str, Any]


def run_section(
    name: str,
    args: argparse.Namespace,
    seconds: float,
    held: Mapping[str, Any] | None = None,
    tell: Callable[[Figures], object] = lambda figures: None,
) -> Figures:
    """Runs one section in a process group of its own; what it measured, or why there is nothing.

    Args:
        name: Of the section.
        args: Of the command line.
        seconds: After which it is ended.
        held: Its rows that an earlier call has measured, by name; they stay, and are not measured again.
        tell: Is told the figures so far whenever there are more of them.
    """
    began, rows = time.monotonic(), dict(held or {})
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        words = [sys.executable, str(Path(__file__).resolve()), "--section", name, "--out", str(out)]
        words += ["--device", args.device, "--threads", str(args.threads), *["--tiny"] * args.tiny]
        words += ["--cells", args.cells, "--held", json.dumps(list(rows))]
        child = subprocess.Popen(words, stdout=sys.stderr, start_new_session=True)
        try:
            code = _watched(child, out, seconds, lambda figures: tell(rows | figures))
            found = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
            if code or not (found or rows):  # killed for its memory, say, with some of its figures written
                kept = "after these figures" if found else "and wrote no figures"
                found["failed"] = f"its process ended with exit code {code} {kept}"
        except subprocess.TimeoutExpired:
            found = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
            found["failed"] = f"it did not end within {seconds:.0f} s"
        finally:
            _end(child)
    return rows | found | {"seconds": round(time.monotonic() - began, 1)}


def _watched(
    child: "subprocess.Popen[bytes]", out: Path, seconds: float, tell: Callable[[Figures], object]
) -> int:
    """The exit code of ``child``, which writes its figures to ``out`` now and then; they are told when they have changed.

    Raises:
        subprocess.TimeoutExpired: it did not end within so many seconds.
    """
    ends, told = time.monotonic() + seconds, ""
    while True:
        left = ends - time.monotonic()
        try:
            return child.wait(timeout=max(0.0, min(left, LOOK_S)))
        except subprocess.TimeoutExpired:
            if left <= LOOK_S:
                raise
        if (figures := out.read_text(encoding="utf-8") if out.is_file() else "") != told:
            told = figures
            tell(json.loads(figures))


def is_complete(figures: Any) -> bool:
    """Whether nothing in the figures of a section, or of a row, was skipped or has failed."""
    if not isinstance(figures, dict):
        return True
    return not {"skipped", "failed"} & figures.keys() and all(map(is_complete, figures.values()))


def complete_rows(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a section that have all their figures."""
    return {name: row for name, row in figures.items() if isinstance(row, dict) and is_complete(row)}


def held_sections(path: Path, card: Mapping[str, Any], *, tiny: bool) -> dict[str, Figures]:
    """The sections in an earlier result file; none where there is no file.

    Raises:
        SystemExit: it is from another card, or with other shapes.
    """
    if not path.is_file():
        return {}
    earlier = json.loads(path.read_text(encoding="utf-8"))
    if (earlier["card"], earlier["tiny"]) != (dict(card), tiny):
        raise SystemExit(
            f"--only-missing adds to {path}, which is from {earlier['card']} with tiny={earlier['tiny']}: name a file of "
            "this card by --out"
        )
    found: dict[str, Figures] = earlier["sections"]
    return found


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Ends the process and what it started, and waits for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the driver, which no signal reaches
        child.wait(timeout=GRACE_S)


def child_main(args: argparse.Namespace) -> None:
    """One section in this process; its figures are written whenever a part of them is complete, and stay if it fails."""
    kept: dict[str, Any] = {}

    def keep(figures: dict[str, Any]) -> None:
        kept.update(figures)
        part = args.out.with_suffix(".part")
        part.write_text(json.dumps(kept), encoding="utf-8")
        part.replace(args.out)

    if args.section == CARD:
        keep(tried(lambda: describe_card(args.device)))
        return
    measure = SECTIONS[args.section].measure
    done = frozenset(json.loads(args.held))
    plan = Plan.of(args.device, tiny=args.tiny, threads=args.threads, keep=keep, cells=args.cells, held=done)
    keep(tried(lambda: measure(plan)))
    if not kept and not done:
        keep({"skipped": f"--cells {args.cells!r} is found in the name of no row here"})


def card_of(args: argparse.Namespace) -> dict[str, Any]:
    """What the figures are from, as ``describe_card`` says it in a process of its own.

    A card in exclusive mode serves one process at a time.

    Raises:
        SystemExit: the card does not say so, or not in time.
    """
    card = run_section(CARD, args, CARD_S)
    if "kind" not in card:
        raise SystemExit(
            f"--device {args.device} gave nothing to measure on: {card.get('failed', card.get('skipped'))}"
        )
    card.pop("seconds", None)
    return card


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """The figures of all sections as lines."""
    lines = []
    for name, found in results.items():
        lines.append(f"{name} ({found.get('seconds', 0)} s): {SECTIONS[name].claim}")
        lines += [f"    {reason}: {found[reason]}" for reason in ("skipped", "failed") if reason in found]
        lines += [f"    {line}" for line in _flat(found)]
    return lines


def _flat(figures: dict[str, Any], before: str = "") -> list[str]:
    """One line for each row of figures: its name, then its figures."""
    leaves, lines = [], []
    for name, value in figures.items():
        if isinstance(value, dict):
            lines += _flat(value, f"{before}{name}  ")
        elif name not in ("skipped", "failed", "seconds"):
            leaves.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    reasons = [f"{name}: {figures[name]}" for name in ("skipped", "failed") if before and name in figures]
    return ([before + ", ".join([*leaves, *reasons])] if leaves or reasons else []) + lines


def main() -> None:
    """Runs the sections one after the other, and writes the result after each of them."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, for a test of the kit on the CPU")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), help="sections")
    parser.add_argument(
        "--cells", default="", help="a regular expression, for rows of sampling, training and attention"
    )
    parser.add_argument(
        "--only-missing", action="store_true", help="add to the result file what it has not got"
    )
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for everything")
    parser.add_argument("--section", choices=[*SECTIONS, CARD], help=argparse.SUPPRESS)
    parser.add_argument("--held", default="[]", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.section:
        child_main(args)
        return
    began, card = time.monotonic(), card_of(args)
    results = held_sections(result_file(args, card), card, tiny=args.tiny) if args.only_missing else {}
    for name in args.only:
        held = results.get(name, {})
        # Of rows that are chosen by name nobody here knows whether all are there; their process does.
        if held and is_complete(held) and not SECTIONS[name].by_rows:
            continue
        left = args.budget - (time.monotonic() - began) - GRACE_S
        if left < 1:
            results[name] = held or {"skipped": f"the budget of {args.budget:.0f} s is spent"}
        else:
            deadline = left if args.tiny else min(left, SECTIONS[name].deadline_s)
            rows = complete_rows(held)
            results[name] = run_section(name, args, deadline, rows, partial(_told, args, card, results, name))
        _keep(args, card, results)
    print(json.dumps(_keep(args, card, results)) if args.json else "\n".join([str(card), *table(results)]))


def _told(
    args: argparse.Namespace, card: Figures, results: dict[str, Figures], name: str, figures: Figures
) -> None:
    """Writes what a section has measured so far."""
    _keep(args, card, results | {name: figures | {"failed": UNDER_WAY}})


def result_file(args: argparse.Namespace, card: Mapping[str, Any]) -> Path:
    """Where the figures are written."""
    return args.out or RESULTS / f"{_name(card)}.json"


def _name(card: Mapping[str, Any]) -> str:
    return "gpu" if card["kind"] == "cuda" else "gpu_kit_on_cpu"


def _keep(args: argparse.Namespace, card: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = write(_name(card), args, {"card": card, "tiny": args.tiny, "sections": results})
    return figures


if __name__ == "__main__":
    run_script(main)
