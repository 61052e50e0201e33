"""The bodies of requests and replies of a retrieval server: Search-R1's ``/retrieve``, our ``/v1/search``, ``/access``."""

from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from agentenv.core.types import Document, Passage, Query, QueryContext

VERSION = "v1"
DEFAULT_K = 3  # Search-R1's

Count = Annotated[int, Field(ge=1)]


class RetrieveRequest(BaseModel):
    """Body of ``/retrieve``. Fields that other servers of this kind take and we do not know are ignored."""

    queries: list[str]
    """One question or several; a single one may be given as ``query``."""
    topk: int | None = Field(None, ge=0, validation_alias=AliasChoices("topk", "top_k", "top_n", "k"))
    """Most passages a query; None and 0 take the server's default."""
    return_scores: bool = Field(False, validation_alias=AliasChoices("return_scores", "return_score"))
    """Whether documents come with their scores."""
    corpus: str | None = None
    """Name of one of several corpora; None is the one of the path, or the first."""
    partial: bool = False
    """Whether an answer may lack the documents of dead shards; it then says so."""

    @model_validator(mode="before")
    @classmethod
    def _one_query(cls, body: Any) -> Any:
        if isinstance(body, dict) and "queries" not in body and "query" in body:
            return body | {"queries": [body["query"]]}
        return body


class Context(BaseModel):
    """Where a query comes from; sent only to a retriever whose results depend on it."""

    model_config = ConfigDict(extra="forbid")

    episode: str
    question: str = ""
    answers: tuple[str, ...] = ()
    step: int = 0
    split: str = ""
    seed: int = 0


class ContextQuery(BaseModel):
    """A query with its context."""

    model_config = ConfigDict(extra="forbid")

    text: str
    context: Context | None = None

    def query(self) -> Query:
        """The query as the retriever takes it."""
        return Query(self.text, None if self.context is None else QueryContext(**self.context.model_dump()))


class SearchRequest(BaseModel):
    """Body of ``/v1/search``."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    queries: list[str | ContextQuery]
    """Texts, or objects with text and context."""
    k: Count = DEFAULT_K
    """Most passages a query."""
    corpus: str | None = None
    """Name of one of several corpora; None is the one of the path, or the first."""
    timeout_s: float | None = Field(None, gt=0)
    """Seconds that the caller waits; None and anything longer than the server's own bound take that."""
    partial: bool = False
    """Whether an answer may lack the documents of dead shards; it then says so."""


class AccessRequest(BaseModel):
    """Body of ``/access``: the result holds the documents of ``ids``, then those of ``urls``."""

    ids: list[str] = []
    """Ids as searches return them."""
    urls: list[str] = []
    """Addresses of pages; a wiki page is found by the title in its address."""
    corpus: str | None = None
    """Name of one of several corpora; None is the one of the path, or the first."""


def quoted_contents(title: str, text: str) -> str:
    """A document as Search-R1 writes it: the quoted title, a newline, the text."""
    return f'"{title}"\n{text}'


def retrieved(passages: list[Passage], scores: bool) -> list[dict[str, Any]]:
    """One query's passages as ``/retrieve`` returns them.

    The ``url`` is what ASearcher's clients hand to ``/access``: an id is an address there.
    """
    documents = [{"id": p.id, "url": p.id, "contents": quoted_contents(p.title, p.text)} for p in passages]
    if not scores:
        return documents
    return [{"document": d, "score": p.score} for d, p in zip(documents, passages, strict=True)]


def accessed(documents: list[Document], url: str | None) -> dict[str, Any] | None:
    """A page as ``/access`` returns it, from its documents in corpus order; None without any."""
    if not documents:
        return None
    first, text = documents[0], "\n".join(document.text for document in documents)
    contents = quoted_contents(first.title, text)
    return {"id": first.id, "url": url, "title": first.title, "text": text, "contents": contents}
