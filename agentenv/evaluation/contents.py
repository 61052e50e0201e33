"""Digests of all that the names of a benchmark stand for: questions, corpus, index, policy, environment.

They are taken from the disk before anything is opened, so that a finished evaluation is compared in seconds too. A folder
whose evaluation was made of other content is refused (``agentenv.evaluation.journal.claim``).
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from agentenv.core.io.digests import file_digest, path_digest, value_digest
from agentenv.core.io.named_paths import existing_path, named_content, texts_in
from agentenv.core.protocols import Policy, Retriever
from agentenv.core.registry import env_class, is_remote
from agentenv.data.sources import Source
from agentenv.errors import AgentEnvError
from agentenv.evaluation.built_retrievers import BUILT
from agentenv.evaluation.journal import NAMED
from agentenv.evaluation.task_env import SearchConfig
from agentenv.policies.policy_spec import is_router, policy_digest, policy_folder, router_parts
from agentenv.retrievers.retriever_spec import LOADERS, make_retriever
from agentenv.retrievers.storage.corpus import as_corpus

_GIVEN = {*sys.stdlib_module_names, "gymnasium", "pydantic", "numpy", "typing_extensions"} - {"__main__"}
"""What environments are built on and do not change with them."""
_POLICY = re.compile(r"hf:[^@,\s]+")
"""A policy in a folder within a retriever's spec, such as that of a simulated search."""


def content_digests(
    source: Source,
    search: SearchConfig,
    env: str,
    name: str,
    *,
    policy: Policy | None = None,
    retriever: Retriever | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """The digests, by what they are of; empty where there is nothing, or nothing that could be compared.

    Args:
        source: The questions, with the corpus that is searched.
        search: The retriever.
        env: Id of the environment.
        name: The spec of the policy, or the name of one that is given.
        policy: The policy itself, where it has no spec.
        retriever: The retriever itself, where it has none.
        options: Those of the environment, its tasks and the strategy; files, models and policies that they name count.

    Raises:
        OSError: a file cannot be read.
        RetrieverFault: a retriever behind an address does not answer.
    """
    weights = policy is None and (name == "tiny" or name.startswith(("hf:", "vllm:", "router:")))
    return {
        "questions": value_digest(source.tasks),
        "corpus": _corpus(source),
        "index": _index(search.retriever) if retriever is None else retriever.info().fingerprint,
        "policy": policy_digest(name) if weights else name if policy is None else _given(name, policy),
        "environment": environment_digest(env),
        **named_in(options or {}),
    }


def named_in(options: Mapping[str, Any]) -> dict[str, str]:
    """The digest of what each option names on this disk, by its key; nothing of one that names nothing."""
    found: dict[str, str] = {}
    for key, text in texts_in(options):
        if (weights := _weights(text)) is not None:
            found[NAMED + key] = weights
        elif (path := named_content(text)) is not None:
            found[NAMED + key] = path_digest(path)
    return found


def written_since(contents: Mapping[str, str], options: Mapping[str, Any]) -> list[str]:
    """The keys of ``contents`` whose files have changed: what the environment writes is no part of the evaluation.

    Models and policies are not read again: nothing writes to them while they are used.
    """
    found: list[str] = []
    for key, text in texts_in(options):
        if NAMED + key not in contents or _is_policy(text):
            continue
        path = named_content(text)
        with suppress(OSError):
            if path is None or (path.is_file() and path_digest(path) != contents[NAMED + key]):
                found.append(NAMED + key)
    return found


def _is_policy(spec: str) -> bool:
    return spec.startswith(("hf:", "router:"))


def _weights(spec: str) -> str | None:
    """The digest of a policy in a folder, with settings behind it or not; None of any other text."""
    if not _is_policy(spec):
        return None
    with suppress(AgentEnvError, OSError):
        folders = map(policy_folder, router_parts(spec)) if is_router(spec) else [policy_folder(spec)]
        if all(folder.is_dir() for folder in folders):
            return policy_digest(spec)
    return None


def _given(name: str, policy: Policy) -> str:
    """The digest of an agent's source; of another object its class and the version of its weights, all that it says."""
    return str(getattr(policy, "digest", f"{name}, version {policy.version}"))


def _corpus(source: Source) -> str:
    if source.documents is not None:
        return as_corpus(source.documents).fingerprint
    if source.corpora:
        return value_digest([(name, path_digest(path)) for name, path in source.corpora])
    return path_digest(source.corpus) if source.corpus is not None and source.corpus.exists() else ""


def _index(spec: str) -> str:
    """The digest of what a retriever's spec names on this disk, or of what a server says of itself."""
    if spec in BUILT:  # it is built over the corpus, which has a digest of its own
        return ""
    kind, _, rest = spec.partition(":")
    if kind in LOADERS and (index := existing_path(rest)) is not None:
        return path_digest(index)
    if kind in ("http", "https"):
        return make_retriever(spec).info().fingerprint
    if kind in ("cassette", "rerank"):
        file, at, inner = rest.partition("@")
        replayed = kind == "cassette" and not at and Path(file).is_file()  # with one behind it, it grows
        return file_digest(Path(file)) if replayed else _index(inner)
    models = [digest for one in _POLICY.findall(spec) if (digest := _weights(one)) is not None]
    return value_digest([spec, *models]) if models else spec


def environment_digest(env: str) -> str:
    """A digest of the source that defines it: of each module that its class and the classes above it come from.

    Modules of the same folder whose functions and classes they use, such as the parts of a search environment, belong to it.
    A module of another package stands for that whole package, because what it imports may decide a score as well.
    """
    cls = env_class(env)
    if is_remote(env):
        return value_digest(vars(cls)["card"])  # what the server says of it: its source is not here
    names = {name for base in cls.__mro__ for name in (base.__module__, *_neighbours(base.__module__))}
    tops = {name: name.partition(".")[0] for name in names}
    sources = {name if top == "agentenv" else top for name, top in tops.items() if top not in _GIVEN}
    return value_digest([(name, _source_digest(sys.modules.get(name))) for name in sorted(sources)])


def part_digest(entry_point: str) -> str:
    """A digest of the source of a part ``module:name`` that was imported: of its module, or of the package that it is in."""
    return _source_digest(sys.modules.get(entry_point.partition(":")[0].partition(".")[0]))


def _neighbours(name: str) -> Iterator[str]:
    """The modules in the folder of an environment's module whose functions and classes it uses."""
    folder = f"{name.rpartition('.')[0]}."
    if folder.startswith("agentenv.envs.") and name in sys.modules:
        homes = (getattr(value, "__module__", None) for value in vars(sys.modules[name]).values())
        yield from (home for home in homes if isinstance(home, str) and home.startswith(folder))


def _source_digest(module: ModuleType | None) -> str:
    """The digest of the Python files of a package, or of the file of a module; empty where there is no file."""
    folders = [Path(place) for place in getattr(module, "__path__", ())]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    if not folders and (file := getattr(module, "__file__", None)):
        files = [Path(file)]
    return value_digest([(path.name, file_digest(path)) for path in files if path.is_file()])
