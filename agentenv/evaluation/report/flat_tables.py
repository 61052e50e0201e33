"""A flat table of values, written as CSV, Markdown or LaTeX.

CSV has every value with full precision, and an interval as two columns. Markdown and LaTeX have what a paper prints: three
digits, an interval in one column. A text that is the same in every row (the policy, for example) appears only in the
caption.
"""

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentenv.errors import check_known

_FORMULA_STARTS = tuple("=+-@\t\r")
"""First characters of texts that spreadsheets would evaluate as formulas."""
Kind = Literal["text", "count", "share", "difference", "interval", "signed interval", "p"]


@dataclass(frozen=True)
class Column:
    """One column. The values of an ``interval`` are pairs; those of other numeric kinds are one number or None."""

    name: str
    kind: Kind = "text"
    label: str = ""
    """The heading, if it is not derived from the name."""

    @property
    def heading(self) -> str:
        """The heading of the column."""
        return self.label or self.name.replace("_", " ")

    def formatted(self, value: Any) -> str:
        """Formats a value for reading; empty if it was not measured."""
        if value is None:
            return ""
        digits = {"count": ",", "share": ".3f", "difference": "+.3f", "p": ".2g"}
        if self.kind in digits:
            return format(value, digits[self.kind])
        if self.kind == "text":
            return str(value)
        return interval_text(value, "+.3f" if self.kind == "signed interval" else ".3f")


def interval_text(ends: list[float] | tuple[float, float] | None, form: str = ".3f") -> str:
    """Formats the ends of an interval for reading."""
    return "(no interval)" if ends is None else f"[{ends[0]:{form}}, {ends[1]:{form}}]"


@dataclass(frozen=True)
class FlatTable:
    """Rows of values in named columns."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]

    def cells(self) -> list[list[str]]:
        """Returns the rows formatted for reading."""
        return [
            [column.formatted(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def readable(self) -> "FlatTable":
        """Removes empty columns, and moves texts that are the same in every row into the title."""
        title, kept = self.title, []
        for place, column in enumerate(self.columns):
            values = {row[place] for row in self.rows} - {None, ""}
            if place and column.kind == "text" and len(values) == 1:
                title = f"{title}, {column.heading} {values.pop()}"
            elif values:
                kept.append(place)
        return FlatTable(
            title,
            tuple(self.columns[place] for place in kept),
            tuple(tuple(row[place] for place in kept) for row in self.rows),
        )

    def parts(self, name: str) -> "list[FlatTable]":
        """Splits the table by the values of the text column ``name``; each part has its value as the title."""
        place = [column.name for column in self.columns].index(name)
        columns = self.columns[:place] + self.columns[place + 1 :]
        groups: dict[str, list[tuple[Any, ...]]] = {}
        for row in self.rows:
            groups.setdefault(row[place], []).append(row[:place] + row[place + 1 :])
        return [
            replace(self, title=str(value), columns=columns, rows=tuple(rows))
            for value, rows in groups.items()
        ]


def _csv(table: FlatTable) -> str:
    head = [
        name
        for column in table.columns
        for name in (
            (f"{column.name}_low", f"{column.name}_high") if "interval" in column.kind else (column.name,)
        )
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for row in table.rows:
        cells: list[Any] = []
        for column, value in zip(table.columns, row, strict=True):
            cells += (value or (None, None)) if "interval" in column.kind else [_no_formula(value)]
        writer.writerow(cells)
    return out.getvalue()


def _no_formula(value: Any) -> Any:
    """Puts an apostrophe before a text that a spreadsheet would evaluate, which makes it show the text unchanged."""
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA_STARTS else value


def _markdown(table: FlatTable) -> str:
    table = table.readable()
    head = "| " + " | ".join(_markdown_cell(column.heading) for column in table.columns) + " |"
    rule = "|" + "|".join("---" if column.kind == "text" else "---:" for column in table.columns) + "|"
    rows = ["| " + " | ".join(map(_markdown_cell, cells)) + " |" for cells in table.cells()]
    return "\n".join([_markdown_cell(table.title), "", head, rule, *rows]) + "\n"


def _markdown_cell(text: str) -> str:
    """Formats a cell of Markdown: on one line, and with special characters escaped."""
    plain = " ".join(text.split()).replace("\\", "\\\\")
    shown = "".join(f"\\{letter}" if letter in "|*_`<" else letter for letter in plain)
    return shown.replace("](", "]\\(")  # otherwise a name could become a link or an image


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
} | {letter: f"\\{letter}" for letter in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def _latex(table: FlatTable) -> str:
    table = table.readable()
    sides = "".join("l" if column.kind == "text" else "r" for column in table.columns)

    def line(cells: Iterable[str]) -> str:
        # LaTeX would read an opening bracket after \\ or at the beginning of a row as an optional argument.
        return (
            " & ".join(f"{{{cell}}}" if cell.startswith("[") else cell for cell in map(_tex, cells)) + r" \\"
        )

    return "\n".join(
        [
            "% Needs \\usepackage{booktabs} in the preamble.",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(table.title)}}}",
            rf"\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            line(column.heading for column in table.columns),
            r"\midrule",
            *map(line, table.cells()),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


FORMATS: dict[str, Callable[[FlatTable], str]] = {"csv": _csv, "markdown": _markdown, "latex": _latex}


def as_text(table: FlatTable, form: str) -> str:
    """Writes the table in one of `FORMATS`.

    Raises:
        UnknownName: there is no such format.
    """
    check_known("format", form, FORMATS)
    return FORMATS[form](table)
