"""What commands that make one thing have in common: the display, its log beside the thing, and that nobody else makes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentenv.core.io.claims import claim
from agentenv.errors import ConfigurationError
from agentenv.progress import LiveDisplay


@contextmanager
def making(title: str, out: Path) -> Iterator[LiveDisplay]:
    """The display of a command that makes the file or folder ``out``, with a log of its name beside it.

    A mistake that is found before anything is kept leaves no log behind.

    Raises:
        ConfigurationError: another process makes it; it would be refused at the end otherwise, with all of its work done.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    log = out.parent / f"{out.name}.log"
    taken = f"another process makes {out}: wait for it, or choose another --out"
    ours = not log.exists()
    try:
        with LiveDisplay(title, log=log) as display, claim(log, taken):
            yield display
    except ConfigurationError:
        if ours and not any(_is_of(out, path) and path != log for path in out.parent.iterdir()):
            log.unlink(missing_ok=True)
        raise


def _is_of(out: Path, path: Path) -> bool:
    """Whether ``path`` is ``out`` or holds what was finished of it, such as ``OUT.searched.jsonl``."""
    return path == out or path.name.startswith(f"{out.name}.")
