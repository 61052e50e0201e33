"""A table on a terminal of any width: rows where they fit, otherwise columns of values beside their headings."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console

from agentenv.evaluation.report.flat_tables import FlatTable

_GAP = "  "


def print_table(console: Console, table: FlatTable) -> None:
    """Prints a title and the values; no cell is ever cut or broken.

    Where a row does not fit into the width of the terminal, the rows stand side by side as columns, as many at a time as
    fit.
    """
    table = table.readable()
    console.print(table.title, style="bold", markup=False)
    left = [column.kind == "text" for column in table.columns]
    lines = [[column.heading for column in table.columns], *table.cells()]
    if _width(lines) <= console.width:
        _print(console, lines, left)
        return
    for chunk in _chunks(lines, console.width):
        _print(console, [list(line) for line in zip(*chunk, strict=True)], [True])


def _chunks(lines: Sequence[Sequence[str]], width: int) -> Iterator[list[Sequence[str]]]:
    """The headings with as many rows as fit beside them, at least one, until all rows have had their turn."""
    head, *rows = lines
    chunk: list[Sequence[str]] = [head]
    for row in rows:
        if len(chunk) > 1 and _width(list(zip(*chunk, row, strict=True))) > width:
            yield chunk
            chunk = [head]
        chunk.append(row)
    yield chunk


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(*lines, strict=True)]


def _width(lines: Sequence[Sequence[str]]) -> int:
    widths = _widths(lines)
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _print(console: Console, lines: Sequence[Sequence[str]], left: Sequence[bool]) -> None:
    """Lines of cells in columns; those of ``left`` begin on the left, the others end on the right."""
    widths = _widths(lines)
    for line in lines:
        cells = []
        for place, (cell, width) in enumerate(zip(line, widths, strict=True)):
            room = " " * (width - cell_len(cell))
            cells.append(cell + room if place < len(left) and left[place] else room + cell)
        console.out(_GAP.join(cells).rstrip())
