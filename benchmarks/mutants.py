"""The share of mutants that the tests kill: small changes of the source, each of which should make some test fail.

mutmut makes the mutants; ``[tool.mutmut]`` in ``pyproject.toml`` says of which modules and names the tests that may be run.
This script draws a sample of them and runs, for each, the test file of its module, then the files that import it and, where
these are few, those that import a module that does, until a test fails (``mutant_runs.py``). Tests that stand further away
are not run, so that the share of killed ones is a lower bound. The survivors are sorted by reason:

``text``         only words of a sentence differ, which no test of this project pins
``strict``       only the argument ``strict`` of ``zip`` differs, where both sides have one length by construction
``encoding``     only an encoding differs that is also the platform's default
``read``         ``mutants_explained.toml`` says in a sentence why it is no mistake that a test should find
``raised``       an error has another message as a whole: no test asks whether it names the offending value
``no tests``     no test file imports the module
``died``         the process ended without a test that failed
``out of time``  its tests took 90 seconds of the processor or ten minutes by the clock
``unexplained``  everything else: a test is missing, or the mutant computes the same

A mutant whose tests ran out of time is not counted as killed: other load on the machine may be the cause. ``--again`` runs
all of the same draw that were not killed once more, after tests were added, and adds its figures to those of the first run.

    make mutants ARGS="--sample 1500"
    make mutants ARGS="--sample 1500 --again"
"""

import contextlib
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
from functools import cache
from pathlib import Path
from typing import Any

from common import RESULTS, common_arguments, finish, run_script

from agentenv.evaluation.statistics.significance import wilson_interval

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "mutants"
VERDICTS = MUTANTS / "verdicts.jsonl"
ENOUGH = 5
"""Files of tests, from which on no more are looked for further away."""
EXPLAINED = Path(__file__).with_name("mutants_explained.toml")
WHY = {
    "text": "Only words of a sentence differ, and no test pins those.",
    "strict": "Both sides of the zip have one length by construction, so that the check never fails.",
    "encoding": "The encoding is also the default of the platform.",
    "raised": "No test asks what the message of this error names.",
    "no tests": "No test file imports the module.",
    "died": "The process of the tests ended, and no test had failed before.",
    "out of time": "Its tests ran out of time, which a mutant may cause by a loop without an end, or other load by itself.",
    "unexplained": "",
}
_STRICT = re.compile(r",\s*(strict=\w+)?\s*\)")
_ENCODING = re.compile(r"encoding=[^,)]+,?\s*|\"utf-?8\"|None", re.IGNORECASE)
_BRACES = re.compile(r"\{[^{}]*\}")
_RAISED = re.compile(r"^(raise \w+\().*\)$")


