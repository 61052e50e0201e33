"""Conversations about an invented world whose topic changes now and then, as those of TopiOCQA do (arXiv:2110.00768).

A turn asks for a fact of the topic, which the turns after the first call "it". Where the topic changes, the question names
the new one, or means the answer before it ("that one"). The last question alone does not say what it is about, and the whole
conversation is about much else, so that neither is a good query: a policy has to say the question anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from agentenv.core.types import Task
from agentenv.data.world_facts import Facts
from agentenv.data.world_grammar import RELATIONS, SUCCESSOR, TYPES, WORKS, Relation
from agentenv.data.world_questions import hop_of
from agentenv.errors import ConfigurationError

Topic = tuple[str, int]
LEAST = 4
"""Facts of a topic: with fewer the topic would change more often than people change it."""
SAME, NAMED, MEANT = "it", "", "that one"
"""How a question refers to its topic: as before, by its name, as the answer before."""


@dataclass(frozen=True)
class ConversationConfig:
    """Which conversations are made.

    Raises:
        ConfigurationError: a number is out of range.
    """

    conversations: int = 100
    turns: int = 12
    """Of a conversation; TopiOCQA has 12.9 on the average."""
    switches: float = 0.2
    """Chance that a turn changes a topic of which something is left to ask. Together with those of which nothing is left
    this makes .28 of the turns after the first, as in TopiOCQA."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.conversations < 1 or self.turns < 2 or not 0 <= self.switches <= 1:
            raise ConfigurationError(
                f"conversations={self.conversations} must be at least 1, turns={self.turns} at least 2 and "
                f"switches={self.switches} within 0 and 1"
            )


def invented_conversations(facts: Facts, config: ConversationConfig) -> Iterator[Task]:
    """A task for every turn of every conversation, in their order.

    Raises:
        ConfigurationError: there is nothing to talk about for several turns.
    """
    rng = Random(f"{config.seed}/conversations")
    topics = [(kind, i) for kind in TYPES for i in range(len(facts.names[kind])) if _lasts(facts, (kind, i))]
    if not topics:
        raise ConfigurationError(
            f"a world of {facts.config.documents} documents has no entity with {LEAST} facts"
        )
    for number in range(config.conversations):
        yield from _conversation(facts, topics, config, rng, number)


def _stated(facts: Facts, topic: Topic) -> list[Relation]:
    """What can be asked of a topic: the relations that the corpus states, but those of several values."""
    kind, i = topic
    return [
        relation
        for relation in RELATIONS[kind]
        if relation not in (WORKS, SUCCESSOR) and facts.values[kind][relation.name][i] >= 0
    ]


def _lasts(facts: Facts, topic: Topic) -> bool:
    """Whether there is enough to ask of a topic."""
    return len(_stated(facts, topic)) >= LEAST


def _conversation(
    facts: Facts, topics: list[Topic], config: ConversationConfig, rng: Random, number: int
) -> Iterator[Task]:
    topic, reference = rng.choice(topics), NAMED
    left, answered, history = _stated(facts, topic), list[Topic](), list[tuple[str, str]]()
    for turn in range(1, config.turns + 1):
        if turn > 1 and (not left or rng.random() < config.switches):
            topic, reference = (answered[0], MEANT) if answered else (rng.choice(topics), NAMED)
            left = _stated(facts, topic)
        relation = left.pop(rng.randrange(len(left)))
        hop = hop_of(facts, topic, relation)
        name = hop["entity"]
        asked = rng.choice(relation.questions[: facts.config.paraphrase])
        data: dict[str, Any] = {
            "hops": 1,
            "family": "same topic" if reference == SAME else "new topic",
            "cluster": f"conversation {number}",
            "turn": turn,
            "topic": name,
            "history": list(history),
            "supporting_ids": [hop["document"]],
            "path": [hop],
            "rewrite": asked.format(s=name),
        }
        question = asked.format(s=reference or name)
        yield Task(f"conversation-{number}_{turn}", question, (hop["answer"],), facts.config.split, data)
        history.append((question, hop["answer"]))
        value = (relation.kind, int(facts.values[topic[0]][relation.name][topic[1]]))
        answered = [value] if relation.kind in TYPES and _lasts(facts, value) else []
        reference = SAME
