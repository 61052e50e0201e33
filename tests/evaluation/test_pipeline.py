"""What an evaluation shows while it runs, what becomes of a bound that fails, and what stands in its results."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import RolloutConfig
from agentenv.core.types import Document, RetrieverInfo, Task
from agentenv.data.sources import Source
from agentenv.envs.search.local_search import STOP
from agentenv.errors import ConfigurationError, PolicyFault
from agentenv.evaluation import pipeline
from agentenv.evaluation.endpoint_usage import EndpointUsage
from agentenv.evaluation.eval_agent import EvalAgent, open_eval_agent
from agentenv.evaluation.pipeline import play_evaluation, summarize_evaluation
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.task_env import EnvConfig, TaskEnv
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.progress import SilentDisplay
from agentenv.retrievers.fakes import InMemoryRetriever

Maker = Callable[..., EpisodeRecord]

DOCUMENTS = [Document("d0", "Velandra", "It was founded by Oda Kest."), Document("d1", "Mirwick", "A port.")]
TASKS = tuple(
    Task(
        f"q{i}",
        f"Who founded {town}?",
        (founder,),
        data={"supporting_ids": [f"d{i}"], "path": ({"query": town},)},
    )
    for i, (town, founder) in enumerate((("Velandra", "Oda Kest"), ("Mirwick", "Tor Eth")))
)


class Unlisted:
    """A retriever whose passages cannot be read here."""

    async def search(self, queries: Any, k: int) -> Any:
        return [[] for _ in queries]

    def info(self) -> RetrieverInfo:
        return RetrieverInfo("far", 7, "print")


def field(retriever: Any = None, documents: Any = DOCUMENTS, **options: Any) -> TaskEnv:
    source = Source("towns", "dev", TASKS, documents, None, notes="one note")
    given = InMemoryRetriever(DOCUMENTS) if retriever is None else retriever
    return TaskEnv(source, given, EnvConfig(options={"max_turns": 2} | options), len)


def agent(scripts: dict[str, list[str]], *, deterministic: bool = True, batch: int = 5) -> EvalAgent:
    policy = ScriptedPolicy(scripts)
    config = RolloutConfig(
        context_tokens=1 << 16, turn_tokens=1 << 10, temperature=0.0, stop=STOP, deterministic=deterministic
    )
    return EvalAgent(policy, policy.tokenizer, InlineFormat(policy.tokenizer), config, batch)


class Shown(SilentDisplay):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int]] = []
        self.told: list[tuple[int, dict[str, Any]]] = []

    def phase(self, name: str, total: int) -> None:
        self.phases.append((name, total))

    def advance(self, done: int, metrics: dict[str, Any]) -> None:
        self.told.append((done, metrics))


def test_the_run_and_every_bound_are_phases_that_are_shown_with_their_metrics(tmp_path: Path) -> None:
    """The run gets one of two right by a search, closed book both; the bounds with searches know nothing."""
    scripts = {
        "run-0-0": ["<search>Velandra</search>", "<answer>Oda Kest</answer>"],
        "run-0-1": ["<answer>nobody</answer>"],
        "closed_book-0-0": ["<answer>Oda Kest</answer>"],
        "closed_book-0-1": ["<answer>Tor Eth</answer>"],
    }
    for bound in ("oracle", "oracle_paged"):
        scripts |= {f"{bound}-0-{i}": ["<answer>nobody</answer>"] for i in range(2)}
    display = Shown()
    records, bounds = play_evaluation(
        agent(scripts), field(), tmp_path, display, title="towns", scorer="em_squad", seed=0, bounded=True
    )
    assert [record["prediction"] for record in records] == ["Oda Kest", "nobody"]
    assert display.phases == [
        ("towns", 2),
        ("towns, bound closed_book", 2),
        ("towns, bound oracle", 2),
        ("towns, bound oracle_paged", 2),
        ("towns, bound expert", 2),
    ]
    run: dict[str, Any] = {"score": 0.5, "searches": 0.5, "faults": 0}
    assert display.told == [(0, {}), (2, run), *[(0, {}), (2, {})] * 3, (2, {})]
    assert {name: bound["mean"] for name, bound in bounds.items()} == {
        "closed_book": 1.0,
        "oracle": 0.0,
        "oracle_paged": 0.0,
        "expert": 1.0,  # its searches find the supporting documents of both
    }
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.jsonl")}
    assert files == {"episodes.jsonl", "timings.jsonl"} | {
        f"bounds/{name}.jsonl" for name in ("closed_book", "oracle", "oracle_paged")
    }


def test_failures_are_played_again_where_that_is_asked_for(tmp_path: Path) -> None:
    right, wrong = ["<answer>Oda Kest</answer>"], ["<answer>nobody</answer>"]
    options: dict[str, Any] = {"title": "t", "scorer": "em_squad", "seed": 0, "bounded": False}
    first = {"run-0-0": right}  # the second has no script: the policy fails
    for scripts, again, found in (
        (first, False, [True, False]),
        ({"run-0-0": wrong, "run-0-1": right}, False, [True, False]),
        ({"run-0-0": wrong, "run-0-1": right}, True, [True, True]),
    ):
        asked: dict[str, Any] = {"retry_faults": True} if again else {}  # who does not ask keeps what failed
        records, bounds = play_evaluation(agent(scripts), field(), tmp_path, Shown(), **asked, **options)
        assert [record["valid"] for record in records] == found
        assert bounds == {}
    assert [record["prediction"] for record in records] == ["Oda Kest"] * 2  # what was valid stays


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_bound_whose_policy_fails_is_a_note_unless_it_can_go_on_later(deterministic: bool) -> None:
    def failing() -> list[EpisodeRecord]:
        raise PolicyFault("the service is away")

    who = agent({}, deterministic=deterministic)
    if deterministic:
        assert pipeline._bound(failing, who, "em_squad") == {"note": "the service is away"}
    else:
        with pytest.raises(PolicyFault, match="the service is away"):
            pipeline._bound(failing, who, "em_squad")


def test_a_bound_that_cannot_be_written_ends_the_evaluation_and_another_failure_does_not() -> None:
    def full() -> list[EpisodeRecord]:
        raise OSError("no space")

    def broken() -> list[EpisodeRecord]:
        raise KeyError("gold")

    with pytest.raises(OSError, match="no space"):
        pipeline._bound(full, agent({}), "em_squad")
    assert pipeline._bound(broken, agent({}), "em_squad") == {"note": "KeyError: 'gold'"}


def test_a_bound_is_the_score_of_its_valid_episodes(record: Maker) -> None:
    rows = [record("a"), record("b", "Rome"), record("c", valid=False)]
    found = pipeline._bound(lambda: rows, agent({}), "em_squad")
    assert (found["mean"], found["n"]) == (0.5, 2)
    lost = pipeline._bound(lambda: rows[2:], agent({}), "em_squad")
    assert set(lost) == {"note"}
    assert "1 episodes" in lost["note"]


def test_an_announcement_counts_the_questions_that_are_still_to_be_asked(tmp_path: Path) -> None:
    class Noted(Shown):
        def note(self, text: str) -> None:
            notes.append(text)

    notes: list[str] = []
    options: dict[str, Any] = {"title": "t", "scorer": "em_squad", "seed": 0, "bounded": False}
    with FakeEndpoint(lambda body: Answer("<answer>Oda Kest</answer>")) as server:
        for asked in (1, 2):
            few = field()
            few = replace(few, source=replace(few.source, tasks=TASKS[:asked]))
            who = open_eval_agent(f"openai:any@{server.url}", 2, STOP)
            records, _ = play_evaluation(who, few, tmp_path, Noted(), **options)
        assert len(server.bodies) == len(records) == 2
    # The second goes on behind the first.
    assert ["for 1 questions" in note for note in notes] == [True, True]


class Spent:
    """Stands for the usage of an endpoint."""

    def __init__(self, cost: float) -> None:
        self.used = {"requests": 3, "prompt_tokens": 50, "cost": cost}
        self.saved = 0

    def save(self) -> dict[str, float]:
        self.saved += 1
        return self.used


@pytest.mark.parametrize(("cost", "more"), [(0.25, {"requests": 3, "cost": 0.25}), (0.0, {"requests": 3})])
def test_what_an_endpoint_was_asked_and_costs_is_shown_and_saved_each_time(
    cost: float, more: dict[str, float]
) -> None:
    display, usage = Shown(), Spent(cost)
    progress = pipeline._progress(display, cast(EndpointUsage, usage))
    progress(1, {"score": 1.0})
    progress(2, {})
    assert display.told == [(1, {"score": 1.0} | more), (2, more)]
    assert usage.saved == 2


def test_running_metrics_are_of_all_that_came_in(record: Maker) -> None:
    metrics = pipeline._RunningMetrics("em_squad", searched=True)
    assert metrics([record("a", valid=False)]) == {"faults": 1}
    assert metrics([record("b", searches=3), record("c", "Rome", searches=None)]) == {
        "score": 0.5,
        "searches": 3.0,
        "faults": 1,
    }
    third = metrics([record("d", "Rome", searches=1), record("e", valid=False, searches=9)])
    assert third == {"score": pytest.approx(1 / 3), "searches": 2.0, "faults": 2}


def results(task_env: TaskEnv, record: Maker, **options: Any) -> dict[str, Any]:
    notes: list[str] = options.pop("notes", [])
    given: dict[str, Any] = {"policy": "p", "scorers": ("em_squad", "f1_squad"), "seed": 7} | options
    rows = [
        record("q0", "Oda Kest", answers=("Oda Kest",), retrieved_ids=[["x", "y", "z", "d0"]],
               supporting_ids=["d0"], tokens={"policy": 4, "total": 9}),
        record("q1", "?", answers=("Tor Eth",), valid=False),
    ]  # fmt: skip
    who = options.pop("who", agent({}))
    given.pop("who", None)
    return summarize_evaluation(
        who,
        task_env,
        rows,
        {"oracle": {"mean": 1.0}},
        settings={"options": {"k": 4}},
        note=notes.append,
        **given,
    )


def test_results_say_what_was_evaluated_how_and_with_what(record: Maker) -> None:
    found = results(field(k=4), record, retriever="bm25")
    told = ("dataset", "split", "policy", "retriever", "seed", "n", "faults", "bounds")
    assert [found[name] for name in told] == [
        "towns", "dev", "p", "bm25", 7, 1, 1, {"oracle": {"mean": 1.0}},
    ]  # fmt: skip
    assert list(found["scores"]) == ["em_squad", "f1_squad"]
    assert found["retrieval"]["k"] == 4
    assert found["retrieval"]["recall@4"] == 1.0
    assert found["tokens"] == {
        "unit": "bytes", "policy_per_question": 4.0, "policy_per_correct": 4.0,
        "total_per_question": 9.0, "total_per_correct": 9.0,
    }  # fmt: skip
    info = InMemoryRetriever(DOCUMENTS).info()
    asked = "".join(repr((task.id, task.question, task.answers)) for task in TASKS)
    assert found["settings"] == {
        "documents": 2,
        "retriever_fingerprint": info.fingerprint,
        "env": "agentenv/LocalSearch-v0",
        "options": {"k": 4},
        "questions_fingerprint": hashlib.sha256(asked.encode()).hexdigest()[:16],
        "max_turns": 2,
        "decoding": "greedy",
        "concurrency": 5,
        "notes": "one note",
    }
    # "founded" stands in one, "Mirwick" is the title of the other.
    assert found["index_recall"]["recall@2"] == 1.0
    assert found["answer_in_corpus"] == {"share": 0.5, "n": 2}


def test_a_retriever_without_a_spec_is_called_as_it_calls_itself_and_three_passages_are_the_default(
    record: Maker,
) -> None:
    found = results(field(), record)
    assert (found["retriever"], found["retrieval"]["k"], found["retrieval"]["recall@3"]) == ("memory", 3, 0.0)


def test_how_many_episodes_run_at_a_time_is_no_setting_where_they_come_in_any_order(record: Maker) -> None:
    assert "concurrency" not in results(field(), record, who=agent({}, deterministic=False))["settings"]


def test_where_answers_cannot_be_looked_up_it_says_why(
    record: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def share(task_env: TaskEnv) -> tuple[Any, Any, bool]:
        found = results(task_env, record)["answer_in_corpus"]
        return found["share"], found["n"], bool(found.get("note"))

    bare = replace(field(), retriever=None, env=EnvConfig(id="agentenv/Calculator-v0"))
    assert share(bare) == (None, 0, True)
    assert share(field(Unlisted(), None)) == (None, 0, True)
    assert share(field(Unlisted())) == (0.5, 2, False)  # in the documents of the questions
    monkeypatch.setattr(pipeline, "MAX_COVERED_DOCUMENTS", 2)
    assert share(field()) == (0.5, 2, False)
    monkeypatch.setattr(pipeline, "MAX_COVERED_DOCUMENTS", 1)
    assert share(field()) == (None, 0, True)


def test_a_search_that_fails_leaves_the_recall_out_and_is_told(record: Maker) -> None:
    class Gone(InMemoryRetriever):
        async def search(self, queries: Any, k: int) -> Any:
            raise ConfigurationError("gone")

    notes: list[str] = []
    assert results(field(Gone(DOCUMENTS)), record, notes=notes)["index_recall"] == {}
    assert len(notes) == 1
    assert "gone" in notes[0]
