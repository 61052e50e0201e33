"""The folder of a saved retriever: its parts, its corpus, and the card, a manifest that connects them."""

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
    """The content of ``retriever.json``. The order of rows is the only link between an index and its corpus."""

    kind: str
    """``faiss``, ``bm25`` or ``hybrid``."""
    rows: int
    """Number of documents in the index."""
    corpus: str
    """Fingerprint of the corpus."""
    corpus_file: str = ""
    """SHA-256 of the corpus file if it has another layout than that of this package; otherwise empty."""
    encoder: str = ""
    """Id of the encoder; empty without one."""
    encoder_spec: str = ""
    """The spec with which the encoder can be made again."""
    dim: int = 0
    """Length of a vector; 0 without an encoder."""
    layout: str = OLD_LAYOUT
    """How title and text of a passage were combined for the encoder; the default is for older cards without this field."""
    metric: str = ""
    """How two vectors are compared; ``inner_product``, or empty without an encoder."""
    index: str = ""
    """How vectors are stored, as a FAISS factory string; empty without an encoder."""
    query_prefix: str = ""
    """Text put before every query."""
    passage_prefix: str = ""
    """Text that was put before every passage."""
    pooling: str = ""
    """How token vectors were combined, for example ``mean``; empty without an encoder."""
    max_tokens: int = 0
    """Number of tokens to which longer texts are cut; 0 is no limit."""
    normalised: bool = False
    """Whether vectors have length 1."""
    k1: float | None = None
    """Constant of BM25; None means 1.5 on an older card of that kind."""
    b: float | None = None
    """Constant of BM25; None means 0.75 on an older card of that kind."""
    faiss: str = ""
    """Version of FAISS that wrote the index; empty without one."""
    files: dict[str, FileSums] = field(default_factory=dict)
    """Size and checksums of every file in the folder except this card and the corpus, which has its own above; set by
    `write_card`. Empty for a hybrid, whose parts have their own cards, and for retrievers saved before there were
    checksums."""


def read_card(folder: Path, kind: str | None = None) -> Card:
    """Reads the card of a saved retriever.

    Args:
        folder: The folder of the retriever.
        kind: The required kind; None accepts any.

    Raises:
        ConfigurationError: the folder contains no retriever, or one of another kind.
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
        Card(**values)  # raises an error for unknown fields
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
    """Opens the mapped corpus in ``folder``, after comparing the files of the folder with the card.

    The corpus is read completely for that; the other files are checked by `verify_files`.

    Raises:
        CorpusError: it cannot be read.
        IndexMismatch: the corpus is not the one of the card, or another file is damaged.
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
    """Writes ``retriever.json`` with the checksums of the files in ``folder``, which all exist already."""
    own = {} if _parts_of(folder) else file_sums(folder, skip=(CARD_FILE, CORPUS_FILE))
    values = asdict(card) | {"files": own}
    text = json.dumps(values | {"digest": _digest_of(values)}, indent=2) + "\n"
    (folder / CARD_FILE).write_text(text, encoding="utf-8")


def check_folder(folder: Path) -> tuple[int, int]:
    """Reads every byte of a saved retriever, or of the two parts of a hybrid, and compares it with the card.

    Returns:
        The number of files, and the number of bytes that were read.

    Raises:
        ConfigurationError: there is no retriever, or it was saved without checksums.
        CorpusError: the corpus cannot be read.
        IndexMismatch: a file differs from its checksums.
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
    """Returns the cards of the retrievers inside this one."""
    return sorted(folder.glob(f"*/{CARD_FILE}"))


def _digest_of(values: dict[str, Any]) -> str:
    """Returns a digest of a card without the path of its encoder, which may move: the encoder's id is compared instead."""
    fixed = {name: value for name, value in values.items() if name != "encoder_spec"}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def refuse_other_content(out: Path) -> None:
    """Checks that ``out`` may be written: it does not exist, is empty, or is a retriever.

    Raises:
        ConfigurationError: it is something else.
    """
    if out.exists() and not (out / CARD_FILE).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigurationError(f"{out} exists and is not a retriever; give another folder.")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes ``out`` if the block succeeds, and is removed otherwise.

    An older retriever at ``out`` is replaced.

    Raises:
        ConfigurationError: ``out`` is something other than a retriever or an empty folder, or cannot be written.
    """
    refuse_other_content(out)
    try:
        with filling(out, replace=True) as fresh:
            yield fresh
    except OSError as error:
        raise ConfigurationError(f"{out} cannot be written: {error.strerror or error}.") from error
