"""Rewriting in conversation: the rank-shaped reward by hand, the strict format, conversations from several hops."""

from typing import Any

import pytest

from agentenv.core.assistant_turns import AssistantTurn
from agentenv.core.types import Document, EndReason, Task
from agentenv.envs.search.rewrite import Rewrite, as_conversation, curriculum_reward, rank_reward
from agentenv.errors import ConfigurationError, DatasetError, UnknownName
from agentenv.retrievers.fakes import InMemoryRetriever

DOCUMENTS = [Document(f"d{n}", f"Stone {n}", "stone " + "moss " * n) for n in range(12)]
TASK = Task("t", "And it?", ("x",), data={"supporting_ids": ("d3",), "history": (("Who?", "Ann"),)})


@pytest.mark.parametrize(
    ("rank", "reward"),
    [
        (1, 2.0),  # 19/9 - 1/9
        (4, 15 / 9),
        (10, 1.0),
        (11, 99 / 90 - 1 / 90 - 8 / 90),  # 10/9 - 11/90 = 89/90
        (55, 0.5),
        (100, 0.0),
        (101, 0.0),
        (None, 0.0),
    ],
)
def test_the_reward_of_a_rank(rank: int | None, reward: float) -> None:
    if rank == 11:
        reward = 89 / 90
    assert rank_reward(rank) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("rank", "first", "later"),
    [
        (1, 1.0, 1.0),
        (10, 1 - 9 / 99, 1 - 9 / 99),
        (11, 1 - 10 / 99, 0.0),
        (100, 0.0, 0.0),
        (101, -0.2, -0.2),
        (None, -0.2, -0.2),
    ],
)
def test_the_reward_of_the_curriculum(rank: int | None, first: float, later: float) -> None:
    assert curriculum_reward(rank) == pytest.approx(first)
    assert curriculum_reward(rank, 10) == pytest.approx(later)


def test_the_curriculum_pays_fewer_ranks_and_no_form_is_a_way_out() -> None:
    stone = "<think>a</think>\n<rewrite>stone</rewrite>"  # of rank 4
    options: dict[str, Any] = {"reward": "curriculum"}
    assert act(stone, **options)[0] == pytest.approx(1 - 3 / 99)
    assert act(stone, paid_ranks=3, **options)[0] == 0.0
    assert act("stone", **options)[0] == act(stone.replace("stone", "moon"), **options)[0] == -0.2
    assert (Rewrite().reward_ceiling, Rewrite(**options).reward_ceiling) == (2.0, 1.0)
    with pytest.raises(UnknownName, match="'ranks'"):
        Rewrite(reward="ranks")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="paid_ranks=0"):
        Rewrite(paid_ranks=0)


def act(action: str, task: Task = TASK, **options: Any) -> tuple[float, EndReason, object]:
    env = Rewrite(tasks=[task], retriever=InMemoryRetriever(DOCUMENTS), **options)
    env.reset(seed=0)
    step = env.step(action)
    return step.reward, step.info["end_reason"], step.info.get("rank")


def test_the_supporting_document_is_looked_for() -> None:
    """Only the title of d3 holds a 3; all documents hold a stone, and d3 is the fourth of them."""
    assert act("<think>a</think>\n<rewrite>3</rewrite>") == (2.0, EndReason.SUBMITTED, 1)
    reward, end, rank = act("<think>a</think>\n<rewrite>stone</rewrite>")
    assert reward == pytest.approx(15 / 9)
    assert (end, rank) == (EndReason.SUBMITTED, 4)
    assert act("<think>a</think>\n<rewrite>elsewhere</rewrite>") == (0.0, EndReason.SUBMITTED, None)


@pytest.mark.parametrize(
    "action",
    [
        "",
        "<rewrite>3</rewrite>",
        "<think>a</think><rewrite>3</rewrite>",  # no newline between
        "<think>a</think>\n<rewrite>3</rewrite> and more",
        "<think></think>\n<rewrite>3</rewrite>",
        "<think>a</think>\n<rewrite></rewrite>",
        "<think>a</think>\n<rewrite> \n</rewrite>",
        "<think>a<think>b</think>\n<rewrite>3</rewrite>",
    ],
)
def test_another_form_costs_a_tenth_whatever_it_would_find(action: str) -> None:
    assert act(action) == (-0.1, EndReason.PARSE_ERROR, None)


def test_the_policy_sees_the_conversation_and_not_what_it_is_about() -> None:
    path = (
        {
            "query": "Sabzosi Diary author",
            "answer": "Ann Lee",
            "relation": "author",
            "entity": "Sabzosi Diary",
        },
        {"query": "Ann Lee was taught by", "answer": "Bo", "relation": "mentor", "entity": "Ann Lee"},
    )
    task = as_conversation(
        Task(
            "t",
            "Who taught the author of Sabzosi Diary?",
            ("Bo",),
            data={"path": path, "supporting_ids": ("d1",)},
        )
    )
    assert task.question == "it was taught by?"
    env = Rewrite(tasks=[task], retriever=InMemoryRetriever(DOCUMENTS))
    (message,), _ = env.reset(seed=0)
    assert message.text.endswith("Q: Sabzosi Diary author?\nA: Ann Lee\nQ: it was taught by?\n")
    assert env.expert() == ("<think>It is Ann Lee.</think>\n<rewrite> Ann Lee was taught by </rewrite>",)
    assert as_conversation(TASK) is TASK


def test_a_task_without_a_gold_passage_is_refused() -> None:
    with pytest.raises(DatasetError, match=r"'t'.*supporting_ids"):
        act("", Task("t", "q", ("a",)))


@pytest.mark.parametrize(
    ("thinking", "reward"),
    [("a", 2.0), (None, -0.1), ("", -0.1)],
)
def test_a_thought_in_a_models_native_form_counts(thinking: str | None, reward: float) -> None:
    """Thinking models open every turn with one, which their form holds apart from the content."""
    turn = AssistantTurn(thinking, "<rewrite>3</rewrite>")
    assert act(Rewrite().native_action(turn))[0] == reward
