"""One benchmark: a policy, a question set, a retriever, and the folder with what came out.

The folder fills as episodes finish (see `agentenv.evaluation.journal`) and is complete when ``results.json`` is there. The
same benchmark on the same folder goes on where it stopped; the files are those of a run that was never stopped, but for
``timings.jsonl``.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from agentenv.core.concurrency.signals import Interrupted
from agentenv.core.protocols import Policy
from agentenv.core.registry import env_class
from agentenv.core.types import Task
from agentenv.data.sources import OWN, PROGRAM_SETS, Source, SourceConfig, check_source
from agentenv.errors import AgentEnvError, ConfigurationError, PolicyFault
from agentenv.evaluation.bounds import (
    bound_of,
    measure_expert,
    measure_or_note,
    reason_of_failure,
    recall_or_none,
    variants,
)
from agentenv.evaluation.checksums import verify
from agentenv.evaluation.contents import content_digests
from agentenv.evaluation.diagnosis import MAX_COVERED_DOCUMENTS, coverage
from agentenv.evaluation.endpoint_usage import EndpointUsage, announcement
from agentenv.evaluation.eval_agent import (
    EXPERT,
    EvalAgent,
    Progress,
    open_eval_agent,
    play_missing,
    player_of,
)
from agentenv.evaluation.journal import CONFIG, CONTENTS, Journal, lock_folder, release
from agentenv.evaluation.records import EPISODES, RESULTS, EpisodeRecord, read_json, write_results
from agentenv.evaluation.report.report import PAGE, write_report
from agentenv.evaluation.results import measure_of, score_of, summarize
from agentenv.evaluation.task_env import (
    EnvConfig,
    SearchConfig,
    TaskEnv,
    corpus_of,
    known_retriever,
    open_task_env,
    open_tasks,
    takes,
)
from agentenv.policies.agent import AGENT
from agentenv.policies.card import EpisodeCard
from agentenv.policies.openai import OpenAIPolicy
from agentenv.policies.policy_spec import check_policy, is_endpoint, is_engine
from agentenv.progress import Display

SEARCH, CODE = EnvConfig().id, "agentenv/Code-v0"
_SCORERS = ("em_squad", "f1_squad", "em_cover")


@dataclass(frozen=True)
class Benchmark:
    """What is evaluated on what; the fields are those of ``agentenv eval``.

    An environment that is not named is that of the set, a set that is not named is the environment's own tasks, and scorers
    that are not named are those of the environment.
    """

    dataset: str
    policy: str
    scorers: tuple[str, ...] = ()
    env: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Path | None = None
    split: str | None = None
    retriever: str = ""
    corpus: str = ""
    limit: int | None = None
    seed: int = 0
    k: int | None = None
    max_turns: int | None = None
    bounds: bool | None = None
    """None plays them unless the policy is behind an endpoint, where every request may cost money."""
    concurrency: int = 64

    def __post_init__(self) -> None:
        if not (self.dataset or self.env):
            raise ConfigurationError("name a question set, or an environment that makes its own tasks")
        object.__setattr__(self, "dataset", self.dataset or OWN)
        if self.bounds is None:
            object.__setattr__(self, "bounds", not is_endpoint(self.policy))
        env = self.env or (CODE if self.dataset in PROGRAM_SETS else SEARCH)
        object.__setattr__(self, "env", env)
        own = _SCORERS if takes(env, "retriever") else env_class(env).scorers
        object.__setattr__(self, "scorers", self.scorers or own)


def check_names(benchmark: Benchmark, policy: Policy | None = None) -> None:
    """Refuses names that stand for nothing before any work, that of other benchmarks of a suite included.

    Args:
        benchmark: what to evaluate.
        policy: who answers, where that is no spec.

    Raises:
        UnknownName: no such set, split, scorer, retriever or policy; carries the nearest.
        ConfigurationError: a policy or a corpus that is not there.
    """
    check_source(benchmark.dataset, benchmark.split, benchmark.data)
    for scorer in benchmark.scorers:
        measure_of(scorer)
    known_retriever(benchmark.retriever)
    if policy is None:
        check_policy(benchmark.policy)


def run_benchmark(
    benchmark: Benchmark,
    out: Path,
    display: Display,
    *,
    policy: Policy | None = None,
    retry_faults: bool = False,
) -> dict[str, Any]:
    """Answers every question once, greedily, and writes ``results.json``, ``episodes.jsonl`` and ``report.html``.

    What ``out`` already holds of the same benchmark is not played again.

    Args:
        benchmark: what to evaluate.
        out: its folder.
        display: who is told how far the work is.
        policy: who answers, where that is no spec; ``benchmark.policy`` is its name then.
        retry_faults: whether episodes that met an infrastructure failure are played again.

    Returns:
        The content of ``results.json``.

    Raises:
        AgentEnvError: an unknown name, unreadable questions, a policy that cannot be loaded.
        ConfigurationError: ``out`` holds another evaluation.
        Fault: everything fails; what was finished is kept.
        Interrupted: SIGINT or SIGTERM came; what was finished is kept.
    """
    check_names(benchmark, policy)
    lock_folder(out, {"benchmark": _identity(benchmark)})
    display.phase("questions and index", 0)
    source, search = _sources(benchmark)
    opened = open_tasks(source, search, EnvConfig(id=benchmark.env))
    contents = content_digests(opened, search, benchmark.env, benchmark.policy, policy)
    lock_folder(out, {"benchmark": _identity(benchmark), CONTENTS: contents})
    if (out / RESULTS).is_file() and not (retry_faults and read_json(out / RESULTS)["faults"]):
        return _finished(out)
    fresh = not (out / CONFIG).is_file()
    try:
        with _player(benchmark, policy) as agent:
            task_env = _open(benchmark, opened, agent, display)
            return _play_episodes(benchmark, contents, agent, task_env, out, display, retry_faults)
    except Interrupted as error:
        said = f"; what was finished is kept in {out}: the same command goes on from there"
        raise Interrupted(error.signal, said) from error
    except (AgentEnvError, OSError):
        if fresh:
            release(out)
        raise


@contextmanager
def _player(benchmark: Benchmark, policy: Policy | None) -> Iterator[EvalAgent]:
    """Who answers; what was opened for that is closed again."""
    stop = env_class(benchmark.env).stop
    if policy is not None:
        yield player_of(policy, benchmark.policy, benchmark.concurrency, stop)
        return
    with closing(open_eval_agent(benchmark.policy, benchmark.concurrency, stop)) as agent:
        yield agent


def _finished(out: Path) -> dict[str, Any]:
    """The results that stand in ``out``, whose episodes must be those that they were computed from."""
    for path in (out / EPISODES, *sorted((out / "bounds").glob("*.jsonl"))):
        verify(path)
    if not (out / PAGE).is_file():
        write_report(out)
    return read_json(out / RESULTS)


def _play_episodes(
    benchmark: Benchmark,
    contents: Mapping[str, str],
    agent: EvalAgent,
    task_env: TaskEnv,
    out: Path,
    display: Display,
    retry_faults: bool,
) -> dict[str, Any]:
    opened = {"retriever": "" if task_env.retriever is None else task_env.retriever.info().fingerprint}
    lock_folder(out, {"benchmark": _identity(benchmark), CONTENTS: contents, "opened": opened}, write=True)
    (out / RESULTS).unlink(missing_ok=True)
    usage = EndpointUsage(agent.policy, out) if isinstance(agent.policy, OpenAIPolicy) else None
    records, bounds = _play(benchmark, agent, task_env, out, display, retry_faults, usage)
    results = _summary(benchmark, agent, task_env, records, bounds, display.note)
    if usage is not None:
        results["usage"] = usage.save()
        if results["faults"] and isinstance(agent.policy, OpenAIPolicy) and agent.policy.client.spent:
            results["incomplete"] = agent.policy.client.spent
    write_results(out, results)
    write_report(out)
    return results


def _sources(benchmark: Benchmark) -> tuple[SourceConfig, SearchConfig]:
    source = SourceConfig(
        dataset=benchmark.dataset,
        data=benchmark.data,
        split=benchmark.split or ("test" if benchmark.dataset == OWN else None),
        limit=benchmark.limit,
        seed=benchmark.seed,
        options={name: value for name, value in benchmark.options.items() if name == "executor"}
        if benchmark.dataset in PROGRAM_SETS
        else {},
    )
    return source, SearchConfig(retriever=benchmark.retriever, corpus=benchmark.corpus)


def _open(benchmark: Benchmark, opened: Source, agent: EvalAgent, display: Display) -> TaskEnv:
    source, search = _sources(benchmark)
    return open_task_env(
        source,
        search,
        EnvConfig(id=benchmark.env, options=_options(benchmark, agent.card)),
        agent.count,
        opened=opened,
        progress=_indexing(display),
    )


def _indexing(display: Display) -> Callable[[int, int], None]:
    """Shows the passages that are encoded as a phase of their own, whose length is known once the first are."""
    total = 0

    def progress(done: int, passages: int) -> None:
        nonlocal total
        if total != passages:
            total = passages
            display.phase("index", total)
        display.advance(done, {})

    return progress


def _options(benchmark: Benchmark, card: EpisodeCard) -> dict[str, Any]:
    """Arguments of the environment: what is asked for, otherwise what stands on the policy's card."""
    asked = {"k": benchmark.k, "max_turns": benchmark.max_turns}
    options = {name: value for name, value in asked.items() if value is not None} | dict(benchmark.options)
    if card.env != benchmark.env and not takes(benchmark.env, "retriever"):
        return options
    known: dict[str, Any] = {
        "observation_tokens": card.observation_tokens,
        "k": card.k,
        "max_turns": card.max_turns,
    }
    if card.prompt:
        known["prompt"] = card.prompt
    return {name: value for name, value in known.items() if takes(benchmark.env, name)} | options


