"""What the pages of the laboratory say together: how each claim was decided, by which test, with which power."""

from pathlib import Path

from agentenv.core.io.files import write_text
from agentenv.evaluation.records import read_json
from agentenv.evaluation.statistics.sequential import Verdict
from agentenv.trainers.lab.lab_page import difference, measure_title, with_interval
from agentenv.trainers.lab.measures import Json

TABLE, EARLIER = "results.md", "earlier"
_HEAD = """# What the laboratory has decided

One row for each [comparison](../lab.md). A claim **holds** when every difference that it expects was found in its direction
and every equivalence was shown. It is **refuted** when a difference was found in the other direction, **not shown** when all
interim analyses were made and something that it expects was not found, and **undecided** as long as an interim analysis is
left. The verdict names the tests, the seeds of each arm, and the difference that is found with 80 % probability (the power).
`agentenv lab run NAME --publish` writes this page.

"""


def read_pages(pages: Path) -> dict[str, Json]:
    """The figures of every page in a folder, by name."""
    return {path.stem: read_json(path) for path in sorted(pages.glob("*.json"))}


def claim_verdict(figures: Json) -> str:
    """``holds``, ``refuted``, ``not shown`` or ``undecided``; ``no expectation`` where the experiment states none."""
    if figures["claim_measure"] != figures["measure"]:
        return "undecided"
    found = [_of_pair(figures, first, second) for first, second in figures["expects"]]
    found += [
        {"equivalent": "holds", "not shown": "not shown"}.get(one["verdict"], "undecided")
        for one in figures["equivalences"]
    ]
    if not found:
        return "no expectation"
    return next((said for said in ("refuted", "undecided", "not shown") if said in found), "holds")


def _of_pair(figures: Json, first: str, second: str) -> str:
    """What was found of the expectation that ``first`` is better than ``second``."""
    pair, _ = _pair(figures, first, second)
    verdict = Verdict(pair["verdict"])
    if verdict is Verdict.UNDECIDED:
        return "undecided"
    if verdict is Verdict.NO_DIFFERENCE:
        return "not shown"
    higher = pair["first"] if verdict is Verdict.FIRST_BETTER else pair["second"]
    return "holds" if (higher == first) == (figures["better"] == "higher") else "refuted"


def _pair(figures: Json, first: str, second: str) -> tuple[Json, Json]:
    """The pair of two arms, in whichever order, and its family."""
    return next(
        (pair, family)
        for family in figures["families"]
        for pair in family["pairs"]
        if {pair["first"], pair["second"]} == {first, second}
    )


def results_of(figures: Json) -> list[str]:
    """The difference of every pair that the claim is about, as the expected better arm less the other one."""
    if figures["claim_measure"] != figures["measure"]:
        return [f"not tested: the runs compared the {measure_title(figures, 'measure')}"]
    rows = []
    for first, second in figures["expects"]:
        pair, _ = _pair(figures, first, second)
        if pair["first"] != first:
            ends = pair["ci95"] and [-end for end in reversed(pair["ci95"])]
            # 0 less the difference, because the negative of 0 would be written as -0.000.
            pair = pair | {"difference": 0 - pair["difference"], "ci95": ends}
        rows.append(f"{first} - {second}: {difference(pair)}")
    for one in figures["equivalences"]:
        found = "" if one["difference"] is None else f": {difference(with_interval(figures, one))}"
        rows.append(f"{one['first']} - {one['second']} ({one['measure']}, margin {one['margin']:g}){found}")
    return rows


def decided_by(figures: Json) -> Json:
    """How a page was decided: verdict, tests, seeds of the arms, and the difference found with 80 % probability.

    There is no such difference where the seeds of every arm are ``alike``, which is said then.
    """
    seeds = [len(row["measure"]["values"]) for row in figures["arms"].values()]
    tests = ["AdaStop"] if figures["expects"] or not figures["equivalences"] else []
    detectable = [family["detectable"] for family in figures["families"] if family["detectable"] is not None]
    return {
        "verdict": claim_verdict(figures),
        "measured": figures["claim_measure"] == figures["measure"],
        "tests": tests + (["two one-sided tests"] if figures["equivalences"] else []),
        "seeds": [min(seeds), max(seeds)],
        "seeds_at_most": figures["plan"]["per_interim"] * figures["plan"]["interims"],
        "detectable": max(detectable, default=None),
        "alike": any(family["deviation"] == 0 for family in figures["families"]),
        "identity": figures.get("stands_on") is not None,
    }


def power_in_words(found: Json) -> str:
    """Seeds and power of ``decided_by`` for people."""
    if not found["measured"]:
        return "the runs compared something else"
    low, high = found["seeds"]
    seeds = (
        f"{low} of {found['seeds_at_most']}"
        if low == high
        else f"{low} to {high} of {found['seeds_at_most']}"
    )
    detectable = found["detectable"]
    if detectable is not None:
        power = f"80 % power for {detectable:{',.0f' if detectable >= 100 else '.3f'}}"
    elif found["alike"]:
        power = "power not known in the unit of the measure: all seeds of an arm score the same"
    else:
        power = "power not known"
    return f"{' and '.join(found['tests'])}, {seeds} seeds, {power}"


def results_table(pages: dict[str, Json]) -> str:
    """The page with the table, made of the figures of every page."""
    lines = [
        "| method | paper | claim | measure | result with interval | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for name, figures in pages.items():
        found = decided_by(figures)
        cells = [
            f"[{figures['method'] or name}]({name}.md)",
            figures["paper"],
            figures["claim"],
            f"{measure_title(figures)} ({figures['better']} is better)",
            "<br>".join(results_of(figures)),
            f"**{found['verdict']}** ({power_in_words(found)})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return _HEAD + "\n".join(lines) + "\n"


def publish(name: str, made: Path, pages: Path) -> None:
    """Copies the page of an experiment from the folder ``made`` to the published ones, and writes their table anew.

    Where a page of other runs stands there, its figures are kept in the folder ``earlier``: of another design (measure,
    numbers of seeds, what the claim expects), or of runs that stand on something else, such as a start that was made again,
    or that do not say.
    """
    new, old = made / f"{name}.json", pages / f"{name}.json"
    if old.is_file():
        held, found = read_json(old), read_json(new)
        design = ("measure", "level", "plan", "expects")
        if any(held.get(key) != found[key] for key in design) or _stand_apart(held, found):
            (pages / EARLIER).mkdir(exist_ok=True)
            count = len(list((pages / EARLIER).glob(f"{name}-*.json")))
            write_text(pages / EARLIER / f"{name}-{count + 1}.json", old.read_text(encoding="utf-8"))
    pages.mkdir(parents=True, exist_ok=True)
    for end in ("svg", "json", "md"):
        if (made / f"{name}.{end}").is_file():
            write_text(pages / f"{name}.{end}", (made / f"{name}.{end}").read_text(encoding="utf-8"))
    write_text(pages / TABLE, results_table(read_pages(pages)))


def _stand_apart(held: Json, found: Json) -> bool:
    """Whether no run of the page ``held`` could be one of ``found``, because they stand on something else or do not say."""
    before, now = held.get("stands_on"), found["stands_on"]
    if before is None:
        return True
    return any(before[name] != now[name] for name in before.keys() & now.keys())
