"""A task environment: tasks and the environment over them, with the retriever and corpus where it searches one.

What an environment needs it declares: the constructor's arguments ``tasks``, ``retriever`` and ``count_tokens`` are filled
where they are there, ``make_tasks`` is its own source of tasks, ``scorers`` judge it and ``stop`` ends its actions.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from pydantic import Field

from agentenv.core.concurrency.threads import in_time
from agentenv.core.env import Env
from agentenv.core.env_options import checked_arguments, parameters_of
from agentenv.core.options import bind_options
from agentenv.core.protocols import Retriever
from agentenv.core.registry import describe_error, env_class, make, name_of_class, registered
from agentenv.core.task_checks import checked_tasks
from agentenv.core.types import Task
from agentenv.core.validation import Frozen
from agentenv.data.datasets import SETS, limit_yes_or_no, load_dataset, sample
from agentenv.data.sources import (
    OWN,
    WORLD,
    Source,
    SourceConfig,
    check_draw,
    held_out_passages,
    open_source,
)
from agentenv.data.synthesis.passage_questions import passage_questions
from agentenv.errors import AgentEnvError, ConfigurationError, EnvFault
from agentenv.evaluation.built_retrievers import BUILT, build_retriever, corpus_of
from agentenv.retrievers.bulk import search_all
from agentenv.retrievers.metrics import all_at_k, recall_at_k
from agentenv.retrievers.no_passages import NoPassages
from agentenv.retrievers.retriever_spec import check_retriever, make_retriever
from agentenv.retrievers.simulation.simulated import check_gold
from agentenv.retrievers.storage.corpus import Corpus

OWN_ENVIRONMENT = "env"
"""What the environment of a training run is called beside further ones, after its table in the configuration."""
ENVIRONMENT_KEY = "environment"
"""Where a training task names its environment in its data, in a run of several."""
_RECALL_AT = (2, 3, 5, 10)
_OWN_TASKS = 200
_MAKING_S = 900.0  # for an environment to make its tasks, a data set being read among them
_COMPARED = 256  # supporting documents that are compared with those of the questions' own corpus
_FILLED = {"tasks", "retriever", "count_tokens"}  # arguments of environments that a run gives itself


class EnvConfig(Frozen):
    """The environment and its own options."""

    id: str = "agentenv/LocalSearch-v0"
    """A registered id, ``module:Class`` or ``remote:URL``."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment, such as ``k`` and ``max_turns``."""


def known_retriever(spec: str) -> str:
    """``spec``, refused where it names no kind of retriever; nothing is opened.

    Raises:
        UnknownName: no such kind; carries the nearest.
    """
    if spec not in BUILT:
        check_retriever(spec)
    return spec


class SearchConfig(Frozen):
    """What the environment searches."""

    retriever: str = ""
    """A spec such as ``faiss:DIR``; empty builds a FAISS index over the corpus of the questions, ``bm25`` a BM25 index, and
    ``hybrid`` fuses both."""
    corpus: str = ""
    """Corpus searched instead of the questions' own: a file, or the name of the set that it belongs to."""
    index: str = "Flat"
    """Kind of FAISS index that is built."""
    encoder: str = "minilm"
    """Encoder of the index that is built."""


@dataclass(frozen=True)
class TaskEnv:
    """Tasks and how to make an environment that poses them."""

    source: Source
    retriever: Retriever | None
    """None where the environment searches nothing."""
    env: EnvConfig
    count_tokens: Callable[[str], int]

    @property
    def searched(self) -> Retriever:
        """The retriever that is searched.

        Raises:
            ConfigurationError: the environment searches nothing.
        """
        if self.retriever is None:
            raise ConfigurationError(f"{self.env.id} searches nothing: it has no retriever")
        return self.retriever

    def make_env(self) -> Env[Any]:
        """A fresh environment over the tasks and, where it takes one, the retriever.

        Raises:
            UnknownName: no such environment, or no such option of it.
            ConfigurationError: an option of another type.
        """
        offered = {
            "tasks": self.source.tasks,
            "retriever": self.retriever,
            "count_tokens": self.count_tokens,
        }
        taken = {name: value for name, value in offered.items() if takes(self.env.id, name)}
        try:
            return make(self.env.id, **taken, **checked_options(self.env))
        except TypeError as error:
            reason = str(error).partition(" was raised from")[0]  # Gymnasium appends all arguments
            raise EnvFault(f"{self.env.id} cannot be made: TypeError: {reason}") from error

    def varied(self, *, retriever: Retriever | None = None, **options: Any) -> "TaskEnv":
        """The same questions under another retriever or other options of the environment."""
        env = EnvConfig(id=self.env.id, options=self.env.options | options)
        return replace(self, retriever=retriever or self.retriever, env=env)


