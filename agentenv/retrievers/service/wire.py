"""The requests and replies of a retrieval server: Search-R1's ``/retrieve``, and ``/v1/search`` and ``/access``."""

from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from agentenv.core.types import Document, Passage, Query, QueryContext

VERSION = "v1"
DEFAULT_K = 3  # the default of Search-R1

Count = Annotated[int, Field(ge=1)]


class RetrieveRequest(BaseModel):
    """The body of ``/retrieve``. Unknown fields, which other servers of this kind may accept, are ignored."""

    queries: list[str]
    """One question or several; a single one may be given as ``query``."""
    topk: int | None = Field(None, ge=0, validation_alias=AliasChoices("topk", "top_k", "top_n", "k"))
    """Largest number of passages per query; None and 0 use the server's default."""
    return_scores: bool = Field(False, validation_alias=AliasChoices("return_scores", "return_score"))
    """Whether documents are returned with their scores."""
    corpus: str | None = None
    """Name of one of several corpora; None is the one in the path, or the first."""
    partial: bool = False
    """Whether an answer may lack the documents of failed shards; it then says so."""

    @model_validator(mode="before")
    @classmethod
    def _one_query(cls, body: Any) -> Any:
        if isinstance(body, dict) and "queries" not in body and "query" in body:
            return body | {"queries": [body["query"]]}
        return body


class Context(BaseModel):
    """The context of a query; sent only to a retriever whose results depend on it."""

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
        """Returns the query in the form that retrievers accept."""
        return Query(self.text, None if self.context is None else QueryContext(**self.context.model_dump()))


class SearchRequest(BaseModel):
    """The body of ``/v1/search``."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    queries: list[str | ContextQuery]
    """Texts, or objects with text and context."""
    k: Count = DEFAULT_K
    """Largest number of passages per query."""
    corpus: str | None = None
    """Name of one of several corpora; None is the one in the path, or the first."""
    timeout_s: float | None = Field(None, gt=0)
    """Seconds that the caller waits; None and larger values use the server's own limit."""
    partial: bool = False
    """Whether an answer may lack the documents of failed shards; it then says so."""


class AccessRequest(BaseModel):
    """The body of ``/access``: the result has the documents of ``ids``, then those of ``urls``."""

    ids: list[str] = []
    """Ids as searches return them."""
    urls: list[str] = []
    """Addresses of pages; a wiki page is found by the title in its address."""
    corpus: str | None = None
    """Name of one of several corpora; None is the one in the path, or the first."""


def quoted_contents(title: str, text: str) -> str:
    """Writes a document in Search-R1's form: the quoted title, a newline, the text."""
    return f'"{title}"\n{text}'


def retrieved(passages: list[Passage], scores: bool) -> list[dict[str, Any]]:
    """Returns one query's passages in the form of ``/retrieve``.

    ASearcher's clients pass the ``url`` to ``/access``, where an id counts as an address.
    """
    documents = [{"id": p.id, "url": p.id, "contents": quoted_contents(p.title, p.text)} for p in passages]
    if not scores:
        return documents
    return [{"document": d, "score": p.score} for d, p in zip(documents, passages, strict=True)]


def accessed(documents: list[Document], url: str | None) -> dict[str, Any] | None:
    """Returns a page in the form of ``/access``, from its documents in corpus order; None without any."""
    if not documents:
        return None
    first, text = documents[0], "\n".join(document.text for document in documents)
    contents = quoted_contents(first.title, text)
    return {"id": first.id, "url": url, "title": first.title, "text": text, "contents": contents}
