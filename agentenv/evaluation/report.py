"""One self-contained HTML page of an evaluation or of a training run.

The numbers are read from the run's folder and never computed anew, with two exceptions: the paired test of
before and after, and each episode's score under the first scorer. Text of episodes reaches the page as JSON
and is put there as text nodes, so nothing a policy or a document says can become markup.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from agentenv.core.scorers import SCORERS
from agentenv.errors import ConfigurationError, MissingExtra
from agentenv.evaluation.charts import Curve, Level, level_chart, line_chart
from agentenv.evaluation.compare import compare
from agentenv.evaluation.records import (
    EPISODES,
    RESULTS,
    Evaluation,
    Record,
    read_evaluation,
    read_json,
    redacted,
)
from agentenv.evaluation.records import write_atomically as write
from agentenv.evaluation.tables import tables

Json = dict[str, Any]

METRICS = "metrics.jsonl"
PAGE = "report.html"
CURVES = {
    "em_dev": "exact match on dev",
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
    "faults": "faults",
}


@dataclass(frozen=True)
class Page:
    """Everything the template shows."""

    title: str
    facts: list[tuple[str, str]]
    scorer: str
    levels: list[Level]
    paired: Json | None
    warnings: list[str]
    curves: list[tuple[str, str, str]]  # title, last value, SVG
    runs: list[tuple[str, Json]]  # label and results.json of each evaluation
    tables: list[Json]
    episodes: list[Json]
    seconds: list[tuple[str, float]] = field(default_factory=list)
    config: str = ""

    @property
    def level_chart(self) -> str:
        """The scores and bounds as SVG."""
        return level_chart(self.levels)


def write_report(directory: Path) -> Path:
    """Writes ``report.html`` into the folder of a run and returns its path.

    Raises:
        ConfigurationError: the folder holds neither an evaluation nor a training run.
        MissingExtra: jinja2 is not installed.
    """
    if (directory / METRICS).is_file():
        page = training_page(directory)
    elif (directory / EPISODES).is_file():
        page = evaluation_page(read_evaluation(directory))
    else:
        raise ConfigurationError(
            f"{str(directory)!r} holds neither {METRICS} (a training run) nor {EPISODES} (an evaluation)."
        )
    write(directory / PAGE, render(page))
    return directory / PAGE


def render(page: Page) -> str:
    """The HTML of a page.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError:
        raise MissingExtra.of("jinja2", "report") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(page=page)


def evaluation_page(evaluation: Evaluation) -> Page:
    """The page of one evaluation folder."""
    results = evaluation.results
    scorer = _first_scorer(results)
    score = results.get("scores", {}).get(scorer, {})
    levels = _levels({"this run": score})
    runs = [("", results)]
    return Page(
        title=f"{results.get('dataset', 'evaluation')} {results.get('split', '')}".strip(),
        facts=_facts(results),
        scorer=scorer,
        levels=_with_bounds(levels, results.get("bounds", {})),
        paired=None,
        warnings=_fault_warnings(runs),
        curves=[],
        runs=runs,
        tables=tables(runs, scorer),
        episodes=_episodes([evaluation], scorer),
    )


def training_page(directory: Path) -> Page:
    """The page of one training folder, finished or not."""
    lines = _lines(directory / METRICS)
    results = read_json(directory / RESULTS) if (directory / RESULTS).is_file() else {}
    sides = {
        name: read_evaluation(directory / "evaluation" / name)
        for name in ("before", "after")
        if (directory / "evaluation" / name / RESULTS).is_file()
    }
    scorer = next((_first_scorer(side.results) for side in sides.values()), "em_squad")
    runs = [(name, side.results) for name, side in sides.items()]
    paired, warnings = _paired(sides, scorer)
    if not results:
        warnings.append("The run is not finished: there is no results.json yet.")
    levels = _levels({name: results[name] for name in ("before", "after") if name in results})
    config = directory / "config.toml"
    return Page(
        title=f"Training run {directory.resolve().name}",
        facts=_facts(runs[-1][1]) if runs else [],
        scorer=scorer,
        levels=_with_bounds(levels, results.get("bounds", {})),
        paired=paired,
        warnings=[*warnings, *_training_warnings(lines), *_fault_warnings(runs)],
        curves=_curves(lines),
        runs=runs,
        tables=tables(runs, scorer),
        episodes=_episodes(list(sides.values()), scorer),
        seconds=_seconds(results, directory),
        config=config.read_text(encoding="utf-8") if config.is_file() else "",
    )


def _first_scorer(results: Json) -> str:
    return next(iter(results.get("scores", {})), "em_squad")


def _facts(results: Json) -> list[tuple[str, str]]:
    known = [(key, results.get(key)) for key in ("policy", "retriever", "seed")]
    known += list(results.get("settings", {}).items())
    return [(key.replace("_", " "), str(value)) for key, value in known if value not in (None, "")]


