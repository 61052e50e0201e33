"""Writes one self-contained HTML page of an evaluation, a suite, or a training run.

The numbers are read from the run's folder and not recomputed, with two exceptions: paired tests of two runs, and the score
and cause of error of each episode under the first scorer.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentenv.core.io.files import write_text as write
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.registry import is_class
from agentenv.core.scoring.scorers import SCORERS
from agentenv.errors import ConfigurationError
from agentenv.evaluation.compare import compare
from agentenv.evaluation.records import EPISODES, PAGE, RESULTS, SUITE, Evaluation, read_evaluation, read_json
from agentenv.evaluation.report.charts import Curve, line_chart, value_text
from agentenv.evaluation.report.evaluation_page import evaluation_page
from agentenv.evaluation.report.page import (
    Page,
    bound_warnings,
    episodes_of,
    episodes_were,
    facts_of,
    fault_warnings,
    first_scorer,
    fit_to_page,
    levels_of,
    log_end,
    render,
    with_bounds,
)
from agentenv.evaluation.report.tables import league_tables, question_tables, tables
from agentenv.evaluation.results import OUTCOME
from agentenv.evaluation.saved_forms import check_form
from agentenv.evaluation.task_env import OWN_ENVIRONMENT

Json = dict[str, Any]

METRICS = "metrics.jsonl"
_LARGEST = 1e300  # largest number that is drawn; comparing with it also excludes NaN
_ROUNDING = 1e-6  # values this close to 0 are rounding errors of float32
_STEPS = 20  # number of steps with failures that one sentence lists
CHANGES = "changes.jsonl"
CURVES = {
    "dev_score": "{scorer} on dev",
    "reward_mean": "mean reward",
    "searches_per_episode": "searches per episode",
    "answer_rate": "share that answers",
    "format_rate": "share well-formed",
    "response_tokens": "response length, tokens",
    "entropy": "entropy, nats per token",
    "kl": "KL to the reference",
    "loss": "loss",
    "grad_norm": "gradient norm",
    "zero_variance_share": "groups without variance, share",
    "effective_groups": "groups that teach, effective number",
    "sampled_tokens": "sampled tokens a step",
    "faults": "faults",
    "valid_share": "games with an accepted question, share",
    "solved_mean": "accepted questions: mean share of attempts that succeed",
    "solved_sometimes": "accepted questions solved sometimes, share",
    "searches_mean": "accepted questions: searches of their proposers",
    "frame_entropy": "kinds of accepted questions, bits",
    "overlap": "accepted questions: mean word overlap",
}


def write_report(directory: Path | str, against: Path | str | None = None) -> Path:
    """Writes ``report.html`` into the folder of a run and returns its path.

    Args:
        directory: The folder of an evaluation, a suite or a training run.
        against: An evaluation or suite with the same questions to compare with.

    Raises:
        ConfigurationError: the folder contains none of these, or the two cannot be compared.
        MissingExtra: jinja2 is not installed.
    """
    against = None if against is None else Path(against)
    directory = Path(directory)
    if (directory / METRICS).is_file():
        if against is not None:
            raise ConfigurationError(f"{directory} is a training run; only evaluations can be compared here.")
        page = training_page(directory)
    elif (directory / SUITE).is_file() or (directory / EPISODES).is_file():
        page = evaluation_page(directory, against)
    else:
        raise ConfigurationError(
            f"{str(directory)!r} holds neither {METRICS} (a training run) nor {EPISODES} (an evaluation)."
        )
    write(directory / PAGE, render(page))
    return directory / PAGE


def training_page(directory: Path) -> Page:
    """Makes the page of a training folder, finished or not."""
    lines = read_lines(directory / METRICS, "step")
    results = _training_results(directory / RESULTS)
    sides = {
        name: read_evaluation(directory / "evaluation" / name) for name in _sides(directory / "evaluation")
    }
    scorer = next((first_scorer(side.results) for side in sides.values()), "em_squad")
    runs = [(name, side.results) for name, side in sides.items()]
    paired, warnings = _paired(sides, scorer)
    sealed = any("canary" in record for side in sides.values() for record in side.records)
    log = "" if sealed else log_end(directory)
    if not results:
        warnings.append(_unfinished(directory, log))
    named = [name for name in dict.fromkeys(("before", "after", *sides)) if results.get(name) is not None]
    for name in (name for name in named if name not in ("before", "after")):
        check_form("score", results[name], f"{directory / RESULTS}, {name}")
    levels = levels_of({_labelled(name, results[name], scorer): results[name] for name in named})
    curves, constants = _curves(lines, scorer)
    config, questions = directory / "config.toml", directory / "questions.jsonl"
    changes = read_lines(directory / CHANGES, "change") if (directory / CHANGES).is_file() else []
    warnings += [_change(**change) for change in changes]
    page = Page(
        title=f"Training run {directory.resolve().name}",
        facts=facts_of(next(sides[name].results for name in ("after", "before") if name in sides))
        if sides
        else [],
        scorer=scorer,
        levels=with_bounds(levels, results.get("bounds", {})),
        cards=levels,
        warnings=[
            *warnings,
            *_training_warnings(lines),
            *fault_warnings(list(sides.items())),
            *bound_warnings({"": results}),
        ],
        labels=[label for label, _ in runs],
        tables=[
            *tables(runs, scorer),
            *league_tables(results.get("league")),
            *question_tables(read_lines(questions, "question") if questions.is_file() else []),
        ],
        episodes=_episodes(list(sides.values())),
        paired=paired,
        curves=curves,
        constants=constants,
        seconds=_seconds(results, directory),
        config=config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "",
        log=log,
        unfinished=not results,
    )
    return fit_to_page(page, list(sides.values()))


def _episodes(sides: Sequence[Evaluation]) -> list[Json]:
    """Returns the questions of all ``sides``; those of different environments are separate, because ids may coincide."""
    asked = [side.results.get("settings", {}).get("questions_fingerprint") for side in sides]
    entries = []
    for one in dict.fromkeys(asked):
        mine = [
            side if its == one else replace(side, records=[]) for side, its in zip(sides, asked, strict=True)
        ]
        entries += episodes_of(mine, first_scorer(sides[asked.index(one)].results))
    return entries


def _labelled(name: str, score: Any, scorer: str) -> str:
    """Returns ``name``, with the scorer of its ``score`` if it is not ``scorer``, as in a further environment."""
    own = score.get("scorer", scorer) if isinstance(score, dict) else scorer
    return name if own == scorer else f"{name} ({own})"


def _training_results(path: Path) -> Json:
    """Reads the results of a training run; empty if it is not finished."""
    results = read_json(path) if path.is_file() else {}
    check_form("training", results, str(path))
    return results


def _unfinished(directory: Path, log: str) -> str:
    """Returns a message that there are no results, with the end of the log and advice."""
    last = log.strip().rpartition("\n")[2]
    said = f" Its log ends with: {last!r}." if last else ""
    return (
        f"The run is not finished: there is no results.json yet.{said} Unless a process still works on it, continue with: "
        f"agentenv train --resume {shlex.quote(str(directory))}"
    )


def _change(after_step: int, key: str, old: Any, new: Any) -> str:
    """Describes one setting that ``train --resume`` changed."""
    return f"The run went on after step {after_step} with {key} = {new!r} in place of {old!r}."


def _sides(folder: Path) -> list[str]:
    """Lists a run's finished evaluations: before, after, then those with a rollout strategy or in a further environment."""
    names = sorted(path.parent.name for path in folder.glob(f"*/{RESULTS}"))
    order = {"before": 0, "after": 1}

    def place(name: str) -> tuple[str, int, str]:
        moment, _, what = name.partition("-")
        return what, order.get(moment, len(order)), name

    return sorted(names, key=place)


