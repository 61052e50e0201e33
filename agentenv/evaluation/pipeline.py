"""The common parts of every evaluation, of a command or within training: playing episodes and bounds, and the summary."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from agentenv.core.conversation import ConversationFormat
from agentenv.core.types import Task
from agentenv.errors import PolicyFault
from agentenv.evaluation.bounds import (
    bound_of,
    measure_expert,
    measure_or_note,
    reason_of_failure,
    recall_or_none,
    variants,
)
from agentenv.evaluation.built_retrievers import corpus_of
from agentenv.evaluation.diagnosis import MAX_COVERED_DOCUMENTS, coverage
from agentenv.evaluation.endpoint_usage import EndpointUsage, announcement
from agentenv.evaluation.eval_agent import EvalAgent, Progress, play_missing
from agentenv.evaluation.journal import Journal
from agentenv.evaluation.records import EPISODES, EpisodeRecord
from agentenv.evaluation.results import score_of, summarize
from agentenv.evaluation.task_env import TaskEnv
from agentenv.policies.openai import OpenAIPolicy
from agentenv.progress import Display


def play_evaluation(
    agent: EvalAgent,
    task_env: TaskEnv,
    out: Path,
    display: Display,
    *,
    title: str,
    scorer: str,
    seed: int,
    bounded: bool,
    retry_faults: bool = False,
    usage: EndpointUsage | None = None,
) -> tuple[list[EpisodeRecord], dict[str, Any]]:
    """Plays the missing episodes of every question and of the bounds; each resumes at the end of its journal in ``out``.

    Args:
        agent: The agent that answers.
        task_env: Questions, retriever and environment.
        out: The folder of the evaluation.
        display: Shows the progress.
        title: The name of the work in the display.
        scorer: The main scorer, which also scores the bounds.
        seed: The seed of the episodes.
        bounded: Whether the questions are played again without search, with gold passages and by the expert.
        retry_faults: Whether episodes that ended by an infrastructure failure are played again.
        usage: The usage of the policy's endpoint, if it has one.

    Raises:
        ConfigurationError: a journal was changed by another program.
        Fault: all episodes fail; finished episodes are kept.
    """
    tasks = task_env.source.tasks
    sides = {"run": (task_env, agent)}
    bounds: dict[str, Any] = {}
    native = isinstance(agent.chat, ConversationFormat)
    held = variants(task_env, agent.policy, native=native) if bounded and agent.policy else {}
    for name, variant in held.items():
        if isinstance(variant, str):
            bounds[name] = {"note": variant}
        else:
            sides[name] = variant[0], replace(agent, policy=variant[1], token_ids=False)
    journals = _open_journals(out, sides, retry_faults=retry_faults)
    if isinstance(agent.policy, OpenAIPolicy):
        missing = {name: (sides[name][0], len(tasks) - len(journal)) for name, journal in journals.items()}
        display.note(announcement(agent.policy.client.endpoint.model, missing, bounds=bounded))
    play = partial(play_missing, seed=seed, directory=out, progress=_progress(display, usage))
    running = _RunningMetrics(scorer, searched=task_env.retriever is not None)
    display.phase(title, len(tasks))
    records = play(agent, task_env, journals.pop("run"), phase="run", metrics=running)
    for name, journal in journals.items():
        display.phase(f"{title}, bound {name}", len(tasks))
        its_env, its_agent = sides[name]
        bounds[name] = _bound(partial(play, its_agent, its_env, journal, phase=name), agent, scorer)
    if bounded:
        display.phase(f"{title}, bound expert", len(tasks))
        advance = display.advance
        bounds["expert"] = measure_expert(
            task_env, agent.config, scorer, seed=seed, progress=lambda done: advance(done, {})
        )
    return records, bounds


def _open_journals(out: Path, names: Iterable[str], *, retry_faults: bool) -> dict[str, Journal]:
    """Opens the journal of the run and that of each bound, by name."""
    again = (lambda record: not record["valid"]) if retry_faults else (lambda record: False)
    paths = {name: out / "bounds" / f"{name}.jsonl" for name in names} | {"run": out / EPISODES}
    return {name: Journal(path, again) for name, path in paths.items()}


def _bound(play: Callable[[], list[EpisodeRecord]], agent: EvalAgent, scorer: str) -> dict[str, Any]:
    """Plays a bound; returns its score or a note why it failed, because a failed bound must not discard the run.

    Raises:
        PolicyFault: the service of the policy failed. Running the same command later resumes the evaluation.
        OSError: the episodes cannot be written; running the same command later resumes it, too.
    """
    try:
        records = play()
    except OSError:
        raise
    except PolicyFault as error:
        if not agent.config.deterministic:
            raise
        return {"note": str(error)}
    except Exception as error:
        return {"note": reason_of_failure(error)}
    return measure_or_note(lambda: bound_of(records, scorer))


def _progress(display: Display, usage: EndpointUsage | None) -> Progress:
    """Shows the progress and, for an endpoint, the usage so far, which is also saved each time."""
    if usage is None:
        return display.advance

    def progress(done: int, metrics: dict[str, Any]) -> None:
        used = usage.save()
        display.advance(done, metrics | {name: used[name] for name in ("requests", "cost") if used[name]})

    return progress


class _RunningMetrics:
    """The running metrics in the display; after a resume, only of the episodes of this process."""

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


def summarize_evaluation(
    agent: EvalAgent,
    task_env: TaskEnv,
    records: Sequence[EpisodeRecord],
    bounds: Mapping[str, Any],
    *,
    policy: str,
    scorers: Sequence[str],
    seed: int,
    settings: Mapping[str, Any],
    note: Callable[[str], None],
    retriever: str = "",
) -> dict[str, Any]:
    """Computes the content of ``results.json``.

    Args:
        agent: The agent that answered.
        task_env: Questions, retriever and environment.
        records: One record for each question.
        bounds: The bounds of the score.
        policy: The name of the agent.
        scorers: The names of the scorers; the first is the main one.
        seed: The seed of the episodes.
        settings: Further settings that influence the numbers.
        note: Called with a sentence for everything that could not be measured.
        retriever: The spec of the retriever; empty uses its own name.
    """
    info = None if task_env.retriever is None else task_env.retriever.info()
    options = task_env.env.options
    searched = (
        {} if info is None else {"documents": info.documents, "retriever_fingerprint": info.fingerprint}
    )
    decided = {
        "env": task_env.env.id,
        **settings,
        "questions_fingerprint": _hash_of(task_env.source.tasks),
        "max_turns": options.get("max_turns"),
        "decoding": f"temperature {temperature:g}" if (temperature := agent.config.temperature) else "greedy",
        **({"concurrency": agent.batch} if agent.config.deterministic else {}),
        "notes": task_env.source.notes,
    }
    summary = summarize(
        records,
        scorers,
        dataset=task_env.source.name,
        split=task_env.source.split,
        policy=policy,
        retriever=None if info is None else retriever or info.name,
        k=int(options.get("k", 3)),
        seed=seed,
        bounds=bounds,
        token_unit=agent.token_unit,
        settings=searched | decided | agent.record_settings,
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


def _hash_of(tasks: Sequence[Task]) -> str:
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(repr((task.id, task.question, task.answers)).encode())
    return digest.hexdigest()[:16]
