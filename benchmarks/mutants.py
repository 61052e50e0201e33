"""The share of mutants that the tests kill: small changes of the source, each of which should make some test fail.

mutmut makes the mutants and runs the tests that reach each one; ``[tool.mutmut]`` in ``pyproject.toml`` says of which
modules and with which tests. This script draws a sample of them, has it run, and sorts the survivors by reason:

``text``         only words of a sentence differ, which no test of this project pins
``strict``       only the argument ``strict`` of ``zip`` differs, where both sides have one length by construction
``encoding``     only an encoding differs that is also the platform's default
``read``         ``mutants_explained.toml`` says in a sentence why it is no mistake that a test should find
``raised``       an error has another message as a whole: no test asks whether it names the offending value
``no tests``     none of the chosen tests reaches the function
``unexplained``  everything else: a test is missing, or the mutant computes the same

A mutant whose tests ran out of time is run once more, alone, since the cause may be other load on the machine; those that run
out of time again are counted as killed, and given by number. ``--again`` runs the survivors of the same draw once more after
tests were added and adds its figures to those of the first run in the result file.

    make mutants ARGS="--sample 1500"
    make mutants ARGS="--sample 1500 --again"
"""

import io
import json
import os
import random
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common import RESULTS, common_arguments, finish

from agentenv.evaluation.statistics import wilson_interval

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "mutants"
EXPLAINED = Path(__file__).with_name("mutants_explained.toml")
KILLED = ("killed", "timeout", "suspicious", "segfault")
WHY = {
    "text": "Only words of a sentence differ, and no test pins those.",
    "strict": "Both sides of the zip have one length by construction, so that the check never fails.",
    "encoding": "The encoding is also the default of the platform.",
    "raised": "No test asks what the message of this error names.",
    "no tests": "None of the chosen tests reaches the function.",
    "unexplained": "",
}
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
    """The tokens of ``source`` with every sentence replaced by a mark; what cannot be read whole ends early.

    A string without a space may be a name, and is none.
    """
    tokens: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            text = token.type == tokenize.STRING and " " in token.string
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
        return "raised"
    if _STRICT.sub(")", before) == _STRICT.sub(")", after):
        return "strict"
    if "encoding" in before and _ENCODING.sub("", before).replace(", )", ")") == _ENCODING.sub(
        "", after
    ).replace(", )", ")"):
        return "encoding"
    return "unexplained"


def explained() -> dict[tuple[str, str, str], str]:
    """Why a mutant is no mistake that a test should find, by function and changed lines."""
    rows = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["mutant"]
    return {(row["function"], row["before"], row["after"]): row["why"] for row in rows}


def survivor(name: str, status: str, read: dict[tuple[str, str, str], str]) -> dict[str, str]:
    """What a result file says of a mutant that no test killed."""
    before, after = changed(name)
    function = name.partition("__mutmut")[0]
    if (function, before, after) in read:
        kind, why = "read", read[function, before, after]
    else:
        kind = "no tests" if status == "no tests" else reason(before, after)
        why = WHY[kind]
    return {"mutant": name, "reason": kind, "before": before, "after": after, "why": why}


def module_of(name: str) -> str:
    """The module of a mutant."""
    return ".".join(name.split(".")[:3])


def main() -> None:
    """Draws, runs, sorts and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--sample", type=int, default=0, help="mutants to run; 0 runs all of them")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--children", type=int, default=1, help="mutants that run at once")
    parser.add_argument("--again", action="store_true", help="run the survivors of the same draw once more")
    args = parser.parse_args()
    run([FIRST], args.children)
    names = sorted(verdicts())
    drawn = random.Random(args.seed).sample(names, args.sample) if args.sample else names
    first = first_figures(args.out or RESULTS / "mutants.json", drawn) if args.again else {}
    run(select(drawn, not_killed=True) if args.again else drawn if args.sample else [], args.children)
    late = [name for name, status in statuses(drawn).items() if status == "timeout"]
    if late:
        run(late, 1)
    figures = summary(len(names), statuses(drawn)) | {"first_run_out_of_time": len(late)} | first
    finish("mutants", args, figures, lines(figures))


def statuses(names: Iterable[str]) -> dict[str, str]:
    """What became of each of these mutants."""
    from mutmut.stats import status_by_exit_code  # type: ignore[import-not-found]

    found = verdicts()
    return {name: status_by_exit_code[found[name]] for name in names}


def select(names: Iterable[str], *, not_killed: bool) -> list[str]:
    """Those of ``names`` that no test has killed, or those that one has."""
    return [name for name, status in statuses(names).items() if (status not in KILLED) is not_killed]


def first_figures(path: Path, drawn: Iterable[str]) -> dict[str, Any]:
    """The figures of the run before in a result file, for the file of the run that follows it."""
    earlier = json.loads(path.read_text(encoding="utf-8"))
    if earlier["killed"] != len(select(drawn, not_killed=False)):
        sys.exit(f"{path} is not of this draw, or what it ran is gone: run the draw without --again first.")
    kept = ("command", "killed", "killed_share", "killed_share_ci95", "survivors_by_reason", "survivors")
    return {"first_run": earlier.get("first_run", {key: earlier[key] for key in kept})}


def summary(all_mutants: int, status: dict[str, str]) -> dict[str, Any]:
    """Counts and shares, by module and in all, and the survivors with their changed lines and the reason."""
    killed = {name for name, outcome in status.items() if outcome in KILLED}
    read = explained()
    survivors = [survivor(name, status[name], read) for name in sorted(set(status) - killed)]
    modules = Counter(map(module_of, status))
    by_module = Counter(map(module_of, killed))
    reasons = Counter(row["reason"] for row in survivors)
    with_reason = sum(reasons[kind] for kind in ("text", "strict", "encoding", "read"))
    counted = len(status) - with_reason
    return {
        "mutants": all_mutants,
        "run": len(status),
        "killed": len(killed),
        "of_these_by_timeout": sum(status[name] == "timeout" for name in killed),
        "killed_share": len(killed) / len(status),
        "killed_share_ci95": list(wilson_interval(len(killed), len(status))),
        "explained": with_reason,
        "killed_share_of_the_others": len(killed) / counted,
        "killed_share_of_the_others_ci95": list(wilson_interval(len(killed), counted)),
        "modules": {name: {"run": n, "killed": by_module[name]} for name, n in sorted(modules.items())},
        "survivors_by_reason": dict(sorted(reasons.items())),
        "survivors": survivors,
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
        f"survivors: {figures['survivors_by_reason']}",
        f"without those that are explained: {figures['killed_share_of_the_others']:.3f} [{low:.3f}, {high:.3f}]",
    ]


if __name__ == "__main__":
    main()
