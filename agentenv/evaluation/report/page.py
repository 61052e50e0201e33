"""The content of every report page, and the template that renders it.

Texts of episodes are put into the page as JSON and inserted as text nodes, so nothing that a policy or a document wrote can
become markup. A browser has to be able to open the page, so long texts are cut in the middle, and only as many episodes as
fit are included.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentenv.core.grammar import shortened
from agentenv.core.registry import is_class
from agentenv.core.scoring.scorers import SCORERS
from agentenv.errors import MissingExtra
from agentenv.evaluation.diagnosis import UNSOLVED, cause_of, fault_reasons
from agentenv.evaluation.records import EpisodeRecord, Evaluation, redacted
from agentenv.evaluation.report.charts import Level, level_chart, score_text
from agentenv.evaluation.results import OUTCOME, RECORDED, score_of
from agentenv.evaluation.screens import pictures_of

Json = dict[str, Any]

TEXT_CHARS = 20_000
"""Number of characters of one text of an episode that a page shows. A longer text keeps its beginning and end."""
PAGE_BYTES = 48_000_000
"""Size of all episodes of a page, without their pictures."""
LOG = "run.log"
_REASONS = 3  # number of reasons for failures in one sentence
_ESCAPED = "<>&'"  # each becomes six characters in the JSON of a page
_LOG_BYTES = 20_000  # size of the part of a log that is shown


@dataclass(frozen=True)
class Page:
    """Everything that the template shows."""

    title: str
    facts: list[tuple[str, str]]
    scorer: str
    levels: list[Level]
    cards: list[Level]
    warnings: list[str]
    labels: list[str]  # names of the runs in which each episode was played
    tables: list[Json]
    episodes: list[Json]
    paired: Json | None = None
    curves: list[tuple[str, str, str]] = field(default_factory=list)  # title, last value, SVG
    # Title and value of curves that never changed.
    constants: list[tuple[str, str]] = field(default_factory=list)
    seconds: list[tuple[str, float]] = field(default_factory=list)
    config: str = ""
    note: str = ""  # about the episodes
    unit: str = "tokens"  # name of the policy's unit of text
    pictures: dict[str, str] = field(default_factory=dict)  # pictures of screens by file name
    log: str = ""  # last lines of the run's log
    unfinished: bool = False

    @property
    def level_chart(self) -> str:
        """The scores and bounds as SVG."""
        return level_chart(self.levels)


def require_renderer() -> None:
    """Checks that a page can be written, before hours are spent on its content.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise MissingExtra.of("jinja2", "report") from None


def render(page: Page) -> str:
    """The HTML of a page.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    require_renderer()
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["score"] = score_text
    return environment.get_template("report.html").render(page=page)


def fit_to_page(page: Page, sides: Sequence[Evaluation]) -> Page:
    """Returns ``page`` with as many of its episodes and of their screens as fit.

    Args:
        page: The page with all episodes.
        sides: The evaluations that they come from.
    """
    episodes, dropped = _fitting(page.episodes)
    pictures, missing = pictures_of(episodes, [side.directory for side in sides])
    notes = [page.note]
    if dropped:
        notes.append(
            f"The first {len(episodes)} of {len(page.episodes)} episodes are here; the page has no room for the others, "
            "which are in episodes.jsonl."
        )
    if missing:
        notes.append(
            f"{missing} pictures of screens are not on this page: they found no room, or their files are gone."
        )
    return replace(page, episodes=episodes, pictures=pictures, note=" ".join(filter(None, notes)))


def _fitting(episodes: Sequence[Json]) -> tuple[list[Json], int]:
    """Returns the first episodes that fit, with long texts cut, and the number of those left out."""
    room = PAGE_BYTES
    fitting: list[Json] = []
    for episode in episodes:
        short = _cut(episode)
        text = json.dumps(short)
        room -= len(text) + 5 * sum(map(text.count, _ESCAPED))
        if room < 0 and fitting:
            break
        fitting.append(short)
    return fitting, len(episodes) - len(fitting)


def _cut(value: Any) -> Any:
    """Returns a JSON value with its long texts cut."""
    if isinstance(value, str):
        return shortened(value, TEXT_CHARS)
    if isinstance(value, Mapping):
        return {key: _cut(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(part) for part in value]
    return value


def log_end(directory: Path) -> str:
    """Returns the last lines of a run's log; empty without a log."""
    path = directory / LOG
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES))
        text = file.read().decode("utf-8", "replace")
    return text if size <= _LOG_BYTES else text.partition("\n")[2]


def first_scorer(results: Json) -> str:
    """Returns the main scorer of a results file."""
    return next(iter(results.get("scores", {})), "em_squad")


