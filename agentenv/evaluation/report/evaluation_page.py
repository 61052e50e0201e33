"""The report page of one evaluation or suite, alone or compared with another one over the same questions."""

from pathlib import Path

from agentenv.errors import ConfigurationError
from agentenv.evaluation.compare import compare, compare_suites
from agentenv.evaluation.journal import read_seconds
from agentenv.evaluation.records import SUITE, Evaluation, read_evaluation, read_suite_summary
from agentenv.evaluation.report.page import (
    Json,
    Page,
    bound_warnings,
    episodes_of,
    facts_of,
    fault_warnings,
    first_scorer,
    fit_to_page,
    levels_of,
    with_bounds,
)
from agentenv.evaluation.report.tables import comparison_table, suite_tables, tables

EPISODES_A_SET = 500  # number of episodes per set on a suite's page; the set's own page has all


def evaluation_page(directory: Path, against: Path | None = None) -> Page:
    """Makes the page of an evaluation or a suite.

    Raises:
        ConfigurationError: ``against`` is of another kind, or has other questions.
    """
    suites = [(folder / SUITE).is_file() for folder in (directory, *([against] if against else []))]
    if len(set(suites)) > 1:
        raise ConfigurationError(f"Only one of {directory} and {against} is a suite; compare like with like.")
    return (_suite if suites[0] else _single)(directory, against)


def _single(directory: Path, against: Path | None) -> Page:
    sides = _sides(directory, against)
    results = sides[-1].results
    scorer = first_scorer(results)
    labels = _labels(directory, against)
    runs = list(zip(labels, (side.results for side in sides), strict=True))
    levels = levels_of(
        {
            label or "this run": side.results.get("scores", {}).get(scorer, {})
            for label, side in zip(labels, sides, strict=True)
        }
    )
    found = compare(against, directory, scorer=scorer) if against else None
    page = Page(
        title=f"{results.get('dataset', 'evaluation')} {results.get('split', '')}".strip(),
        facts=facts_of(results),
        scorer=scorer,
        levels=with_bounds(levels, results.get("bounds", {})),
        cards=levels,
        warnings=fault_warnings(list(zip(labels, sides, strict=True))) + bound_warnings({"": results}),
        labels=labels,
        tables=tables(runs, scorer),
        episodes=episodes_of(sides, scorer),
        paired={**found["scores"][scorer], "n": found["n"]} if found else None,
        seconds=_seconds(sides[-1]),
        config=_config(directory),
        unit=results.get("tokens", {}).get("unit", "tokens"),
    )
    return fit_to_page(page, sides)


def _suite(directory: Path, against: Path | None) -> Page:
    summary = read_suite_summary(directory)
    names: list[str] = summary["sets"]
    found = compare_suites(against, directory) if against else None
    sides = {name: _sides(directory / name, against / name if against else None) for name in names}
    newest = {name: several[-1].results for name, several in sides.items()}
    scorer = next(iter(summary["scores"]), first_scorer(newest[names[0]]))
    means = summary["scores"].get(scorer, {})
    overall = {f"{kind} mean": means[kind] for kind in ("macro", "micro") if kind in means}
    scores = {name: results["scores"].get(scorer, {}) for name, results in newest.items()}
    page = Page(
        title=f"Suite of {len(names)} sets: {newest[names[0]]['policy']}",
        facts=_shared_facts(newest),
        scorer=scorer,
        levels=levels_of(scores) + levels_of(overall),
        cards=levels_of(overall),
        warnings=fault_warnings([(name, several[-1]) for name, several in sides.items()])
        + bound_warnings(newest),
        labels=_labels(directory, against),
        tables=suite_tables(newest, summary, scorer) + ([comparison_table(found, scorer)] if found else []),
        episodes=[
            entry
            for name, several in sides.items()
            for entry in episodes_of(several, scorer, name, EPISODES_A_SET)
        ],
        note=_note(sides),
        unit=newest[names[0]]["tokens"].get("unit", "tokens"),
    )
    return fit_to_page(page, [side for several in sides.values() for side in several])


def _note(sides: dict[str, list[Evaluation]]) -> str:
    more = sum(max(0, len(several[-1].records) - EPISODES_A_SET) for several in sides.values())
    if not more:
        return ""
    return (
        f"The first {EPISODES_A_SET} episodes of each set are here; {more} more are on the sets' own pages."
    )


def _sides(directory: Path, against: Path | None) -> list[Evaluation]:
    return [read_evaluation(folder) for folder in (against, directory) if folder is not None]


def _labels(directory: Path, against: Path | None) -> list[str]:
    return [against.resolve().name, directory.resolve().name] if against else [""]


def _shared_facts(parts: dict[str, Json]) -> list[tuple[str, str]]:
    """Returns the facts that are the same for every set."""
    every = [facts_of(results) for results in parts.values()]
    return [fact for fact in every[0] if all(fact in facts for facts in every)]


def _seconds(side: Evaluation) -> list[tuple[str, float]]:
    found = read_seconds(side.directory, side.results.get("errors", {}).get("correct"))
    return [(name.replace("_", " "), value) for name, value in found.items()]


def _config(directory: Path) -> str:
    path = directory / "config.toml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