def _paired(sides: Mapping[str, Evaluation], scorer: str) -> tuple[Json | None, list[str]]:
    if not {"before", "after"} <= set(sides) or not (scorer in {*SCORERS, OUTCOME} or is_class(scorer)):
        return None, []
    try:
        result = compare(sides["before"].directory, sides["after"].directory, scorer=scorer)
    except ConfigurationError as error:
        return None, [f"Before and after cannot be compared: {error}"]
    return {**result["scores"][scorer], "n": result["n"]}, []


def _training_warnings(lines: Sequence[Json]) -> list[str]:
    alike: dict[str, list[Json]] = {}  # warnings grouped by their words, without figures
    for line in lines:
        if line.get("warning"):
            alike.setdefault(re.sub(r"[\d.]+", "", line["warning"]), []).append(line)
    warnings = [
        _at_steps([line.get("step", "?") for line in repeats], repeats[-1]["warning"])
        for repeats in alike.values()
    ]
    failed = {line["step"]: line["faults"] for line in lines if line.get("faults")}
    if failed:
        steps = ", ".join(f"{step} ({count})" for step, count in [*failed.items()][-_STEPS:])
        lately = f", the last {_STEPS} of {len(failed)} such steps" if len(failed) > _STEPS else ""
        warnings.append(
            f"{episodes_were(sum(failed.values()), 'training ')} masked for an infrastructure failure, in step {steps}"
            f"{lately}. run.log says what failed."
        )
    return warnings