def facts_of(results: Json) -> list[tuple[str, str]]:
    """Returns what was evaluated, for the head of the page."""
    known = [(key, results.get(key)) for key in ("policy", "retriever", "seed")]
    known += list(results.get("settings", {}).items())
    return [(key.replace("_", " "), _shown(value)) for key, value in known if value not in (None, "", {})]


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def levels_of(scores: Mapping[str, Any], kind: str = "run") -> list[Level]:
    """Reads scores from a results file: a number, or a dict with ``mean`` (``em`` in older runs); null is skipped."""
    levels = []
    for name, value in scores.items():
        score = value if isinstance(value, dict) else {"mean": value}
        mean, ci95 = score.get("mean", score.get("em")), score.get("ci95")
        if mean is not None:
            interval = (ci95[0], ci95[1]) if ci95 else None
            # Users choose the names of runs, sets and environments; the names of bounds are fixed.
            label, scorer = name.replace("_", " ") if kind == "bound" else name, score.get("scorer", "")
            levels.append(Level(label, float(mean), interval, score.get("n"), kind, scorer))
    return levels


def with_bounds(levels: list[Level], bounds: Mapping[str, Any]) -> list[Level]:
    """Returns ``levels``, followed by the bounds from low to high."""
    return [*levels, *sorted(levels_of(bounds, "bound"), key=lambda level: level.mean)]


def fault_warnings(runs: Sequence[tuple[str, Evaluation]]) -> list[str]:
    """Returns a sentence for every run with infrastructure failures, with the most common reasons."""
    return [
        f"{label and label.capitalize() + ': '}{episodes_were(run.results['faults'])} left out of every score "
        f"for an infrastructure failure{_reasons_in(run)}."
        for label, run in runs
        if run.results.get("faults")
    ]


def _reasons_in(run: Evaluation) -> str:
    reasons = [f"{reason} ({count})" for reason, count in fault_reasons(run.records).items()]
    if len(reasons) > _REASONS:
        reasons[_REASONS:] = ["and others"]
    return f": {'; '.join(reasons)}" if reasons else ""


def bound_warnings(parts: Mapping[str, Json]) -> list[str]:
    """Returns a sentence for every bound of every set that has a note."""
    return [
        f"{name and name + ': '}the bound {bound.replace('_', ' ')} is {value['note']}."
        for name, results in parts.items()
        for bound, value in results.get("bounds", {}).items()
        if isinstance(value, dict) and value.get("mean") is not None and value.get("note")
    ]


def episodes_were(count: int, kind: str = "") -> str:
    """Returns the beginning of a sentence about a number of episodes."""
    return f"{count} {kind}{'episode was' if count == 1 else 'episodes were'}"


def episodes_of(
    sides: Sequence[Evaluation], scorer: str, name: str = "", limit: int | None = None
) -> list[Json]:
    """Returns one entry per question, with one episode (or null) per evaluation, in the order of the first evaluation.

    Args:
        sides: Evaluations of the same questions.
        scorer: The main scorer.
        name: The name of the set, if the page has several.
        limit: The largest number of questions; None includes all.
    """
    by_id = [{record["id"]: record for record in side.records} for side in sides]
    order: Iterable[str] = dict.fromkeys(identity for side in by_id for identity in side)
    entries = []
    for identity in list(order)[:limit]:
        rows = [side.get(identity) for side in by_id]
        first = redacted(next(row for row in rows if row))
        entry: Json = {key: first.get(key) for key in ("id", "question", "answers", "family", "hops")}
        entry["supporting"] = first.get("supporting_ids", [])
        entry["set"] = name or first.get("set", "")
        entry["scorer"] = scorer
        entry["runs"] = [_episode(row, scorer) if row else None for row in rows]
        entries.append(entry)
    return entries


def _episode(record: EpisodeRecord, scorer: str) -> Json:
    known = scorer in {*SCORERS, *RECORDED} or is_class(scorer)  # grades of judges are stored elsewhere
    score = score_of(record, scorer if known else OUTCOME)
    cause = cause_of(record, score)
    if scorer == OUTCOME and cause not in ("correct", "fault"):
        cause = UNSOLVED  # all other causes are those of wrong answers
    record = redacted(record)
    return {
        "prediction": record["prediction"],
        "valid": record["valid"],
        "score": score if record["valid"] else None,  # a fault has no score, not even 0
        "cause": cause,
        "tokens": record.get("tokens", {}),
        "error": record.get("error", ""),
        "reward": record.get("reward"),
        "end": record["end_reason"],
        "searches": record["searches"],
        "retrieved": record.get("retrieved_ids", []),
        "prompt": record.get("prompt", ""),
        "turns": record.get("turns", []),
    }