def settings() -> dict[str, Any]:
    """What ``pyproject.toml`` tells mutmut."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    return dict(found["mutmut"])


def make(children: int) -> list[str]:
    """Makes all mutants that are not there yet, beside a copy of the tests, and returns their names."""
    from mutmut.__main__ import copy_also_copy_files, copy_src_dir, create_mutants
    from mutmut.mutation.trampoline import set_mutant_under_test

    os.chdir(ROOT)
    MUTANTS.mkdir(exist_ok=True)
    set_mutant_under_test("mutant_generation")
    with contextlib.redirect_stdout(sys.stderr):
        copy_src_dir()
        copy_also_copy_files()
        create_mutants(children)
    set_mutant_under_test("")
    return sorted(
        name
        for path in MUTANTS.glob("agentenv/**/*.meta")
        for name in json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    )


def files_for(module: str) -> list[str]:
    """The test files for ``module``: that of the same name first, then those that import it, the smaller ones first.

    After them come those that import a module that imports it, and so on until there are ``ENOUGH``; where there are none at
    all, those of its package and of the commands.
    """
    found, known, edge = _importing(module), {module}, [module]
    while edge and len(set(found)) < ENOUGH:
        users = {user for one in edge for user in _users(one)}
        edge = sorted(users - known)
        known |= users
        found += [file for user in edge for file in _importing(user)]
    packages = {module.split(".")[1], "cli"}
    found = found or [file for file in _chosen() if packages & {*file.relative_to(MUTANTS).parts}]
    return [file.relative_to(MUTANTS).as_posix() for file in dict.fromkeys(found)]


@cache
def _users(module: str) -> tuple[str, ...]:
    paths = (path for path in sorted(ROOT.glob("agentenv/**/*.py")) if _named(module).search(_text(path)))
    return tuple(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)


def _importing(module: str) -> list[Path]:
    pattern, own = _named(module), _own(module)
    found = [file for file in _chosen() if file.name == own or pattern.search(_text(file))]
    return sorted(found, key=lambda file: (file.name != own, file.stat().st_size, file))


def _own(module: str) -> str:
    return f"test_{module.rpartition('.')[2]}.py"


def _named(module: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(module)}\b")


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _chosen() -> tuple[Path, ...]:
    return tuple(file for word in selection()[0] for file in _expanded(MUTANTS / word))


def selection() -> tuple[list[str], list[str]]:
    """Files and folders of tests that may be run, and the words that leave some of them out."""
    words = settings()["pytest_add_cli_args_test_selection"]
    end = words.index("--deselect")
    return words[:end], words[end:]


def _expanded(path: Path) -> list[Path]:
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def run(names: Iterable[str], children: int) -> None:
    """Runs the tests of these mutants; what became of them stands in ``VERDICTS``."""
    files = {module: files_for(module) for module in set(map(module_of, names))}
    todo = [{"mutant": name, "files": files[module_of(name)]} for name in names]
    listed = MUTANTS / "drawn.json"
    listed.write_text(json.dumps(todo), encoding="utf-8")
    words = ["--rootdir=.", "-p", "mutant_runs", *settings()["pytest_add_cli_args"], *selection()[1]]
    words += ["--mutants", str(listed), "--verdicts", str(VERDICTS), "--children", str(children)]
    words += sorted({file for several in files.values() for file in several})
    command = [sys.executable, "-m", "pytest", "-q", *words]
    paths = os.pathsep.join([str(MUTANTS), str(Path(__file__).parent)])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "MUTANT_UNDER_TEST": ""}
    done = subprocess.run(command, cwd=MUTANTS, check=False, stdout=sys.stderr, env=env)
    if done.returncode:
        sys.exit(f"The tests ended with status {done.returncode}.")


def verdicts() -> dict[str, dict[str, Any]]:
    """What became of each mutant that was run, the last time."""
    rows = map(json.loads, VERDICTS.read_text(encoding="utf-8").splitlines())
    return {row["mutant"]: row for row in rows}


def changed(name: str) -> tuple[str, str]:
    """The lines that a mutant takes away and those that it puts in their place."""
    from mutmut.__main__ import find_mutant, get_diff_for_mutant

    diff = get_diff_for_mutant(name, path=find_mutant(name).path).splitlines()
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
            code = _BRACES.findall(token.string) if text else []  # of a formatted string
            tokens.extend(["<text>", *code] if text else [token.string])
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
    if after in ("None", "") and without_text(before)[:1] == ["<text>"]:
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
        kind = reason(before, after) if status == "survived" else status
        why = WHY[kind]
    return {"mutant": name, "reason": kind, "before": before, "after": after, "why": why}


def module_of(name: str) -> str:
    """The module of a mutant."""
    return name.rpartition(".")[0]


def main() -> None:
    """Draws, runs, sorts and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--sample", type=int, default=0, help="mutants to run; 0 runs all of them")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--children", type=int, default=1, help="mutants that run at once")
    parser.add_argument("--again", action="store_true", help="run the survivors of the same draw once more")
    args = parser.parse_args()
    names = make(args.children)
    drawn = random.Random(args.seed).sample(names, args.sample) if args.sample else names
    if args.again:
        ended = statuses(drawn)
        first = first_figures(args.out or RESULTS / "mutants.json", ended)
        run([name for name in drawn if ended.get(name) != "killed"], args.children)
    else:
        first = {}
        VERDICTS.unlink(missing_ok=True)
        run(drawn, args.children)
    figures = {"mutants": len(names), "drawn": len(drawn)} | summary(statuses(drawn)) | first
    finish("mutants", args, figures, lines(figures))


def statuses(names: Iterable[str]) -> dict[str, str]:
    """What became of each of these mutants, as far as they were run."""
    found = verdicts()
    return {name: found[name]["ended"] for name in names if name in found}


def first_figures(path: Path, ended: dict[str, str]) -> dict[str, Any]:
    """The figures of the run before in a result file, for the file of the run that follows it."""
    earlier = json.loads(path.read_text(encoding="utf-8"))
    if earlier["killed"] != list(ended.values()).count("killed"):
        sys.exit(f"{path} is not of this draw, or what it ran is gone: run the draw without --again first.")
    kept = (
        "command",
        "run",
        "killed",
        "killed_share",
        "killed_share_ci95",
        "survivors_by_reason",
        "survivors",
    )
    return {"first_run": earlier.get("first_run", {key: earlier[key] for key in kept})}


def summary(status: dict[str, str]) -> dict[str, Any]:
    """Counts and shares, by module and in all, and the survivors with their changed lines and the reason."""
    killed = {name for name, outcome in status.items() if outcome == "killed"}
    read = explained()
    survivors = [survivor(name, status[name], read) for name in sorted(set(status) - killed)]
    modules = Counter(map(module_of, status))
    by_module = Counter(map(module_of, killed))
    reasons = Counter(row["reason"] for row in survivors)
    with_reason = sum(reasons[kind] for kind in ("text", "strict", "encoding", "read"))
    counted = len(status) - with_reason
    return {
        "run": len(status),
        "killed": len(killed),
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
    run_script(main)