def _levels(scores: Mapping[str, Any], kind: str = "run") -> list[Level]:
    """Scores as results files hold them: a number, or a dict with ``em`` or ``mean``; null is left out."""
    levels = []
    for name, value in scores.items():
        score = value if isinstance(value, dict) else {"mean": value}
        mean, ci95 = score.get("em", score.get("mean")), score.get("ci95")
        if mean is not None:
            interval = (ci95[0], ci95[1]) if ci95 else None
            levels.append(Level(name.replace("_", " "), float(mean), interval, score.get("n"), kind))
    return levels


def _with_bounds(levels: list[Level], bounds: Mapping[str, Any]) -> list[Level]:
    return [*levels, *sorted(_levels(bounds, "bound"), key=lambda level: level.mean)]


def _paired(sides: Mapping[str, Evaluation], scorer: str) -> tuple[Json | None, list[str]]:
    if len(sides) < 2 or scorer not in SCORERS:
        return None, []
    try:
        result = compare(sides["before"].directory, sides["after"].directory, scorer=scorer)
    except ConfigurationError as error:
        return None, [f"Before and after cannot be compared: {error}"]
    return {**result["scores"][scorer], "n": result["n"]}, []


def _training_warnings(lines: Sequence[Json]) -> list[str]:
    warnings = [f"Step {line.get('step', '?')}: {line['warning']}" for line in lines if line.get("warning")]
    faults = sum(line.get("faults") or 0 for line in lines)
    if faults:
        warnings.append(f"{_episodes_were(faults, 'training ')} masked for a fault of ours.")
    return warnings


def _fault_warnings(runs: Sequence[tuple[str, Json]]) -> list[str]:
    return [
        f"{label and label.capitalize() + ': '}{_episodes_were(results['faults'])} left out of every score "
        "for a fault of ours."
        for label, results in runs
        if results.get("faults")
    ]


def _episodes_were(count: int, kind: str = "") -> str:
    return f"{count} {kind}{'episode was' if count == 1 else 'episodes were'}"


def _lines(path: Path) -> list[Json]:
    """The JSON lines of a file; a last line that a running or killed process left unfinished is dropped."""
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    parsed: list[Json] = []
    for number, line in enumerate(lines, start=1):
        try:
            parsed.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ConfigurationError(f"{path.name}, line {number} is not JSON: {error.msg}.") from None
    return parsed


def _curves(lines: Sequence[Json]) -> list[tuple[str, str, str]]:
    found = {key for line in lines for key, value in line.items() if _number(value)} - {"step"}
    order = [key for key in CURVES if key in found] + sorted(found - set(CURVES))
    curves = []
    for key in order:
        rows = [line for line in lines if _number(line.get(key)) and "step" in line]
        if len(rows) < 2:
            continue
        bands = [row.get(f"{key}_ci95") for row in rows]
        band = tuple((b[0], b[1]) for b in bands if b) if all(bands) else ()
        curve = Curve(key, tuple(row["step"] for row in rows), tuple(row[key] for row in rows), band)
        curves.append((CURVES.get(key, key.replace("_", " ")), f"{rows[-1][key]:.3g}", line_chart(curve)))
    return curves


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _seconds(results: Json, directory: Path) -> list[tuple[str, float]]:
    """Seconds by phase: of the whole run from its results, of the steps summed over ``timings.jsonl``."""
    rows = [
        (key.replace("_", " "), value) for key, value in results.get("seconds", {}).items() if _number(value)
    ]
    path = directory / "timings.jsonl"
    sums: dict[str, float] = {}
    for line in _lines(path) if path.is_file() else []:
        for key, value in line.items():
            if "second" in key and _number(value):
                sums[key] = sums.get(key, 0.0) + value
    return rows + [(f"all steps: {key.replace('_', ' ')}", total) for key, total in sums.items()]


def _episodes(sides: Sequence[Evaluation], scorer: str) -> list[Json]:
    """One entry a question, with one episode (or null) for each evaluation, in the order of the first."""
    by_id = [{record["id"]: record for record in side.records} for side in sides]
    order: Iterable[str] = dict.fromkeys(identity for side in by_id for identity in side)
    entries = []
    for identity in order:
        rows = [side.get(identity) for side in by_id]
        first = next(row for row in rows if row)
        shown = redacted(first)
        entry: Json = {key: shown.get(key) for key in ("id", "question", "answers", "family", "hops")}
        entry["supporting"] = first.get("supporting_ids", [])
        entry["runs"] = [_episode(row, scorer) if row else None for row in rows]
        entries.append(entry)
    return entries


def _episode(record: Record, scorer: str) -> Json:
    score = record.get("reward", 0.0)
    if scorer in SCORERS:
        score = SCORERS[scorer](record["prediction"], record["answers"]).value
    record = redacted(record)
    return {
        "prediction": record["prediction"],
        "valid": record["valid"],
        "score": score,
        "reward": record.get("reward"),
        "end": record["end_reason"],
        "searches": record["searches"],
        "retrieved": record.get("retrieved_ids", []),
        "prompt": record.get("prompt", ""),
        "turns": record.get("turns", []),
    }
