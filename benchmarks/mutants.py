"""The share of mutants that the tests kill: small changes of the source, each of which should make some test fail.

mutmut makes the mutants and runs the tests that reach each one; ``[tool.mutmut]`` in ``pyproject.toml`` says of which
modules and with which tests. This script draws a sample of them, has it run, and sorts the survivors by reason:

``text``         only the text of a message differs, which no test of this project pins
``strict``       only the argument ``strict`` of ``zip`` differs, where both sides have one length by construction
``encoding``     only an encoding differs that is also the platform's default
``no tests``     none of the chosen tests reaches the function
``unexplained``  everything else: a test is missing, or the mutant computes the same

    make mutants ARGS="--sample 1500"
"""

import io
import json
import os
import random
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common import common_arguments, finish

from agentenv.evaluation.statistics import wilson_interval

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "mutants"
FIRST = "agentenv.core.pauses*"
"""A small module: its run makes all mutants, so that they can be drawn from."""
_STRICT = re.compile(r",\s*(strict=\w+)?\s*\)")
_ENCODING = re.compile(r"encoding=[^,)]+,?\s*|\"utf-?8\"|None", re.IGNORECASE)
_RAISED = re.compile(r"^(raise \w+\().*\)$")


def verdicts() -> dict[str, int | None]:
    """The exit status of the tests by mutant; None for one that was not run."""
    found: dict[str, int | None] = {}
    for path in sorted(MUTANTS.glob("agentenv/**/*.meta")):
        found |= json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return found


def run(names: Iterable[str], children: int) -> None:
    """Has mutmut run the mutants of these names or patterns."""
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(children), *names]
    done = subprocess.run(
        command, cwd=ROOT, check=False, stdout=sys.stderr, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        sys.exit(f"mutmut ended with status {done.returncode}.")


def changed(name: str) -> tuple[str, str]:
    """The lines that a mutant takes away and those that it puts in their place."""
    command = [sys.executable, "-m", "mutmut", "show", name]
    diff = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    lines = [line for line in diff if not line.startswith(("---", "+++"))]
    return tuple("\n".join(line[1:].strip() for line in lines if line[:1] == sign) for sign in "-+")  # type: ignore[return-value]


def without_text(source: str) -> list[str]:
    """The tokens of ``source`` with every string replaced by a mark; what cannot be read whole ends early."""
    tokens: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            text = token.type == tokenize.STRING or tokenize.tok_name[token.type].startswith("FSTRING")
            tokens.append("<text>" if text else token.string)
    except (tokenize.TokenError, IndentationError):
        return [*tokens, source if not tokens else ""]
    return tokens


def reason(before: str, after: str) -> str:
    """Why a mutant may survive, from the changed lines."""
    if without_text(before) == without_text(after):
        return "text"
    raised = [_RAISED.match(source.replace("\n", " ")) for source in (before, after)]
    if raised[0] and raised[1] and raised[0].group(1) == raised[1].group(1):
        return "text"
    if _STRICT.sub(")", before) == _STRICT.sub(")", after):
        return "strict"
    if "encoding" in before and _ENCODING.sub("", before).replace(", )", ")") == _ENCODING.sub(
        "", after
    ).replace(", )", ")"):
        return "encoding"
    return "unexplained"


def module_of(name: str) -> str:
    """The module of a mutant."""
    return ".".join(name.split(".")[:3])


def main() -> None:
    """Draws, runs, sorts and reports."""
    from mutmut.stats import status_by_exit_code  # type: ignore[import-not-found]

    parser = common_arguments(__doc__ or "")
    parser.add_argument("--sample", type=int, default=0, help="mutants to run; 0 runs all of them")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--children", type=int, default=1, help="mutants that run at once")
    args = parser.parse_args()
    run([FIRST], args.children)
    names = sorted(verdicts())
    drawn = random.Random(args.seed).sample(names, args.sample) if args.sample else names
    run(drawn if args.sample else [], args.children)
    status = {name: status_by_exit_code[code] for name, code in verdicts().items() if name in set(drawn)}
    figures = summary(len(names), status)
    finish("mutants", args, figures, lines(figures))


def summary(all_mutants: int, status: dict[str, str]) -> dict[str, Any]:
    """Counts and shares, by module and in all, and the survivors with their changed lines by reason."""
    killed = {
        name for name, outcome in status.items() if outcome in ("killed", "timeout", "suspicious", "segfault")
    }
    survivors: dict[str, list[dict[str, str]]] = {}
    for name in sorted(set(status) - killed):
        before, after = changed(name)
        why = "no tests" if status[name] == "no tests" else reason(before, after)
        survivors.setdefault(why, []).append({"mutant": name, "before": before, "after": after})
    modules = Counter(map(module_of, status))
    by_module = Counter(map(module_of, killed))
    explained = sum(len(rows) for why, rows in survivors.items() if why in ("text", "strict", "encoding"))
    counted = len(status) - explained
    return {
        "mutants": all_mutants,
        "run": len(status),
        "killed": len(killed),
        "of_these_by_timeout": sum(status[name] == "timeout" for name in killed),
        "killed_share": len(killed) / len(status),
        "killed_share_ci95": list(wilson_interval(len(killed), len(status))),
        "explained": explained,
        "killed_share_of_the_others": len(killed) / counted,
        "killed_share_of_the_others_ci95": list(wilson_interval(len(killed), counted)),
        "modules": {name: {"run": n, "killed": by_module[name]} for name, n in sorted(modules.items())},
        "survivors": {why: len(rows) for why, rows in sorted(survivors.items())},
        "unexplained": survivors.get("unexplained", []),
        "without_tests": sorted(
            {row["mutant"].partition("__mutmut")[0] for row in survivors.get("no tests", [])}
        ),
    }


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures for people."""
    shown = [
        f"{row['killed']:>4} of {row['run']:>4} killed in {name}" for name, row in figures["modules"].items()
    ]
    low, high = figures["killed_share_of_the_others_ci95"]
    return [
        *shown,
        f"{figures['killed']} of {figures['run']} mutants killed ({figures['killed_share']:.3f})",
        f"survivors: {figures['survivors']}",
        f"without text, strict and encoding: {figures['killed_share_of_the_others']:.3f} [{low:.3f}, {high:.3f}]",
    ]


if __name__ == "__main__":
    main()