def _play(
    benchmark: Benchmark,
    agent: EvalAgent,
    task_env: TaskEnv,
    out: Path,
    display: Display,
    retry_faults: bool,
    usage: EndpointUsage | None,
) -> tuple[list[EpisodeRecord], dict[str, Any]]:
    """The run proper and its bounds, each from where its journal ends."""
    tasks, scorer = task_env.source.tasks, benchmark.scorers[0]
    again = (lambda record: not record["valid"]) if retry_faults else (lambda record: False)
    bounded = bool(benchmark.bounds) and benchmark.policy != EXPERT
    found = variants(task_env, agent.policy) if bounded and agent.policy is not None else {}
    bounds: dict[str, Any] = {name: {"note": said} for name, said in found.items() if isinstance(said, str)}
    sides = {"run": (task_env, agent)} | {
        name: (one[0], replace(agent, policy=one[1]))
        for name, one in found.items()
        if not isinstance(one, str)
    }
    paths = {name: out / "bounds" / f"{name}.jsonl" for name in sides} | {"run": out / EPISODES}
    journals = {name: Journal(path, again) for name, path in paths.items()}
    if isinstance(agent.policy, OpenAIPolicy):
        missing = {name: (sides[name][0], len(tasks) - len(journal)) for name, journal in journals.items()}
        display.note(announcement(agent.policy.client.endpoint.model, missing, bounds=bounded))
    play = partial(play_missing, seed=benchmark.seed, directory=out, progress=_progress(display, usage))
    running = _RunningMetrics(scorer, searched=task_env.retriever is not None)
    display.phase(benchmark.dataset, len(tasks))
    records = play(agent, task_env, journals.pop("run"), phase="run", metrics=running)
    for name, journal in journals.items():
        display.phase(f"{benchmark.dataset}, bound {name}", len(tasks))
        its_ground, its_player = sides[name]
        bounds[name] = _bound(partial(play, its_player, its_ground, journal, phase=name), agent, scorer)
    if bounded:
        display.phase(f"{benchmark.dataset}, bound expert", len(tasks))
        bounds["expert"] = measure_expert(
            task_env,
            agent.config,
            scorer,
            seed=benchmark.seed,
            progress=lambda done: display.advance(done, {}),
        )
    return records, bounds


