"""The folder of a saved retriever: its parts, its corpus, and a card, the manifest that ties them together."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from agentenv.core.io.files import new_folder as filling
from agentenv.errors import ConfigurationError, CorpusError, IndexMismatch
from agentenv.retrievers.storage import mapped_corpus
from agentenv.retrievers.storage.checksums import FileSums, file_sums, verify_files
from agentenv.retrievers.storage.mapped_corpus import MappedCorpus

CARD_FILE = "retriever.json"
CORPUS_FILE = mapped_corpus.CORPUS_FILE
OLD_LAYOUT = "{title} {text}"


@dataclass(frozen=True)
class Card:
    """What stands in ``retriever.json``; row order is the only link between an index and its corpus."""

    kind: str
    """``faiss``, ``bm25`` or ``hybrid``."""
    rows: int
    """Documents in the index."""
    corpus: str
    """Fingerprint of the corpus."""
    corpus_file: str = ""
    """SHA-256 of the corpus file where it is not in our own layout; empty where it is the fingerprint."""
    encoder: str = ""
    """Id of the encoder; empty without one."""
    encoder_spec: str = ""
    """What makes the encoder again."""
    dim: int = 0
    """Length of a vector; 0 without an encoder."""
    layout: str = OLD_LAYOUT
    """How title and text of a passage were put together before it was encoded; cards that do not say are older."""
    metric: str = ""
    """How two vectors are compared; ``inner_product``, or empty without an encoder."""
    index: str = ""
    """How vectors are stored, in FAISS's words; empty without an encoder."""
    query_prefix: str = ""
    """Put before every query."""
    passage_prefix: str = ""
    """Was put before every passage."""
    pooling: str = ""
    """How token vectors became one vector, for example ``mean``; empty without an encoder."""
    max_tokens: int = 0
    """Tokens after which texts are cut; 0 is never."""
    normalised: bool = False
    """Whether vectors have length 1."""
    k1: float | None = None
    """Of BM25; None is 1.5 for a card of that kind, which is then older."""
    b: float | None = None
    """Of BM25; None is 0.75 for a card of that kind."""
    faiss: str = ""
    """Version that wrote the index; empty without one."""
    files: dict[str, FileSums] = field(default_factory=dict)
    """Size and checksums of every file in the folder but this card and the corpus, which has its own above; `write_card`
    fills them in. Empty for a hybrid, whose parts have cards of their own, and for what was saved before there were any."""


def read_card(folder: Path, kind: str | None = None) -> Card:
    """The card of a saved retriever.

    Args:
        folder: where it was saved.
        kind: the kind that it must be; None takes any.

    Raises:
        ConfigurationError: the folder holds no retriever, or one of another kind.
    """
    path = folder / CARD_FILE
    if not path.is_file():
        alone = Path(str(folder).partition(":")[2])
        if alone.name and (alone / CARD_FILE).is_file():
            raise ConfigurationError(
                f"There is no folder {str(folder)!r}; name the folder alone: {str(alone)!r}."
            )
        raise ConfigurationError(f"{folder} holds no retriever; make one with `agentenv retriever build`.")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        digest = values.pop("digest", None)
        Card(**values)  # which refuses what it does not know
        card = TypeAdapter(Card).validate_python(values)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{path} is not a retriever's card ({error}); build the retriever again."
        ) from error
    if digest is not None and digest != _digest_of(values):
        raise ConfigurationError(
            f"{path} was changed or damaged after it was written (only encoder_spec may be edited); "
            f"build the retriever again."
        )
    if kind is not None and card.kind != kind:
        raise ConfigurationError(
            f"{folder} holds a {card.kind} retriever, not {kind}; write '{card.kind}:{folder}'."
        )
    return card


def read_corpus(folder: Path, card: Card) -> MappedCorpus:
    """The corpus in ``folder``, mapped, after the files of the folder were compared with the card.

    The corpus is read whole for that, the other files as `verify_files` says.

    Raises:
        CorpusError: it cannot be read.
        IndexMismatch: it is not the one that the card was written for, or another file is damaged.
    """
    verify_files(folder, card.files)
    try:
        with (folder / CORPUS_FILE).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            empty = not file.tell()
    except OSError as error:
        raise CorpusError(f"{folder / CORPUS_FILE} cannot be read: {error.strerror}.") from error
    if empty:
        raise CorpusError(f"{folder / CORPUS_FILE} is empty; build the retriever again.")
    expected = card.corpus_file or card.corpus
    if found != expected:
        raise IndexMismatch(
            f"The index in {folder} was built over corpus {expected[:12]}, but {CORPUS_FILE} there is "
            f"{found[:12]}; build the retriever again."
        )
    return MappedCorpus(folder, card.corpus)


def write_card(folder: Path, card: Card) -> None:
    """Writes ``retriever.json`` with the checksums of the files in ``folder``, all of which are there already."""
    own = {} if _parts_of(folder) else file_sums(folder, skip=(CARD_FILE, CORPUS_FILE))
    values = asdict(card) | {"files": own}
    text = json.dumps(values | {"digest": _digest_of(values)}, indent=2) + "\n"
    (folder / CARD_FILE).write_text(text, encoding="utf-8")


def check_folder(folder: Path) -> tuple[int, int]:
    """Reads every byte of a saved retriever, or of the two parts of a hybrid, and compares it with the card.

    Returns:
        How many files there are, and how many bytes were read.

    Raises:
        ConfigurationError: there is no retriever, or it was saved without checksums.
        CorpusError: the corpus cannot be read.
        IndexMismatch: a file is not what was written.
    """
    card = read_card(folder)
    parts = [check_folder(part.parent) for part in _parts_of(folder)]
    if parts:
        return sum(files for files, _ in parts), sum(read for _, read in parts)
    if not card.files:
        raise ConfigurationError(
            f"{folder} was saved by a version that recorded no checksums; build the retriever again to have them."
        )
    verify_files(folder, card.files, whole=True)
    read_corpus(folder, card)
    sizes = [(folder / CORPUS_FILE).stat().st_size, *(sums["bytes"] for sums in card.files.values())]
    return len(sizes), sum(sizes)


def _parts_of(folder: Path) -> list[Path]:
    """The cards of the retrievers inside this one."""
    return sorted(folder.glob(f"*/{CARD_FILE}"))


def _digest_of(values: dict[str, Any]) -> str:
    """The digest of a card without the place of its encoder, which may move: the encoder's own id is compared at opening."""
    fixed = {name: value for name, value in values.items() if name != "encoder_spec"}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def refuse_other_content(out: Path) -> None:
    """Checks that ``out`` may be written: it is absent, empty or a retriever.

    Raises:
        ConfigurationError: it is something else.
    """
    if out.exists() and not (out / CARD_FILE).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigurationError(f"{out} exists and is not a retriever; give another folder.")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes ``out`` when the block ends well and vanishes when it does not.

    An older retriever at ``out`` is replaced.

    Raises:
        ConfigurationError: ``out`` is something else than a retriever or an empty folder, or cannot be
            written.
    """
    refuse_other_content(out)
    try:
        with filling(out, replace=True) as fresh:
            yield fresh
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror or error}.") from error
