"""A task environment: tasks with the environment that poses them, and the retriever and corpus if it searches.

An environment declares its needs: the constructor's arguments ``tasks``, ``retriever`` and ``count_tokens`` are set if it
has them, ``make_tasks`` generates tasks, ``scorers`` score its episodes, and ``stop`` ends its actions.
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
"""The name of a training run's main environment beside further ones; it is also its table in the configuration."""
ENVIRONMENT_KEY = "environment"
"""The key in a training task's data that names its environment, in a run with several environments."""
_RECALL_AT = (2, 3, 5, 10)
_OWN_TASKS = 200
_MAKE_TASKS_TIMEOUT_S = 900.0  # time limit for generating tasks, which may include reading a data set
_COMPARED_DOCUMENTS = 256  # number of supporting documents compared with the questions' own corpus
_RUN_ARGUMENTS = {"tasks", "retriever", "count_tokens"}  # constructor arguments that a run sets itself


class EnvConfig(Frozen):
    """The environment and its own options."""

    id: str = "agentenv/LocalSearch-v0"
    """A registered id, ``module:Class`` or ``remote:URL``."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment, such as ``k`` and ``max_turns``."""


def known_retriever(spec: str) -> str:
    """Returns ``spec`` after checking that it names a known kind of retriever; nothing is opened.

    Raises:
        UnknownName: there is no such kind; the error carries the nearest name.
    """
    if spec not in BUILT:
        check_retriever(spec)
    return spec


class SearchConfig(Frozen):
    """The retriever and corpus that the environment searches."""

    retriever: str = ""
    """A spec such as ``faiss:DIR``. Empty builds a FAISS index over the corpus of the questions, ``bm25`` builds a BM25
    index, and ``hybrid`` fuses both."""
    corpus: str = ""
    """The corpus to search instead of the questions' own: a file, or the name of the set that it belongs to."""
    index: str = "Flat"
    """The kind of FAISS index to build."""
    encoder: str = "minilm"
    """The encoder of the index to build."""


@dataclass(frozen=True)
class TaskEnv:
    """Tasks, and how to make an environment that poses them."""

    source: Source
    retriever: Retriever | None
    """None if the environment does not search."""
    env: EnvConfig
    count_tokens: Callable[[str], int]

    @property
    def searched(self) -> Retriever:
        """The retriever of an environment that searches.

        Raises:
            ConfigurationError: the environment does not search.
        """
        if self.retriever is None:
            raise ConfigurationError(f"{self.env.id} searches nothing: it has no retriever")
        return self.retriever

    def make_env(self) -> Env[Any]:
        """Makes a new environment with the tasks and, if it accepts one, the retriever.

        Raises:
            UnknownName: there is no such environment, or it has no such option.
            ConfigurationError: an option has the wrong type.
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
        """Returns the same questions with another retriever or other options of the environment."""
        env = EnvConfig(id=self.env.id, options=self.env.options | options)
        return replace(self, retriever=retriever or self.retriever, env=env)


def checked_options(env: EnvConfig) -> dict[str, Any]:
    """Converts the environment's options to the types that its constructor declares.

    Raises:
        UnknownName: there is no such environment, or it has no such option; the error carries the nearest name.
        ConfigurationError: a value has the wrong type, or an option is one that a run sets itself.
    """
    for name in _RUN_ARGUMENTS & env.options.keys():
        raise ConfigurationError(f"option {name!r} of {env.id} is filled by the run; leave it out")
    return checked_arguments(env_class(env.id), env.id, env.options)


def takes(env_id: str, argument: str) -> bool:
    """Whether the environment's constructor accepts ``argument``, itself or through a base class.

    Raises:
        UnknownName: there is no such environment.
        MissingExtra: an optional dependency of the environment is not installed.
    """
    return any(parameter.name == argument for _, parameter in parameters_of(env_class(env_id)))


def defaults_of(env_id: str, names: Collection[str]) -> dict[str, Any]:
    """Returns the default values of those of ``names`` that the environment's constructor has, except None.

    Raises:
        UnknownName: there is no such environment.
        MissingExtra: an optional dependency of the environment is not installed.
    """
    defaults: dict[str, Any] = {}
    for _, parameter in parameters_of(env_class(env_id)):
        if parameter.name in names and parameter.default not in (None, parameter.empty):
            defaults.setdefault(parameter.name, parameter.default)
    return defaults


def env_id_of(cls: type[Env[Any]]) -> str:
    """Returns the registered id of an environment's class, or ``module:Class`` if there is none.

    Raises:
        ConfigurationError: it is not an environment, or cannot be imported by its name.
    """
    name = name_of_class(cls)
    return next((id for id, one in registered().items() if one.entry_point == name and not one.kwargs), name)


def open_tasks(
    source: SourceConfig, search: SearchConfig, env: EnvConfig, tasks: Sequence[Task] | None = None
) -> Source:
    """Loads or generates the tasks, or uses the given ones, and determines the corpus to search; opens no index.

    Raises:
        AgentEnvError: the tasks cannot be loaded or generated.
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
    """Loads or generates tasks and, for an environment that searches, opens the retriever.

    Args:
        source: Where the tasks come from.
        search: The retriever and corpus.
        env: The environment.
        count_tokens: Returns the length of a text in tokens of the policy.
        opened: The result of ``open_tasks``, if it was called before.
        tasks: Tasks to use instead of those of ``source``.
        retriever: A retriever to use instead of that of ``search``.
        progress: Called with the numbers of encoded passages and of all passages while an index is built.

    Raises:
        ConfigurationError: a set has no corpus and no retriever is given although the episodes search; a retriever is given
            for an environment that does not search; the environment cannot generate tasks; a simulator would see the answers
            of an evaluation; or the questions are about an invented world whose documents are not searched.
    """
    checked_options(env)  # checked before any work
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
    return TaskEnv(
        _without_missing_support(opened, retriever, own, invented=invented), retriever, env, count_tokens
    )