def _at_steps(steps: Sequence[Any], warning: str) -> str:
    if len(steps) == 1:
        return f"Step {steps[0]}: {warning}"
    return f"{len(steps)} of steps {steps[0]} to {steps[-1]}, lately: {warning}"


def read_lines(path: Path, kind: str) -> list[Json]:
    """Reads the JSON lines of a log. An incomplete last line of a running or killed process is skipped.

    Args:
        path: The log file.
        kind: The kind of line; see `check_form`.

    Raises:
        ConfigurationError: another line is not JSON, or a line has another form.
    """
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    parsed: list[Json] = []
    for number, line in enumerate(lines, start=1):
        try:
            parsed.append(read_json_text(line))
        except ValueError as error:
            if number < len(lines):
                raise ConfigurationError(f"{path}, line {number} is not JSON: {error}.") from None
        else:
            check_form(kind, parsed[-1], f"{path}, line {number}")
    return parsed


def _curves(lines: Sequence[Json], scorer: str) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """Returns title, last value and chart of each curve that changes, and title and value of each that does not."""
    found = {key for line in lines for key, value in line.items() if _number(value)} - {"step"}
    # Further environments have their own scorers.
    scorer = "score" if f"dev_score/{OWN_ENVIRONMENT}" in found else scorer
    # A step has no entry for an end reason that none of its episodes had.
    ends = dict.fromkeys((key for key in found if key.startswith("end_")), 0)
    lines = [ends | line if "faults" in line else line for line in lines]
    named = [key for curve in CURVES for key in sorted(found) if key.partition("/")[0] == curve]
    order = named + sorted(found.difference(named))
    curves, constants = [], []
    for key in order:
        rows = [line for line in lines if _number(line.get(key)) and "step" in line]
        if not rows:
            continue
        base, _, own = key.partition("/")  # with several sets: the name of the set
        title = CURVES.get(base, base.replace("_", " ")).replace("{scorer}", scorer) + (
            f", {own}" if own else ""
        )
        last = value_text(rows[-1][key])
        if len(rows) == 1:
            constants.append((title, f"{last} (step {rows[0]['step']} alone)"))
            continue
        if not _moves([row[key] for row in rows]):
            constants.append((title, last))
            continue
        curve = Curve(
            key,
            tuple(row["step"] for row in rows),
            tuple(row[key] for row in rows),
            _band(rows, f"{key}_ci95"),
        )
        curves.append((title, last, line_chart(curve)))
    return curves, constants


def _band(rows: Sequence[Json], key: str) -> tuple[tuple[float, float], ...]:
    """Returns the interval of each row; empty if an interval is missing or cannot be drawn."""
    ends: list[Sequence[float]] = [row.get(key) or () for row in rows]
    return (
        tuple((low, high) for low, high in ends)
        if all(pair and all(map(_number, pair)) for pair in ends)
        else ()
    )


def _moves(values: Sequence[float]) -> bool:
    """Whether the values differ by more than rounding errors of float32 around 0."""
    low, high = min(values), max(values)
    return low < high and not -_ROUNDING < low < 0 < high < _ROUNDING


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _seconds(results: Json, directory: Path) -> list[tuple[str, float]]:
    """Returns the seconds of each phase: of the whole run from its results, of steps summed over ``timings.jsonl``."""
    rows = [
        (key.replace("_", " "), value) for key, value in results.get("seconds", {}).items() if _number(value)
    ]
    path = directory / "timings.jsonl"
    sums: dict[str, float] = {}
    for line in read_lines(path, "step") if path.is_file() else []:
        for key, value in line.items():
            if "second" in key and _number(value):
                sums[key] = sums.get(key, 0.0) + value
    return rows + [(f"all steps: {key.replace('_', ' ')}", total) for key, total in sums.items()]
