"""Digests of everything that a benchmark refers to by name: questions, corpus, index, policy, environment.

They are computed from the disk before anything is opened, so that a finished evaluation is verified within seconds. A folder
whose evaluation used other content is refused (``agentenv.evaluation.journal.lock_folder``).
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

_STABLE_MODULES = {*sys.stdlib_module_names, "gymnasium", "pydantic", "numpy", "typing_extensions"} - {
    "__main__"
}
"""Modules that environments depend on, but that do not belong to an environment's own source."""
_POLICY = re.compile(r"hf:[^@,\s]+")
"""Matches a policy folder within a retriever's spec, such as that of a simulated search."""


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
    """Returns the digests by what they describe; entries without comparable content are missing.

    Args:
        source: The questions, with the corpus to search.
        search: The retriever.
        env: The id of the environment.
        name: The spec of the policy, or the name of a given policy object.
        policy: The policy object, if there is no spec.
        retriever: The retriever object, if there is no spec.
        options: Options of the environment, its tasks and the strategy. The files, models and policies they name are
            included.

    Raises:
        OSError: a file cannot be read.
        RetrieverFault: a retriever at a network address does not answer.
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
    """Returns the digest of what each option names on this disk, by key; options that name nothing are missing."""
    found: dict[str, str] = {}
    for key, text in texts_in(options):
        if (weights := _weights(text)) is not None:
            found[NAMED + key] = weights
        elif (path := named_content(text)) is not None:
            found[NAMED + key] = path_digest(path)
    return found


def written_since(contents: Mapping[str, str], options: Mapping[str, Any]) -> list[str]:
    """Returns the keys of ``contents`` whose files have changed: files that the environment writes do not identify it.

    Models and policies are not read again, because nothing writes to them while they are used.
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
    """Returns the digest of a policy folder, whether or not settings follow it in ``spec``; None for any other text."""
    if not _is_policy(spec):
        return None
    with suppress(AgentEnvError, OSError):
        folders = map(policy_folder, router_parts(spec)) if is_router(spec) else [policy_folder(spec)]
        if all(folder.is_dir() for folder in folders):
            return policy_digest(spec)
    return None


def _given(name: str, policy: Policy) -> str:
    """Returns the digest of an agent's source; for other objects, of their class and the version of their weights."""
    return str(getattr(policy, "digest", f"{name}, version {policy.version}"))


def _corpus(source: Source) -> str:
    if source.documents is not None:
        return as_corpus(source.documents).fingerprint
    if source.corpora:
        return value_digest([(name, path_digest(path)) for name, path in source.corpora])
    return path_digest(source.corpus) if source.corpus is not None and source.corpus.exists() else ""


def _index(spec: str) -> str:
    """Returns the digest of what a retriever's spec names on this disk, or of what a server reports about itself."""
    if spec in BUILT:  # built over the corpus, which has its own digest
        return ""
    kind, _, rest = spec.partition(":")
    if kind in LOADERS and (index := existing_path(rest)) is not None:
        return path_digest(index)
    if kind in ("http", "https"):
        return make_retriever(spec).info().fingerprint
    if kind in ("cassette", "rerank"):
        file, at, inner = rest.partition("@")
        # a cassette with a retriever behind it grows
        replayed = kind == "cassette" and not at and Path(file).is_file()
        return file_digest(Path(file)) if replayed else _index(inner)
    models = [digest for one in _POLICY.findall(spec) if (digest := _weights(one)) is not None]
    return value_digest([spec, *models]) if models else spec


def environment_digest(env: str) -> str:
    """Returns a digest of an environment's source: of each module that defines its class or a base class.

    Modules in the same folder whose functions and classes these use (the parts of a search environment, for example) are
    included. A module of another package stands for that whole package, because what it imports may influence a score.
    """
    cls = env_class(env)
    if is_remote(env):
        # the server's description, because the source is not available
        return value_digest(vars(cls)["card"])
    names = {name for base in cls.__mro__ for name in (base.__module__, *_neighbours(base.__module__))}
    tops = {name: name.partition(".")[0] for name in names}
    sources = {name if top == "agentenv" else top for name, top in tops.items() if top not in _STABLE_MODULES}
    return value_digest([(name, _source_digest(sys.modules.get(name))) for name in sorted(sources)])


def part_digest(entry_point: str) -> str:
    """Returns a digest of the source of an imported part ``module:name``: of its module, or of its package."""
    return _source_digest(sys.modules.get(entry_point.partition(":")[0].partition(".")[0]))


def _neighbours(name: str) -> Iterator[str]:
    """Yields the modules in the folder of an environment's module whose functions and classes it uses."""
    folder = f"{name.rpartition('.')[0]}."
    if folder.startswith("agentenv.envs.") and name in sys.modules:
        homes = (getattr(value, "__module__", None) for value in vars(sys.modules[name]).values())
        yield from (home for home in homes if isinstance(home, str) and home.startswith(folder))


def _source_digest(module: ModuleType | None) -> str:
    """Returns the digest of the Python files of a package, or of a module's file; empty without a file."""
    folders = [Path(place) for place in getattr(module, "__path__", ())]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    if not folders and (file := getattr(module, "__file__", None)):
        files = [Path(file)]
    return value_digest([(path.name, file_digest(path)) for path in files if path.is_file()])