def checked_options(env: EnvConfig) -> dict[str, Any]:
    """The environment's options as the types that its constructor declares.

    Raises:
        UnknownName: no such environment, or no such option of it; carries the nearest.
        ConfigurationError: a value of another type, or of what a run fills itself.
    """
    for name in _FILLED & env.options.keys():
        raise ConfigurationError(f"option {name!r} of {env.id} is filled by the run; leave it out")
    return checked_arguments(env_class(env.id), env.id, env.options)


def takes(env_id: str, argument: str) -> bool:
    """Whether the environment's constructor has ``argument``, or hands it on to one above that has.

    Raises:
        UnknownName: no such environment.
        MissingExtra: an optional dependency of it is not installed.
    """
    return any(parameter.name == argument for _, parameter in parameters_of(env_class(env_id)))


def defaults_of(env_id: str, names: Collection[str]) -> dict[str, Any]:
    """What the environment's constructor takes for those of ``names`` that it is not given, where that is not None.

    Raises:
        UnknownName: no such environment.
        MissingExtra: an optional dependency of it is not installed.
    """
    defaults: dict[str, Any] = {}
    for _, parameter in parameters_of(env_class(env_id)):
        if parameter.name in names and parameter.default not in (None, parameter.empty):
            defaults.setdefault(parameter.name, parameter.default)
    return defaults


def env_id_of(cls: type[Env[Any]]) -> str:
    """The registered id of an environment's class, or else ``module:Class``.

    Raises:
        ConfigurationError: it is no environment, or cannot be found again by its name.
    """
    name = name_of_class(cls)
    return next((id for id, one in registered().items() if one.entry_point == name and not one.kwargs), name)


def open_tasks(
    source: SourceConfig, search: SearchConfig, env: EnvConfig, tasks: Sequence[Task] | None = None
) -> Source:
    """Loads or makes tasks, or takes those that are given, and says which corpus is searched; no index is opened.

    Raises:
        AgentEnvError: there are no such tasks.
    """
    check_draw(source)
    if tasks is not None:
        drawn = sample(checked_tasks(tasks, "tasks"), source.limit, source.seed)
        opened = Source(source.dataset, source.split or "", drawn, None, None)
    else:
        opened = _own_tasks(source, env.id) if source.dataset == OWN else open_source(source)
        opened = _with_passage_questions(opened, source)
        opened = replace(opened, tasks=limit_yes_or_no(opened.tasks, source.yes_or_no, source.seed))
    if search.corpus and takes(env.id, "retriever"):
        opened = replace(opened, documents=None, corpora=(), corpus=_corpus_file(search.corpus, source.data))
    return opened


