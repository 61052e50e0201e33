"""What commands that make one thing have in common: the display, its log beside the thing, and that nobody else makes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentenv.core.io.claims import claim
from agentenv.progress import LiveDisplay


@contextmanager
def making(title: str, out: Path) -> Iterator[LiveDisplay]:
    """The display of a command that makes the file or folder ``out``, with a log of its name beside it.

    Raises:
        ConfigurationError: another process makes it; it would be refused at the end otherwise, with all of its work done.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    log = out.parent / f"{out.name}.log"
    taken = f"another process makes {out}: wait for it, or choose another --out"
    with LiveDisplay(title, log=log) as display, claim(log, taken):
        yield display
