"""What one card does with this package, in ten minutes: numerics, memory, speed, and a run from end to end.

    make gpu                                   # or: python benchmarks/gpu.py
    python benchmarks/gpu.py --only loss training --cells "1.5B.*compiled"
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import common_arguments, write  # isort: skip
from gpu_models import Plan, describe_card, tried  # isort: skip
from gpu_sections import SECTIONS  # isort: skip

GRACE_S = 20.0
"""What stays of the budget for the last section's end and the result file."""
CARD = "card"
"""The section, named by nobody, in which a process says which card it sees and measures nothing."""
CARD_S = 90.0
"""Seconds after which a card that has not answered is given up; importing torch takes most of them."""


def run_section(name: str, args: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Runs one section in a process group of its own; what it measured, or why there is nothing."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        words = [sys.executable, str(Path(__file__).resolve()), "--section", name, "--out", str(out)]
        words += ["--device", args.device, "--threads", str(args.threads), *["--tiny"] * args.tiny]
        words += ["--cells", args.cells]
        child = subprocess.Popen(words, stdout=sys.stderr, start_new_session=True)
        try:
            code = child.wait(timeout=seconds)
            found = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
            if code or not found:  # killed for its memory, say, with some of its figures written
                kept = "after these figures" if found else "and wrote no figures"
                found["failed"] = f"its process ended with exit code {code} {kept}"
        except subprocess.TimeoutExpired:
            found = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
            found["failed"] = f"it did not end within {seconds:.0f} s"
        finally:
            _end(child)
    return found | {"seconds": round(time.monotonic() - began, 1)}


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
    plan = Plan.of(args.device, tiny=args.tiny, threads=args.threads, keep=keep, cells=args.cells)
    keep(tried(lambda: measure(plan)))


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
        "--cells", default="", help="a regular expression, for rows of training and attention"
    )
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for everything")
    parser.add_argument("--section", choices=[*SECTIONS, CARD], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.section:
        child_main(args)
        return
    began, results = time.monotonic(), {}
    card = card_of(args)
    for name in args.only:
        left = args.budget - (time.monotonic() - began) - GRACE_S
        if left < 1:
            results[name] = {"skipped": f"the budget of {args.budget:.0f} s is spent"}
        else:
            results[name] = run_section(
                name, args, left if args.tiny else min(left, SECTIONS[name].deadline_s)
            )
        _keep(args, card, results)
    print(json.dumps(_keep(args, card, results)) if args.json else "\n".join([str(card), *table(results)]))


def _keep(args: argparse.Namespace, card: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    name = "gpu" if card["kind"] == "cuda" else "gpu_kit_on_cpu"
    figures: dict[str, Any] = write(name, args, {"card": card, "tiny": args.tiny, "sections": results})
    return figures


if __name__ == "__main__":
    main()
