"""Digests of all that the names of a benchmark stand for: questions, corpus, index, policy, environment.

They are taken from the disk before anything is opened, so that a finished evaluation is compared in seconds too. A folder
whose evaluation was made of other content is refused (``agentenv.evaluation.journal.claim``).
"""

import inspect
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agentenv.core.digests import file_digest, path_digest, value_digest
from agentenv.core.registry import env_class
from agentenv.data.sources import Source
from agentenv.evaluation.ground import BM25, SearchConfig
from agentenv.policies.spec import policy_digest
from agentenv.retrievers.corpus import as_corpus
from agentenv.retrievers.spec import LOADERS, make_retriever


def contents_of(source: Source, search: SearchConfig, env: str, policy: str) -> dict[str, str]:
    """The digests, by what they are of; empty where there is nothing, or nothing that could be compared.

    Args:
        source: The questions, with the corpus that is searched.
        search: The retriever.
        env: Id of the environment.
        policy: Its spec.

    Raises:
        OSError: a file cannot be read.
        RetrieverFault: a retriever behind an address does not answer.
    """
    weights = policy == "tiny" or policy.startswith(("hf:", "vllm:"))
    return {
        "questions": value_digest(source.tasks),
        "corpus": _corpus(source),
        "index": _index(search.retriever),
        "policy": policy_digest(policy) if weights else policy,
        "environment": _environment(env),
    }


def _corpus(source: Source) -> str:
    if source.documents is not None:
        return as_corpus(source.documents).fingerprint
    if source.corpora:
        return value_digest([(name, path_digest(path)) for name, path in source.corpora])
    return path_digest(source.corpus) if source.corpus is not None and source.corpus.exists() else ""


def _index(spec: str) -> str:
    """Of what a retriever's spec names on this disk; of a server what it says of itself."""
    kind, _, rest = spec.partition(":")
    if kind in LOADERS and Path(rest).exists():
        return path_digest(Path(rest))
    if kind in ("http", "https"):
        return make_retriever(spec).info().fingerprint
    if kind in ("cassette", "rerank"):
        file, at, inner = rest.partition("@")
        replayed = kind == "cassette" and not at and Path(file).is_file()  # with one behind it, it grows
        return file_digest(Path(file)) if replayed else _index(inner)
    return "" if spec in ("", BM25) else spec


def _environment(env: str) -> str:
    """Of the module that defines it; of our own the version of the package."""
    cls = env_class(env)
    if cls.__module__.partition(".")[0] != "agentenv":
        try:
            return file_digest(Path(inspect.getfile(cls)))
        except (OSError, TypeError):  # made in an interactive session
            return ""
    try:
        return version("agentenv-suite")
    except PackageNotFoundError:
        return ""
