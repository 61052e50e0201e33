"""Each statement of the pages on security names the tests that would fail if it were false, and these tests exist.

The page `docs/security_tests.md` has a row for each. A row stands for the text from its words to those of the next row, and
each paragraph, each point of a list and each row of a table begins with one.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "sandbox.md": "docs/sandbox.md",
    "threat_model.md": "docs/threat_model.md",
    "SECURITY.md": "SECURITY.md",
}
FENCE = re.compile(r"^```[^`]*^```|^(?: {4}.*\n)+", re.MULTILINE)
BLOCK = re.compile(r"\n\s*\n|\n(?=- |\|)")
NAME = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")
TABLES = {"| who |": "each row", "| wall |": "each row", "| rows | what is tried": "its own column"}
"""Tables whose rows state something, by how they begin; the others hold figures, whose files are named beside them."""
ATTACKS = "| rows | what is tried"


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def stated(path: str) -> list[str]:
    """The paragraphs, points and rows of a page, each on one line, without headings, code and figures."""
    blocks, kept = BLOCK.split(FENCE.sub("\n", text_of(path))), []
    table = ""
    for block in (" ".join(block.split()) for block in blocks):
        if not block.startswith("|"):
            table = ""
            if block and not block.startswith("#"):
                kept.append(block)
        elif not table:
            table = next((kind for head, kind in TABLES.items() if block.startswith(head)), "figures")
        elif table == "each row" and not block.startswith("|--"):
            kept.append(block.strip("| "))
    return kept


def rows_of(page: str) -> list[tuple[str, str]]:
    """The words with which a statement of ``page`` begins, and the cell with its tests."""
    section = text_of("docs/security_tests.md").partition(f"]({'../' * (page == 'SECURITY.md')}{page})\n")[2]
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")][2:]
    cells = [line.strip().strip("|").rpartition(" | ") for line in lines]
    return [(words.strip(), tests.strip()) for words, _, tests in cells]


@cache
def defined_in(path: str) -> set[str]:
    """The functions and classes of a module of tests, and the words with which its texts begin."""
    tree = ast.parse(text_of(path))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return names | {text.partition(" ")[0] for text in texts if isinstance(text, str)}


def missing(cell: str) -> list[str]:
    """The tests that a cell names and that are not there; the cell itself where it names none and gives no reason."""
    if re.match(r"none: \w.{8,}", cell):
        return []
    names = NAME.findall(cell)
    if not names:
        return [cell]
    absent = []
    for name in names:
        path, _, function = name.partition("::")
        if not (ROOT / path).is_file() or function not in defined_in(path):
            absent.append(name)
    return absent


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_has_its_tests(page: str) -> None:
    rows, blocks = rows_of(page), stated(PAGES[page])
    assert [name for _, cell in rows for name in missing(cell)] == []
    unnamed = [block[:80] for block in blocks if not any(block.startswith(words) for words, _ in rows)]
    assert unnamed == [], "these begin with the words of no row"
    everything = "\n".join(blocks)
    assert [words for words, _ in rows if everything.count(words) != 1] == [], (
        "these are not there, or more than once"
    )


def attacks() -> list[list[str]]:
    """The rows of the table of attacks."""
    table = text_of("docs/sandbox.md").partition(ATTACKS)[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("row", attacks(), ids=lambda row: f"{row[0]} {row[1]}".strip()[:40])
def test_every_row_of_the_attack_table_has_its_tests(row: list[str]) -> None:
    """A row with numbers has in each file a function or a text that begins with each of them."""
    numbers, tests = numbers_of(row[0]), row[-1]
    if not numbers or "::" in tests or tests.startswith("none"):
        assert missing(tests) == []
    else:
        names = set().union(*(defined_in(path) for path in NAME.findall(tests)))
        lower = [name.removeprefix("test_").lower() for name in names]
        assert [one for one in numbers if not any(re.match(rf"{one}(_|$)", name) for name in lower)] == []


def numbers_of(cell: str) -> list[str]:
    """``A1, A2`` as ``a01`` and ``a02``; ``H1-H3`` are all between."""
    found = []
    for first, low, _, high in re.findall(r"([AH])(\d+)(-[AH](\d+))?", cell):
        found += [f"{first.lower()}{number:02}" for number in range(int(low), int(high or low) + 1)]
    return found


def test_a_name_that_does_not_exist_and_a_cell_without_a_reason_are_found() -> None:
    own = "tests/test_security_claims.py"
    assert missing(f"`{own}::test_every_sentence_has_its_tests`") == []
    assert missing(f"`{own}::test_nothing`, `tests/test_gone.py::test_x`") == [
        f"{own}::test_nothing",
        "tests/test_gone.py::test_x",
    ]
    assert missing("none: figures in a file") == []
    assert (missing("none"), missing("")) == (["none"], [""])
    assert numbers_of("A1, A12, H3-H5") == ["a01", "a12", "h03", "h04", "h05"]
