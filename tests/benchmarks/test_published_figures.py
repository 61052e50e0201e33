"""Figures that pages publish name their result file and are what stands there.

``benchmarks/published.toml`` lists texts of the documents with the places of their numbers in a result file, as JSON
pointers (RFC 6901). The pages of the laboratory, and the table of their results, are made of their figures alone, so they
are made again here and compared as a whole.
"""

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agentenv.trainers.lab.lab import experiments
from agentenv.trainers.lab.lab_page import page
from agentenv.trainers.lab.results_table import TABLE as LAB_TABLE
from agentenv.trainers.lab.results_table import read_pages, results_table

ROOT = Path(__file__).resolve().parents[2]
TABLE = "docs/measurements.md"
RESULTS, LAB = ROOT / "benchmarks" / "results", ROOT / "docs" / "lab"
PAGES = read_pages(LAB)
FIGURES: list[dict[str, Any]] = tomllib.loads(
    (ROOT / "benchmarks/published.toml").read_text(encoding="utf-8")
)["figure"]
NUMBER = re.compile(r"(?<![\w.])-?(?:\d[\d,]*)?\.?\d+")


def flat(text: str) -> str:
    """``text`` with every run of white space as one blank: a paragraph may be folded anywhere."""
    return " ".join(text.split())


def place_of(file: str) -> Path:
    """The file of a figure: one of the results, or the figures of a page of the laboratory (``lab/NAME.json``)."""
    return LAB.parent / file if file.startswith("lab/") else RESULTS / file


