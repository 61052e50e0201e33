"""``agentenv retriever plan``: which index fits a corpus into a machine's memory, before anything is loaded."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentenv.retrievers.building.planner import HOW, advise, parse_size

_STYLES = {"yes": "green", "mapped": "yellow", "no": "red"}


@dataclass(frozen=True)
class Plan:
    """Shows which index fits into the memory, how much it needs, and how fast and exact it is. Nothing is loaded or built.

    Example: agentenv retriever plan --passages 21000000 --dim 768 --memory 24GiB
    """

    passages: int
    """Passages in the corpus; wiki-18 has 21,015,324."""
    dim: int = 384
    """Length of a vector: minilm 384, the base models of E5 and BGE 768."""
    memory: str = "8GiB"
    """Memory that the search may use: a number and a unit, such as 24GiB or 500MB."""

    def run(self) -> dict[str, Any]:
        """The options, the one to take, and where the figures come from."""
        memory = parse_size(self.memory)
        advice = advise(self.passages, self.dim, memory)
        return {
            "passages": self.passages,
            "dim": self.dim,
            "memory_bytes": memory,
            "best": asdict(advice.best) if advice.best else None,
            "options": [asdict(option) for option in advice.options],
            "how": list(HOW),
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints the options as a table, and the advice under it."""
        title = f"{self.passages:,} passages, {self.dim} dimensions, {self.memory}"
        table = Table(title=title, box=None, padding=(0, 1, 0, 0))
        table.add_column("index", no_wrap=True)
        for name in ("fits", "GB", "least", "overlap", "ms", "batched", "hours"):
            table.add_column(name, justify="right", no_wrap=True)
        for option in result["options"]:
            numbers = (option[key] for key in ("overlap", "alone_ms", "batch_ms", "build_hours"))
            sizes = (f"{option[key] / 1e9:.1f}" for key in ("memory_bytes", "least_bytes"))
            table.add_row(
                option["index"], Text(option["fits"], _STYLES[option["fits"]]), *sizes, *map(_short, numbers)
            )
        console.print(table, soft_wrap=False)
        best = result["best"]
        if best is None:
            least = min(option["least_bytes"] for option in result["options"])
            console.print(f"Nothing fits; the smallest needs {least / 1e9:.1f} GB.")
        else:
            console.print(
                f"Take {best['index']}: agentenv retriever build CORPUS --out DIR --index {best['index']!r}"
            )
        console.print(
            "GB: memory that holds all that a search reads; least: the least memory; overlap: share of the first 10 results",
            style="dim",
        )
        console.print(
            "that Flat finds too; ms: a query alone; batched: a query in a batch of 64; hours: to build. All on one thread.",
            style="dim",
        )
        if any(option["fits"] == "mapped" for option in result["options"]):
            console.print(
                "mapped: every search also reads from the disk, so it takes longer than the ms that are stated."
            )
        for sentence in result["how"]:
            console.print(sentence, style="dim", markup=False)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
