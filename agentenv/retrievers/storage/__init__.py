"""The corpora that retrievers search, and the folders of saved retrievers."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.retrievers.storage.corpus import Corpus, as_corpus, load_corpus, read_documents

__all__ = [
    "Corpus",
    "as_corpus",
    "load_corpus",
    "read_documents",
]

__getattr__, __dir__ = lazy_exports(__name__)
