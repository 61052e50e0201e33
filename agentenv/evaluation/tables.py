"""The tables of a report: from one or two ``results.json`` to rows of text."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def tables(runs: Sequence[tuple[str, Json]], scorer: str) -> list[Json]:
    """Breakdowns, each ``{"title", "head", "rows"}`` with one group of columns a run."""
    found = [
        _table("Scores", runs, lambda results: {n: _cells(s) for n, s in results.get("scores", {}).items()}),
        _table("By family", runs, lambda results: _group_cells(results.get("by_family", {}), scorer)),
        _table("By number of hops", runs, lambda results: _group_cells(results.get("by_hops", {}), scorer)),
        _table("Behaviour", runs, _behaviour, ("",)),
        _table("How episodes ended", runs, _ends, ("n", "share")),
    ]
    return [table for table in found if table["rows"]]


def _table(
    title: str,
    runs: Sequence[tuple[str, Json]],
    cells: Callable[[Json], dict[str, list[str]]],
    head: Sequence[str] = ("n", "mean", "95 % interval"),
) -> Json:
    columns = [cells(results) for _, results in runs]
    names = list(dict.fromkeys(name for column in columns for name in column))
    blank = [""] * len(head)
    rows = [[name, *(cell for column in columns for cell in column.get(name, blank))] for name in names]
    groups = [label for label, _ in runs]
    return {"title": title, "groups": groups, "span": len(head), "head": list(head) * len(runs), "rows": rows}


def _cells(score: Json) -> list[str]:
    if score.get("mean") is None:
        return [str(score.get("n", 0)), "", ""]
    ci95 = score.get("ci95")
    interval = f"{ci95[0]:.3f} to {ci95[1]:.3f}" if ci95 else ""
    return [str(score.get("n", "")), f"{score['mean']:.3f}", interval]


def _group_cells(groups: Json, scorer: str) -> dict[str, list[str]]:
    return {name: _cells(group["scores"].get(scorer, {"n": group["n"]})) for name, group in groups.items()}


def _behaviour(results: Json) -> dict[str, list[str]]:
    keys = ("searches_per_question", "answer_rate", "reward_mean")
    values = {key.replace("_", " "): results.get(key) for key in keys}
    recall = results.get("retrieval", {})
    values |= {key.replace("_", " "): recall[key] for key in recall if "recall@" in key}
    return {key: [f"{value:.3f}"] for key, value in values.items() if value is not None}


def _ends(results: Json) -> dict[str, list[str]]:
    counts: Mapping[str, int] = results.get("end_reasons", {})
    total = sum(counts.values())
    return {name.replace("_", " "): [str(n), f"{n / total:.1%}"] for name, n in counts.items()}