def _bound(play: Callable[[], list[EpisodeRecord]], agent: EvalAgent, scorer: str) -> dict[str, Any]:
    """A bound, or why there is none: the run itself is played, and worth more than that.

    Raises:
        PolicyFault: the service that the policy is asked from failed; the same command goes on when it is there again.
        OSError: the episodes cannot be written; likewise.
    """
    try:
        records = play()
    except OSError:
        raise
    except PolicyFault as error:
        if not agent.deterministic:
            raise
        return {"note": str(error)}
    except Exception as error:
        return {"note": reason_of_failure(error)}
    return measure_or_note(lambda: bound_of(records, scorer))


def _progress(display: Display, usage: EndpointUsage | None) -> Progress:
    """Shows how far the work is; of an endpoint also what has been spent, which is written down each time."""
    if usage is None:
        return display.advance

    def progress(done: int, metrics: dict[str, Any]) -> None:
        used = usage.save()
        display.advance(done, metrics | {name: used[name] for name in ("requests", "cost") if used[name]})

    return progress


class _RunningMetrics:
    """The metrics that matter while episodes come in; of this process's share where a run was resumed."""

    def __init__(self, scorer: str, *, searched: bool) -> None:
        self._scorer = scorer
        self._searched = searched
        self._values: list[float] = []
        self._searches: list[int] = []
        self._faults = 0

    def __call__(self, records: Sequence[EpisodeRecord]) -> dict[str, Any]:
        valid = [record for record in records if record["valid"]]
        self._values += [score_of(record, self._scorer) for record in valid]
        self._searches += [record["searches"] for record in valid if record["searches"] is not None]
        self._faults += len(records) - len(valid)
        if not self._values:
            return {"faults": self._faults}
        searches = {"searches": fmean(self._searches)} if self._searched and self._searches else {}
        return {"score": fmean(self._values)} | searches | {"faults": self._faults}


