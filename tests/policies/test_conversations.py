"""Baselines of conversational search: what they read from an opening message, and what they write."""

import asyncio

import pytest

from agentenv.core.types import Document, Sampling, Task
from agentenv.envs.search.rewrite import PROMPT, Rewrite
from agentenv.errors import UnknownName
from agentenv.evaluation.eval_agent import open_eval_agent
from agentenv.policies.conversations import FORMS, ConversationPolicy, all_history, turns_of
from agentenv.retrievers.fakes import InMemoryRetriever

TURNS = ["Who built the tower?", "Ada Stone", "where was she born?"]
HISTORY = (("Who built the tower?", "Ada Stone"),)
TASK = Task("t", "where was she born?", ("Ulm",), data={"supporting_ids": ("b",), "history": HISTORY})
DOCUMENTS = [
    Document("a", "Towers", "Where a king was born."),
    Document("b", "Ada Stone", "Ada Stone, who came from the town of Ulm."),
]


def written(spec: str, text: str) -> str:
    policy = ConversationPolicy(spec)
    completion = asyncio.run(policy.generate(policy.tokenizer.encode(text), Sampling(999)))
    return completion.text


def test_the_form_all_history_by_hand() -> None:
    assert all_history(TURNS) == "Who built the tower [SEP] Ada Stone [SEP] where was she born"
    assert all_history(["is it so?? "]) == "is it so"
    assert all_history(["who", "A.? B", "when"]) == "who [SEP] A.? B [SEP] when"  # an answer stays as it is


def test_the_conversation_is_read_from_the_opening_message_and_an_answer_may_have_lines() -> None:
    text = PROMPT.replace("{conversation}", "Q: who\nA: Ada\nand Bob\nQ: when Q: was it")
    assert turns_of(text) == ["who", "Ada\nand Bob", "when Q: was it"]
    assert "<rewrite>who [SEP] Ada and Bob [SEP] when Q: was it</rewrite>" in written(
        "scripted:all_history", text
    )
    assert "<rewrite>when Q: was it</rewrite>" in written("scripted:original", text)
    assert written("scripted:original", "nothing").endswith("<rewrite></rewrite>")


@pytest.mark.parametrize(("spec", "rank"), [("scripted:original", None), ("scripted:all_history", 1)])
def test_the_whole_conversation_names_what_the_last_question_means(spec: str, rank: int | None) -> None:
    env = Rewrite(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), depth=1)
    (message,), _ = env.reset(seed=0)
    assert env.step(written(spec, message.text)).info["rank"] == rank


def test_they_are_policies_of_an_evaluation() -> None:
    for spec in FORMS:
        agent = open_eval_agent(spec, 2, Rewrite.stop)
        assert isinstance(agent.policy, ConversationPolicy)
        agent.close()
    with pytest.raises(UnknownName, match="'scripted:history'"):
        ConversationPolicy("scripted:history")