def at(value: Any, pointer: str) -> Any:
    """What stands at a JSON pointer."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def shown_as(shown: str, value: float) -> bool:
    """Whether ``shown`` is ``value`` rounded to the digits that it shows."""
    decimals = len(shown.partition(".")[2])
    return bool(abs(float(shown.replace(",", "")) - value) <= 0.5 * 10**-decimals + 1e-9)


def measured() -> list[tuple[str, str]]:
    """Figure and file of each row of the table of measurements."""
    section = (ROOT / TABLE).read_text(encoding="utf-8").partition("\n## Measured\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [(cells[1].strip(), cells[2].strip().strip("`")) for cells in rows[2:]]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure['document']}: {figure['text'][:50]}")
def test_a_published_figure_is_what_its_file_says(figure: dict[str, Any]) -> None:
    document = flat((ROOT / figure["document"]).read_text(encoding="utf-8"))
    assert flat(figure["text"]) in document
    names = {figure["file"], figure["file"].replace("lab/", "(lab/").replace(".json", ".md)")}
    if figure["document"] == "README.md":  # it links the table of measurements, which names the files
        assert f"]({TABLE})" in document
        document += (ROOT / TABLE).read_text(encoding="utf-8")
    assert any(name in document for name in names), f"{figure['document']} must name the file of its figure"
    results = json.loads(place_of(figure["file"]).read_text(encoding="utf-8"))
    shown = NUMBER.findall(figure["text"])
    assert len(shown) == len(figure["values"]), f"{shown} need as many places in {figure['file']}"
    for number, pointer in zip(shown, figure["values"], strict=True):
        value = at(results, pointer) * figure.get("factor", 1)
        assert shown_as(number, value), f"{number} is published, and {pointer} of {figure['file']} is {value}"


@pytest.mark.parametrize(("figure", "file"), measured(), ids=lambda cell: cell[:50])
def test_every_number_of_the_table_is_checked(figure: str, file: str) -> None:
    listed = [row for row in FIGURES if row["document"] == TABLE and row["file"] == file]
    left = figure
    for row in listed:
        left = left.replace(row["text"], "")
    assert not NUMBER.findall(left), (
        f"{left!r} has numbers that benchmarks/published.toml does not place in {file}"
    )


def pages_with_results() -> list[tuple[str, str]]:
    """Each page of the documentation with each result file that it names; dated records of what was tried are left out."""
    pages = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem not in ("log", "lab")]
    known = {path.name for path in RESULTS.glob("*.json")}
    return [
        (f"docs/{page.name}", name)
        for page in pages
        for name in sorted(known & set(re.findall(r"\w+\.json", page.read_text(encoding="utf-8"))))
    ]


@pytest.mark.parametrize(("document", "file"), pages_with_results())
def test_what_a_page_takes_from_a_result_file_is_checked(document: str, file: str) -> None:
    assert any(row["document"] == document and row["file"] == file for row in FIGURES), (
        f"{document} names {file}: place its figures in benchmarks/published.toml"
    )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_laboratory_is_made_of_its_figures(name: str) -> None:
    assert (LAB / f"{name}.md").read_text(encoding="utf-8") == page(PAGES[name])


def test_the_table_of_the_laboratory_is_made_of_the_figures_of_all_pages() -> None:
    assert (LAB / LAB_TABLE).read_text(encoding="utf-8") == results_table(PAGES)
    assert set(PAGES) == set(experiments())


@pytest.mark.parametrize(
    "document", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
)
def test_what_a_document_takes_from_a_page_of_the_laboratory_is_checked(document: str) -> None:
    """A sentence with figures that links such a page; what stands in the page itself is checked above."""
    listed = "".join(row["text"] for row in FIGURES if row["document"] == document)
    text = "" if document == "docs/log.md" else (ROOT / document).read_text(encoding="utf-8")
    for sentence in re.split(r"(?<=[a-z)])\. (?=[A-Z])", flat(text)):
        if re.search(r"\((?:docs/)?lab/(?!results)[\w-]+\.md\)", sentence):
            shown = re.findall(r"(?<![\w.])\d*\.\d+", sentence)
            assert [number for number in shown if number not in listed] == []


@pytest.mark.parametrize(
    ("document", "form"),
    [("README.md", r"(?<![\w.])0\.\d\d(?!\d)"), ("docs/lab.md", r"(?<![\w.])-?\.\d{3}(?!\d)")],
)
def test_every_score_of_the_readme_and_of_the_laboratory_is_checked(document: str, form: str) -> None:
    """Whatever looks like a score: two decimals with a zero in the README, three without one on the other page."""
    left = flat((ROOT / document).read_text(encoding="utf-8"))
    for row in FIGURES:
        if row["document"] == document:
            left = left.replace(flat(row["text"]), "")
    assert re.findall(form, left) == [], "place these in benchmarks/published.toml"


def test_the_picture_of_the_readme_is_drawn_from_the_results() -> None:
    place = importlib.util.spec_from_file_location("readme_plot", ROOT / "benchmarks" / "readme_plot.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    results = json.loads((RESULTS / "make_train.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs/images/make_train.svg").read_text(encoding="utf-8") == module.picture(results)


def test_every_result_file_is_named_in_a_document() -> None:
    pages = [ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    documents = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [path.name for path in sorted(RESULTS.glob("*.json")) if path.name not in documents] == []


@pytest.mark.parametrize(
    ("shown", "value", "agree"),
    [
        (".860", 0.8604, True),
        (".860", 0.8606, False),
        ("449", 449.4, True),
        ("3,030", 3030, True),
        ("-.176", -0.1763, True),
    ],
)
def test_a_number_agrees_to_the_digits_that_it_shows(shown: str, value: float, agree: bool) -> None:
    assert shown_as(shown, value) is agree


RECALL_COLUMNS: dict[str, float] = {
    "recall@2": 1, "recall@3": 1, "recall@5": 1, "recall@10": 1, "all@5": 1, "overlap@10": 1,
    "build_cpu_seconds": 1, "index_bytes": 1e-6, "queries_per_cpu_second": 1, "least_gain_on_baseline": 1,
}  # fmt: skip
"""Entries of a retriever in ``index_recall.json`` in the order of the table's columns, and what they are multiplied by."""


def recall_rows() -> list[tuple[str, str, list[str]]]:
    """Set, retriever and the other cells of each row of the tables of recall in ``benchmarks/README.md``."""
    section = (
        (ROOT / "benchmarks/README.md").read_text(encoding="utf-8").partition("## `index_recall.py`\n")[2]
    )
    found, name = [], ""
    for line in section.partition("\n## ")[0].splitlines():
        name = line.partition(":")[0] if re.match(r"\w+: [\d,]+ passages", line) else name
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and NUMBER.fullmatch(cells[1]):
            found.append((name, cells[0], cells[1:]))
    return found


def test_every_cell_of_the_tables_of_recall_is_in_its_file() -> None:
    sets = json.loads((RESULTS / "index_recall.json").read_text(encoding="utf-8"))["sets"]
    rows = recall_rows()
    assert len(rows) == sum(len(one["retrievers"]) for one in sets.values())
    for name, retriever, cells in rows:
        (held,) = [row for row in sets[name]["retrievers"] if row["retriever"] == retriever]
        for shown, (column, factor) in zip(cells, RECALL_COLUMNS.items(), strict=True):
            assert shown_as(shown, held[column] * factor), f"{name}, {retriever}: {column} is {held[column]}"