def refuse_without_corpus(opened: Source, search: SearchConfig, env: EnvConfig) -> None:
    """Refuses questions without passages if the environment would search these; nothing is read.

    Raises:
        ConfigurationError: there is no corpus and no retriever, and the episodes have a turn to search in.
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
    if corpus is None:  # the episodes consist of an answer only, so nothing is searched
        return NoPassages()
    return build_retriever(search.retriever, corpus, search.encoder, search.index, progress)


def _without_missing_support(source: Source, retriever: Retriever, own: Source, *, invented: bool) -> Source:
    """Returns ``source``; without ``supporting_ids`` of its tasks if these are not in the corpus that is searched.

    They are removed if none of them is in that corpus, or if the documents with these ids differ from those in the corpus of
    ``own``, the questions as loaded: recall would be meaningless, and an oracle would show unrelated documents. A note says
    so. If only some are missing, the note states their number, because recall counts them as not found.

    Raises:
        ConfigurationError: none is in the corpus, and the questions are about an ``invented`` world.
    """
    corpus: Corpus | None = getattr(retriever, "corpus", None)
    named = {one for task in source.tasks for one in task.data.get("supporting_ids", ())}
    if corpus is None or not named:
        return source
    shared = sorted(one for one in named if _contains(corpus, one))
    if shared and not _differ(corpus, corpus_of(own), shared[:_COMPARED_DOCUMENTS]):
        missing = sorted(named.difference(shared))
        said = f"{len(missing)} of the {len(named)} supporting documents that the questions name are not in the corpus"
        return (
            _with_note(source, f"{said}, such as {missing[0]!r}: recall counts them as not found.")
            if missing
            else source
        )
    tasks = (
        replace(task, data={key: value for key, value in task.data.items() if key != "supporting_ids"})
        for task in source.tasks
    )
    if invented:  # only the documents of that world contain its facts
        raise ConfigurationError(
            f"the questions of {source.split!r} are about an invented world, and the corpus that is "
            "searched does not hold its documents: name a dataset about that corpus, or leave retriever and corpus out"
        )
    left = "The supporting documents that the questions name are not those of the corpus that is searched, so recall"
    return _with_note(
        replace(source, tasks=tuple(tasks)), f"{left} and bounds with gold passages are left out."
    )


def _with_note(source: Source, note: str) -> Source:
    return replace(source, notes=f"{source.notes} {note}".strip())


def _differ(corpus: Corpus, own: Corpus | None, ids: Sequence[str]) -> bool:
    """Whether any document of ``own`` with one of ``ids`` has another title or text in ``corpus``."""
    if own is None or own.fingerprint == corpus.fingerprint:
        return False
    pairs = [(corpus[corpus.row_of(one)], own[own.row_of(one)]) for one in ids if _contains(own, one)]
    return any(ours != theirs for ours, theirs in pairs)


def _contains(corpus: Corpus, document_id: str) -> bool:
    try:
        corpus.row_of(document_id)
    except KeyError:
        return False
    return True


def _own_tasks(source: SourceConfig, env_id: str) -> Source:
    make_tasks = bind_options("tasks of", env_id, env_class(env_id).make_tasks, source.options)
    split, count = source.split or "train", _OWN_TASKS if source.limit is None else source.limit
    try:
        tasks = in_time(
            _MAKE_TASKS_TIMEOUT_S, lambda: tuple(make_tasks(count, seed=source.seed, split=split))
        )
    except AgentEnvError as error:
        if isinstance(error.__cause__, SystemExit):
            raise ConfigurationError(f"make_tasks of {env_id} failed: {error}") from error
        raise
    except Exception as error:
        raise ConfigurationError(f"make_tasks of {env_id} failed: {describe_error(error)}") from error
    return Source(env_id, split, checked_tasks(tasks, f"make_tasks of {env_id}"), None, None)


def topics_of(corpus: Corpus | None, source: SourceConfig) -> tuple[Task, ...]:
    """Returns a task without answers for every title of ``corpus``, or for ``source.limit`` of them drawn by its seed.

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
    """Returns ``opened`` with questions that rules make from its passages, if ``source`` asks for some.

    Raises:
        ConfigurationError: there are no passages of named sets, or too few; or ``data`` is a file, so that the passages of
            the other splits are unknown.
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
    """Measures what the retriever finds for the bare questions.

    Returns:
        ``recall@k``, the mean share of the supporting documents among the first k, and ``all@5``, the share of questions
        with all of them among the first 5; empty if no supporting documents are known, or if the retriever also uses the
        context of the question.
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
