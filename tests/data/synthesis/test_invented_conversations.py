"""Conversations about a world: what a turn asks and refers to, how often topics change, and what a query has to beat."""

import json
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.core.env import run_sync
from agentenv.core.types import Task
from agentenv.data.datasets import load_dataset
from agentenv.data.synthesis.conversations import ConversationConfig, invented_conversations
from agentenv.data.world import FictionalWorld, WorldConfig, write_world
from agentenv.data.world_facts import generate_facts
from agentenv.envs.search.rewrite import Rewrite
from agentenv.errors import ConfigurationError
from agentenv.policies.conversations import all_history
from agentenv.retrievers.bm25 import BM25Retriever

WORLD = WorldConfig(seed=3, documents=1000, questions=0)
FACTS = generate_facts(WORLD)
TASKS = list(invented_conversations(FACTS, ConversationConfig(conversations=40)))
DOCUMENTS = FictionalWorld.generate(WORLD).documents


def test_every_turn_asks_for_a_fact_that_its_document_states() -> None:
    texts = {document.id: document.text for document in DOCUMENTS}
    assert len(TASKS) == 40 * 12
    for task in TASKS:
        (document,) = task.data["supporting_ids"]
        assert task.answers[0] in texts[document]
        assert task.data["topic"] in task.data["rewrite"]


def test_a_topic_is_named_once_and_then_meant() -> None:
    """The topic of the turn before is "it", and the answer before is "that one"; every turn repeats those before it."""
    for _, turns in groupby(TASKS, key=lambda task: task.data["cluster"]):
        before: Task | None = None
        said: list[tuple[str, str]] = []
        for task in turns:
            assert task.data["history"] == said
            named = task.data["topic"] in task.question
            if before is None:
                assert named
                assert task.data["family"] == "first turn"
            elif named:
                assert task.data["family"] == "new topic"
                assert task.data["topic"] != before.data["topic"]
            elif task.data["family"] == "same topic":
                assert task.data["topic"] == before.data["topic"]
                assert task.question == task.data["rewrite"].replace(task.data["topic"], "it")
            else:
                assert task.data["family"] == "new topic"
                assert task.data["topic"] == before.answers[0] != before.data["topic"]
                assert task.question == task.data["rewrite"].replace(task.data["topic"], "that one")
            said = [*said, (task.question, task.answers[0])]
            before = task


def share_of_changes(share: float, conversations: int = 1000) -> float:
    """The share of later turns whose topic is another than that of the turn before."""
    tasks = list(
        invented_conversations(FACTS, ConversationConfig(conversations=conversations, switches=share))
    )
    pairs = [pair for pair in pairwise(tasks) if pair[1].data["turn"] > 1]
    return sum(bool(one.data["topic"] != other.data["topic"]) for one, other in pairs) / len(pairs)


@pytest.mark.parametrize("share", [ConversationConfig.switches, 0.5])
def test_as_many_turns_change_the_topic_as_are_asked_for(share: float) -> None:
    """.28 in TopiOCQA. Each turn draws whether it changes; the standard error over 11,000 turns is .0043 to .0048."""
    assert abs(share_of_changes(share) - share) < 0.014


def test_topics_that_are_used_up_change_whatever_share_is_asked_for() -> None:
    """Topics have 4 to 6 facts, so that a conversation of twelve turns has two or three."""
    assert 1 / 11 <= share_of_changes(0.0, 100) <= 2 / 11


def test_no_question_is_asked_twice_in_a_conversation() -> None:
    for _, turns in groupby(TASKS, key=lambda task: task.data["cluster"]):
        asked = [task.data["rewrite"] for task in turns]
        assert len(set(asked)) == len(asked) == 12


def test_what_is_asked_only_of_what_a_topic_states_lasts_for_four_turns() -> None:
    """Four turns are no more than the facts of a topic, and where every turn changes it only the first does not."""
    stay = list(invented_conversations(FACTS, ConversationConfig(conversations=5, turns=4, switches=0.0)))
    assert {task.data["family"] for task in stay if task.data["turn"] > 1} == {"same topic"}
    leave = list(invented_conversations(FACTS, ConversationConfig(conversations=5, turns=4, switches=1.0)))
    assert {task.data["family"] for task in leave if task.data["turn"] > 1} == {"new topic"}


def test_a_world_with_too_little_to_talk_about_is_refused() -> None:
    facts = generate_facts(WorldConfig(seed=3, documents=200, questions=0))
    with pytest.raises(ConfigurationError, match="world of 200 documents has"):
        list(invented_conversations(facts, ConversationConfig(conversations=1, turns=200)))


def test_neither_the_last_question_nor_the_whole_conversation_is_a_good_query() -> None:
    """The rewriting finds the passage first far more often than both, so a policy has something to learn."""
    retriever = BM25Retriever.build(DOCUMENTS)
    forms = {
        "original": [task.question for task in TASKS],
        "all": [
            all_history([*(text for pair in task.data["history"] for text in pair), task.question])
            for task in TASKS
        ],
        "rewrite": [task.data["rewrite"] for task in TASKS],
    }
    first = {
        name: sum(
            bool(found) and found[0].id == task.data["supporting_ids"][0]
            for task, found in zip(TASKS, run_sync(retriever.search(queries, 1)), strict=True)
        )
        / len(TASKS)
        for name, queries in forms.items()
    }
    assert first["rewrite"] > first["all"] + 0.3
    assert first["rewrite"] > first["original"] + 0.3


def test_the_environment_poses_a_turn_and_its_expert_earns_the_most() -> None:
    task = next(task for task in TASKS if task.data["family"] == "same topic")
    env = Rewrite(tasks=TASKS, retriever=BM25Retriever.build(DOCUMENTS))
    observation, _ = env.reset(options={"task": task})
    assert observation[0].text.count("Q: ") == task.data["turn"]
    (action,) = env.expert() or ()
    assert env.step(action).reward > 1


@pytest.mark.parametrize("changes", [{"conversations": 0}, {"turns": 1}, {"switches": 1.5}], ids=str)
def test_numbers_out_of_range_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=rf"{next(iter(changes))}={next(iter(changes.values()))}"):
        ConversationConfig(**changes)


def test_the_command_writes_conversations_that_can_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_world(WORLD, tmp_path / "world")
    words = ["synthesize", "conversations", "--corpus", str(tmp_path / "world"), "--conversations", "3"]
    assert main([*words, "--turns", "4", "--out", str(tmp_path / "a"), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["questions"], sum(card["families"].values())) == (12, 12)
    dataset = load_dataset("jsonl", tmp_path / "a" / "questions.jsonl")
    assert [len(task.data["history"]) for task in dataset.tasks] == [0, 1, 2, 3] * 3
    assert len({task.data["cluster"] for task in dataset.tasks}) == 3
    assert dataset.corpus is not None
