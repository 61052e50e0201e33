"""Bounds by hand: what is played for them, the score of their episodes, and what is said where there is none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agentenv.core.rollout import RolloutConfig
from agentenv.core.types import Document, Task
from agentenv.data.sources import Source
from agentenv.errors import Fault
from agentenv.evaluation.bounds import bound_of, measure_expert, recall_or_none, variants
from agentenv.evaluation.closed_book import AnsweringPolicy
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.task_env import EnvConfig, TaskEnv
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.oracle import OracleRetriever, PagedOracleRetriever

Maker = Callable[..., EpisodeRecord]

DOCUMENTS = [Document(f"d{i}", f"title{i}", f"text{i}") for i in range(3)]
TASKS = tuple(
    Task(
        f"q{i}",
        f"title{i}",
        (f"a{i}",),
        data={"supporting_ids": [f"d{i}"], "path": ({"query": f"title{i}"},)},
    )
    for i in range(3)
)
FIELD = TaskEnv(
    Source("s", "", TASKS, DOCUMENTS, None), InMemoryRetriever(DOCUMENTS), EnvConfig(options={"k": 1}), len
)


def test_a_bound_is_over_valid_episodes_and_its_interval_has_the_seed_of_the_bootstrap(record: Maker) -> None:
    rows = [record(f"q{i}", " ".join(["Paris"] * (1 + i % 7))) for i in range(40)]
    found = bound_of([*rows, record("x", valid=False)], "f1_squad")
    # Of n times "Paris" one is right: precision 1/n, recall 1, F1 2/(n+1).
    assert found["mean"] == pytest.approx(sum(2 / (2 + i % 7) for i in range(40)) / 40)
    assert found["n"] == 40
    assert found == bound_of(rows, "f1_squad", seed=0) != bound_of(rows, "f1_squad", seed=1)
    assert bound_of(iter(rows[:1]), "em_squad")["mean"] == 1.0


@pytest.mark.parametrize(
    ("error", "named"),
    [("Traceback\n  line\nEnvFault: the browser died\n", "the browser died"), ("", "env_fault")],
)
def test_a_bound_of_failures_alone_names_the_reason_of_the_first(
    record: Maker, error: str, named: str
) -> None:
    rows = [record("a", valid=False, end_reason="env_fault", error=error), record("b", valid=False)]
    with pytest.raises(Fault, match=named) as failed:
        bound_of(rows, "em_squad")
    assert "2 episodes" in str(failed.value)
    assert "Traceback" not in str(failed.value)
    assert bound_of([], "em_squad")["n"] == 0


def test_the_environments_of_bounds_have_gold_passages_or_no_search() -> None:
    policy = ScriptedPolicy({})
    found = variants(FIELD, policy)
    assert list(found) == ["closed_book", "oracle", "oracle_paged"]
    kinds = {}
    for name, variant in found.items():
        assert not isinstance(variant, str)
        task_env, player = variant
        kinds[name] = (type(task_env.searched), task_env.env.options, type(player))
        assert task_env.source is FIELD.source
    assert kinds == {
        "closed_book": (InMemoryRetriever, {"k": 1, "max_turns": 0}, AnsweringPolicy),
        "oracle": (OracleRetriever, {"k": 1}, ScriptedPolicy),
        "oracle_paged": (PagedOracleRetriever, {"k": 1}, ScriptedPolicy),
    }
    assert variants(replace(FIELD, retriever=None), policy) == {}


def test_a_policy_that_calls_tools_natively_is_asked_for_its_answer_by_the_tool() -> None:
    policy = ScriptedPolicy({})
    asked = {}
    for native in (True, False):
        variant = variants(FIELD, policy, native=native)["closed_book"]
        assert not isinstance(variant, str)
        asked[native] = variant[0].env.options.get("prompt", "")
    assert "tool answer" in asked[True]
    assert asked[False] == ""


def test_without_a_corpus_there_is_no_oracle() -> None:
    bare = replace(FIELD, source=replace(FIELD.source, documents=None))
    found = variants(bare, ScriptedPolicy({}))
    assert isinstance(found["oracle"], str)
    assert found["oracle"] == found["oracle_paged"]
    assert not isinstance(found["closed_book"], str)


def test_the_bound_of_the_expert_tells_how_far_it_is() -> None:
    done: list[int] = []
    found = measure_expert(FIELD, RolloutConfig(), "em_squad", progress=done.append)
    assert (found["mean"], found["n"], done) == (1.0, 3, [3])
    assert measure_expert(FIELD, RolloutConfig(), "em_squad", seed=5)["mean"] == 1.0


def test_a_recall_that_cannot_be_measured_is_a_warning() -> None:
    class Gone(InMemoryRetriever):
        async def search(self, queries: Any, k: int) -> Any:
            raise ConnectionError("away")

    warned: list[str] = []
    assert recall_or_none(FIELD, warned.append)["recall@2"] == 1.0
    assert warned == []
    assert recall_or_none(replace(FIELD, retriever=Gone(DOCUMENTS)), warned.append) == {}
    assert len(warned) == 1
    assert "ConnectionError: away" in warned[0]