def open_task_env(
    source: SourceConfig,
    search: SearchConfig,
    env: EnvConfig,
    count_tokens: Callable[[str], int],
    *,
    opened: Source | None = None,
    tasks: Sequence[Task] | None = None,
    retriever: Retriever | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TaskEnv:
    """Loads or makes tasks and, for an environment that searches, the retriever.

    Args:
        source: Which tasks.
        search: Which retriever.
        env: Which environment.
        count_tokens: Length of a text in tokens of the policy.
        opened: What ``open_tasks`` gave, where that was called before.
        tasks: Tasks in place of those of ``source``.
        retriever: A retriever in place of that of ``search``.
        progress: Called with passages encoded and passages in all while an index is built.

    Raises:
        ConfigurationError: a set without a corpus, no retriever given, and turns to search in; a retriever for an
            environment that searches nothing; an environment without tasks of its own; a simulator that would be told
            the answers of an evaluation; or questions about an invented world whose documents are not searched.
    """
    checked_options(env)  # before any work
    opened = opened or open_tasks(source, search, env, tasks)
    if not takes(env.id, "retriever"):
        searched = {"retriever": retriever is not None or search.retriever, "corpus": search.corpus}
        for what, given in searched.items():
            if given:
                raise ConfigurationError(f"{env.id} searches nothing: leave the {what} out")
        return TaskEnv(opened, None, env, count_tokens)
    if source.topics:
        opened = replace(opened, tasks=topics_of(corpus_of(opened), source))
    if retriever is None:
        retriever = _open_retriever(search, opened, env, progress)
    check_gold(retriever, opened.split)
    own = open_tasks(source, SearchConfig(), env, tasks) if search.corpus else opened
    invented = source.dataset == WORLD and tasks is None
    return TaskEnv(_findable(opened, retriever, own, invented=invented), retriever, env, count_tokens)


def refuse_without_corpus(opened: Source, search: SearchConfig, env: EnvConfig) -> None:
    """Refuses questions without passages where these would be searched; nothing is read for that.

    Raises:
        ConfigurationError: there is no corpus, no retriever, and a turn to search in.
    """
    built = search.retriever in BUILT and takes(env.id, "retriever") and env.options.get("max_turns") != 0
    if built and opened.documents is None and not opened.corpora and not opened.corpus:
        raise ConfigurationError(
            f"{opened.name} has no corpus of its own: give a retriever such as faiss:DIR or a corpus (--retriever or "
            "--corpus, search.retriever or search.corpus of a run), or max_turns=0 to ask without a search"
        )


def _open_retriever(
    search: SearchConfig, opened: Source, env: EnvConfig, progress: Callable[[int, int], None] | None
) -> Retriever:
    if search.retriever not in BUILT:
        return make_retriever(search.retriever)
    refuse_without_corpus(opened, search, env)
    corpus = corpus_of(opened)
    if corpus is None:  # only an answer is taken: nothing is searched
        return NoPassages()
    return build_retriever(search.retriever, corpus, search.encoder, search.index, progress)


def _findable(source: Source, retriever: Retriever, own: Source, *, invented: bool) -> Source:
    """``source``, its tasks without ``supporting_ids`` where they are not those of the corpus that is searched.

    Not one of them is there, or what is there under the same id is another document than in the corpus of ``own``, the
    questions as they were loaded: a recall would say nothing about the search, and an oracle would show documents of others.
    A note says so, and also how many are missing where some are there: a recall counts those as not found.

    Raises:
        ConfigurationError: not one is there, and the questions are about an ``invented`` world.
    """
    corpus: Corpus | None = getattr(retriever, "corpus", None)
    named = {one for task in source.tasks for one in task.data.get("supporting_ids", ())}
    if corpus is None or not named:
        return source
    shared = sorted(one for one in named if _holds(corpus, one))
    if shared and not _differ(corpus, corpus_of(own), shared[:_COMPARED]):
        missing = sorted(named.difference(shared))
        said = f"{len(missing)} of the {len(named)} supporting documents that the questions name are not in the corpus"
        return (
            _noted(source, f"{said}, such as {missing[0]!r}: recall counts them as not found.")
            if missing
            else source
        )
    tasks = (
        replace(task, data={key: value for key, value in task.data.items() if key != "supporting_ids"})
        for task in source.tasks
    )
    if invented:  # nobody states such facts but the world itself
        raise ConfigurationError(
            f"the questions of {source.split!r} are about an invented world, and the corpus that is "
            "searched does not hold its documents: name a dataset about that corpus, or leave retriever and corpus out"
        )
    left = "The supporting documents that the questions name are not those of the corpus that is searched, so recall"
    return _noted(replace(source, tasks=tuple(tasks)), f"{left} and bounds with gold passages are left out.")


def _noted(source: Source, note: str) -> Source:
    return replace(source, notes=f"{source.notes} {note}".strip())


def _differ(corpus: Corpus, own: Corpus | None, ids: Sequence[str]) -> bool:
    """Whether a document of ``own`` is another one in ``corpus``, title and text."""
    if own is None or own.fingerprint == corpus.fingerprint:
        return False
    pairs = [(corpus[corpus.row_of(one)], own[own.row_of(one)]) for one in ids if _holds(own, one)]
    return any(ours != theirs for ours, theirs in pairs)


def _holds(corpus: Corpus, document_id: str) -> bool:
    try:
        corpus.row_of(document_id)
    except KeyError:
        return False
    return True


def _own_tasks(source: SourceConfig, env_id: str) -> Source:
    make_tasks = bind_options("tasks of", env_id, env_class(env_id).make_tasks, source.options)
    split, count = source.split or "train", _OWN_TASKS if source.limit is None else source.limit
    try:
        tasks = in_time(_MAKING_S, lambda: tuple(make_tasks(count, seed=source.seed, split=split)))
    except AgentEnvError as error:
        if isinstance(error.__cause__, SystemExit):
            raise ConfigurationError(f"make_tasks of {env_id} failed: {error}") from error
        raise
    except Exception as error:
        raise ConfigurationError(f"make_tasks of {env_id} failed: {describe_error(error)}") from error
    return Source(env_id, split, checked_tasks(tasks, f"make_tasks of {env_id}"), None, None)


def topics_of(corpus: Corpus | None, source: SourceConfig) -> tuple[Task, ...]:
    """A task without answers for every title of ``corpus``, or for ``source.limit`` of them drawn by its seed.

    Raises:
        ConfigurationError: there is no corpus.
    """
    if corpus is None:
        raise ConfigurationError("topics are titles of a corpus; name one with search.corpus")
    titles = list(dict.fromkeys(document.title for document in corpus))
    if source.limit is not None and source.limit < len(titles):
        titles = Random(source.seed).sample(titles, source.limit)
    return tuple(Task(f"topic-{number}", title, (), "train") for number, title in enumerate(titles))


def _with_passage_questions(opened: Source, source: SourceConfig) -> Source:
    """``opened`` with the questions that rules make of its passages, where ``source`` asks for some.

    Raises:
        ConfigurationError: there are no passages of named sets, or too few; or ``data`` is a file, so that the passages of
            the other splits are not known.
    """
    if not source.passage_questions:
        return opened
    corpus = None if source.dataset in (OWN, WORLD) else corpus_of(opened)
    if corpus is None:
        raise ConfigurationError("passage_questions needs a named set or a file of questions with a corpus")
    held = set(held_out_passages(opened, source))
    titles = {document.title for document in corpus if document.id in held}
    taken = {task.id for task in opened.tasks}
    made = passage_questions(corpus, source.passage_questions, source.seed, titles, taken)
    return replace(opened, tasks=(*opened.tasks, *(replace(task, split=opened.split) for task in made)))


def _corpus_file(corpus: str, data: Path | None) -> Path:
    if corpus not in SETS:
        return Path(corpus)
    found = load_dataset(corpus, data).corpus
    if found is None:
        raise ConfigurationError(f"{corpus} has no corpus that could be searched; name another set or a file")
    return found


def index_recall(task_env: TaskEnv) -> dict[str, float]:
    """What the retriever itself finds, asked the bare questions.

    Returns:
        ``recall@k``, the mean share of the supporting documents among the first k, and ``all@5``, the share of questions
        with every one of them among the first 5; empty where no supporting documents are known, or where the retriever
        answers by more than the question.
    """
    known = [task for task in task_env.source.tasks if task.data.get("supporting_ids")]
    if not known or task_env.retriever is None or task_env.retriever.info().contextual:
        return {}
    found = search_all(task_env.retriever, [task.question for task in known], max(_RECALL_AT))
    ranked = [[passage.id for passage in passages] for passages in found]
    gold = [task.data["supporting_ids"] for task in known]
    return {f"recall@{k}": recall_at_k(ranked, gold, k) for k in _RECALL_AT} | {
        "all@5": all_at_k(ranked, gold, 5)
    }
