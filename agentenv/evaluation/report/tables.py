"""The tables of a report: rows of text from the ``results.json`` of one or two runs, or of the sets of a suite."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentenv.core.grammar import shortened
from agentenv.evaluation.diagnosis import CAUSES
from agentenv.evaluation.endpoint_usage import describe_usage

Json = dict[str, Any]

_QUESTIONS = 48  # number of self-play questions that are shown
_CELL = 300  # largest number of characters of a text in a table
_SHOWN_RETRIEVAL = ("support_recall", "all_support", "answer_shown")


def tables(runs: Sequence[tuple[str, Json]], scorer: str) -> list[Json]:
    """Returns the tables of breakdowns, ``{"title", "head", "rows"}`` each, with one group of columns per run."""
    found = [
        _table("Scores", runs, _scores),
        _table("By set", runs, lambda results: _group_cells(results.get("by_set", {}), scorer)),
        _table("By family", runs, lambda results: _group_cells(results.get("by_family", {}), scorer)),
        _table("By number of hops", runs, lambda results: _group_cells(results.get("by_hops", {}), scorer)),
        _table("Bounds", runs, lambda results: _bounds(results, scorer)),
        _table("Errors", runs, _errors, ("n", "share")),
        _table("What failures lack", runs, _capabilities, ("n", "successes", "failures", "missing")),
        _table("Behaviour", runs, _behaviour, ("",)),
        _table("How episodes ended", runs, _ends, ("n", "share")),
        _table("Requests and cost", runs, _usage, ("",)),
    ]
    return [table for table in found if table["rows"]]


def league_tables(league: Json | None) -> list[Json]:
    """Returns the matrix of a league as a table: rows are the versions that ask, columns the versions that solve."""
    if not league:
        return []
    rows = [
        [f"{name} ({count} questions)", *("" if share is None else f"{share:.2f}" for share in row)]
        for name, count, row in zip(league["versions"], league["questions"], league["solved"], strict=True)
    ]
    versions = league["versions"]
    title = "League: share of the row's questions that the column's solver solves"
    return [{"title": title, "groups": ["solver"], "span": len(versions), "head": versions, "rows": rows}]


def question_tables(questions: Sequence[Json]) -> list[Json]:
    """Returns the last questions that self-play posed, one per row, the newest first."""
    if not questions:
        return []
    keys = ("topic", "question", "answer", "searches", "outcome")
    head = [*keys, "solved"]
    rows = [
        [
            f"step {row['step']}",
            *(shortened(str(row[key]), _CELL) for key in keys),
            _blank(row.get("solve_rate")),
        ]
        for row in questions[: -_QUESTIONS - 1 : -1]
    ]
    title = f"Questions of self-play: the last {len(rows)} of {len(questions)}"
    return [{"title": title, "groups": [""], "span": len(head), "head": head, "rows": rows}]


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


def _scores(results: Json) -> dict[str, list[str]]:
    """Returns the scores of the scorers, followed by those of the judges."""
    every = {**results.get("scores", {}), **results.get("judged", {})}
    return {name: _cells(score) for name, score in every.items()}


def _cells(score: Json) -> list[str]:
    if score.get("mean") is None:
        return [str(score.get("n", 0)), "", ""]
    ci95 = score.get("ci95")
    interval = f"{ci95[0]:.3f} to {ci95[1]:.3f}" if ci95 else ""
    return [str(score.get("n", "")), f"{score['mean']:.3f}", interval]


def _group_cells(groups: Json, scorer: str) -> dict[str, list[str]]:
    return {name: _cells(group["scores"].get(scorer, {"n": group["n"]})) for name, group in groups.items()}


def _behaviour(results: Json) -> dict[str, list[str]]:
    searched = results.get("retriever") is not None or results.get("retrieval")
    asked = ("searches_per_question", "answer_rate") if searched else ()
    keys = (*asked, "reward_mean")
    values = {key.replace("_", " "): results.get(key) for key in keys}
    recall = results.get("retrieval", {})
    values |= {
        key.replace("_", " "): recall[key] for key in recall if key in _SHOWN_RETRIEVAL or "recall@" in key
    }
    values |= {
        f"index, bare question: {key}": value for key, value in results.get("index_recall", {}).items()
    }
    values["answer in the corpus"] = results.get("answer_in_corpus", {}).get("share")
    tokens = results.get("tokens", {})
    unit = tokens.get("unit", "tokens")
    values |= {f"{unit} {key.replace('_', ' ')}": tokens[key] for key in tokens if key != "unit"}
    return {key: [_short(value)] for key, value in values.items() if value is not None}


def _short(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _bounds(results: Json, scorer: str) -> dict[str, list[str]]:
    """Returns the score and its bounds, from low to high."""
    rows = {"this run": results.get("scores", {}).get(scorer, {}), **results.get("bounds", {})}
    named = {name.replace("_", " "): row for name, row in rows.items() if row.get("mean") is not None}
    if named.keys() <= {"this run"}:
        return {}
    return {name: _cells(row) for name, row in sorted(named.items(), key=lambda item: item[1]["mean"])}


def _errors(results: Json) -> dict[str, list[str]]:
    errors = results.get("errors", {})
    counts = {name: errors[name] for name in ("correct", *CAUSES) if name in errors}
    total = max(results.get("n", 0) + results.get("faults", 0), sum(counts.values())) or 1
    if counts.keys() == {"correct"}:  # the cause of the other episodes is unknown
        counts |= {"not_correct": results.get("n", 0) - counts["correct"], "fault": results.get("faults", 0)}
    rows = {name.replace("_", " "): [str(n), f"{n / total:.1%}"] for name, n in counts.items()}
    if "correct_without_evidence" in errors:
        lucky = errors["correct_without_evidence"]
        rows["of the correct: without the evidence"] = [str(lucky), f"{lucky / total:.1%}"]
    return rows


def _capabilities(results: Json) -> dict[str, list[str]]:
    """Returns the share of the episodes that show each skill, with what exercises it."""
    return {
        f"{row['skill']} (exercised by {row['slice']})": [
            str(row["episodes"]),
            _blank(row["shown_in_successes"]),
            _blank(row["shown_in_failures"]),
            "yes" if row["missing"] else "",
        ]
        for row in results.get("capabilities", ())
    }


def suite_tables(parts: Mapping[str, Json], summary: Json, scorer: str) -> list[Json]:
    """Returns the tables of a suite, with one row per set.

    Args:
        parts: ``results.json`` of every set.
        summary: ``suite.json``.
        scorer: The main scorer.
    """
    bounds = ("closed_book", "oracle", "oracle_paged")
    head = ["n", "mean", "95 % interval", *(name.replace("_", " ") for name in bounds)]
    head += ["support recall", "all support", "answer in corpus", "answer shown", "searches", "per correct"]
    rows = []
    for name, results in parts.items():
        found, tokens = results["retrieval"], results["tokens"]
        shares = [found.get("support_recall"), found.get("all_support"), results["answer_in_corpus"]["share"]]
        shares += [found.get("answer_shown"), results["searches_per_question"] if found else None]
        spent = tokens.get("total_per_correct")
        cells = _cells(results["scores"].get(scorer, {})) + [
            _mean(results["bounds"].get(b, {})) for b in bounds
        ]
        cells += [_blank(share) for share in shares] + [
            "" if spent is None else f"{spent:,.0f} {tokens.get('unit', 'tokens')}"
        ]
        rows.append([name, *cells])
    means = summary["scores"].get(scorer, {})
    for kind in ("macro", "micro"):
        if kind in means:
            n = means[kind].get("n", f"{means[kind].get('sets')} sets")
            cells = _cells({**means[kind], "n": n})
            rows.append([f"{kind} mean", *cells, *[""] * (len(head) - 3)])
    suite = {"title": f"Suite ({scorer})", "groups": [""], "span": len(head), "head": head, "rows": rows}
    costs = _table("Requests and cost", list(parts.items()), _usage, ("",))
    return [suite, _scorers_table(parts, summary), _errors_table(parts), *([costs] if costs["rows"] else [])]


def _scorers_table(parts: Mapping[str, Json], summary: Json) -> Json:
    names = list(dict.fromkeys(name for results in parts.values() for name in results["scores"]))
    rows = [
        [part, *(cell for name in names for cell in _cells(results["scores"].get(name, {}))[1:])]
        for part, results in parts.items()
    ]
    for kind in ("macro", "micro"):
        means = [summary["scores"].get(name, {}).get(kind, {}) for name in names]
        rows.append([f"{kind} mean", *(cell for mean in means for cell in _cells(mean)[1:])])
    head = ["mean", "95 % interval"] * len(names)
    return {
        "title": "All scorers",
        "groups": [*names, ""][: max(2, len(names))],
        "span": 2,
        "head": head,
        "rows": rows,
    }


def _errors_table(parts: Mapping[str, Json]) -> Json:
    causes = ("correct", *CAUSES, "correct_without_evidence")
    rows = [
        [name, *(str(results["errors"].get(cause, "")) for cause in causes)]
        for name, results in parts.items()
    ]
    sums = {cause: [r["errors"][cause] for r in parts.values() if cause in r["errors"]] for cause in causes}
    rows.append(["all", *(str(sum(sums[cause])) if sums[cause] else "" for cause in causes)])
    head = [cause.replace("_", " ") for cause in causes]
    return {"title": "Errors", "groups": [""], "span": len(head), "head": head, "rows": rows}


def comparison_table(found: Json, scorer: str) -> Json:
    """Returns differences set by set, with uncorrected p-values and those corrected for the number of sets."""
    head = ["n", "first", "second", "difference", "95 % interval", "first better", "second better"]
    head += ["p McNemar", "Holm", "p bootstrap", "Holm"]
    rows = []
    for name, part in found["sets"].items():
        row = part["scores"].get(scorer)
        if row is None:
            continue
        tests = ("p_mcnemar", "p_mcnemar_holm", "p_bootstrap", "p_bootstrap_holm")
        cells = [str(part["n"]), f"{row['mean_a']:.3f}", f"{row['mean_b']:.3f}", f"{row['difference']:+.3f}"]
        cells += [
            f"{row['ci95'][0]:+.3f} to {row['ci95'][1]:+.3f}" if row["ci95"] else "",
            str(row["a_better"]),
            str(row["b_better"]),
        ]
        rows.append([name, *cells, *(f"{row[test]:.2g}" if test in row else "" for test in tests)])
    title = f"Comparison ({scorer}): {found['b']} less {found['a']}"
    return {"title": title, "groups": [""], "span": len(head), "head": head, "rows": rows}


def _usage(results: Json) -> dict[str, list[str]]:
    return {what: [value] for what, value in describe_usage(results.get("usage", {})).items()}


def _mean(score: Json) -> str:
    return _blank(score.get("mean"))


def _blank(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _ends(results: Json) -> dict[str, list[str]]:
    counts: Mapping[str, int] = results.get("end_reasons", {})
    total = sum(counts.values())
    return {name.replace("_", " "): [str(n), f"{n / total:.1%}"] for name, n in counts.items()}