def _summary(
    benchmark: Benchmark,
    agent: EvalAgent,
    task_env: TaskEnv,
    records: Sequence[EpisodeRecord],
    bounds: dict[str, Any],
    note: Callable[[str], None],
) -> dict[str, Any]:
    info = None if task_env.retriever is None else task_env.retriever.info()
    options = task_env.env.options
    searched = (
        {} if info is None else {"documents": info.documents, "retriever_fingerprint": info.fingerprint}
    )
    summary = summarize(
        records,
        benchmark.scorers,
        dataset=task_env.source.name,
        split=task_env.source.split,
        policy=benchmark.policy,
        retriever=None if info is None else benchmark.retriever or info.name,
        k=int(options.get("k", 3)),
        seed=benchmark.seed,
        bounds=bounds,
        token_unit=agent.token_unit,
        settings=searched
        | {
            "env": benchmark.env,
            "options": dict(benchmark.options),
            "questions_fingerprint": _hash_of(task_env.source.tasks),
            "max_turns": options.get("max_turns"),
            "decoding": "greedy",
            **({"concurrency": agent.batch} if agent.deterministic else {}),
            "notes": task_env.source.notes,
        },
    )
    return summary | {
        "index_recall": recall_or_none(task_env, note),
        "answer_in_corpus": {"share": None, "n": 0} | measure_or_note(lambda: _coverage(task_env)),
    }


def _coverage(task_env: TaskEnv) -> dict[str, Any]:
    if task_env.retriever is None:
        return {"share": None, "n": 0, "note": "the environment searches nothing"}
    corpus = getattr(task_env.retriever, "corpus", None) or corpus_of(task_env.source)
    if corpus is None:
        return {"share": None, "n": 0, "note": "the retriever's passages cannot be read here"}
    if len(corpus) > MAX_COVERED_DOCUMENTS:
        return {"share": None, "n": 0, "note": f"not looked up in {len(corpus)} passages"}
    return coverage(task_env.source.tasks, (f"{document.title} {document.text}" for document in corpus))


def _identity(benchmark: Benchmark) -> dict[str, Any]:
    """What has to be the same for a run to go on; episodes at an endpoint do not know how many run beside them."""
    fields = asdict(benchmark)
    by_arrival = (
        is_endpoint(benchmark.policy) or is_engine(benchmark.policy) or benchmark.policy.startswith(AGENT)
    )
    return fields | {"concurrency": None} if by_arrival else fields


def _hash_of(tasks: Sequence[Task]) -> str:
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(repr((task.id, task.question, task.answers)).encode())
    return digest.hexdigest()[:16]
