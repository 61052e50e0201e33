"""Conversations about an invented world whose topic changes now and then, as those of TopiOCQA do (arXiv:2110.00768).

A turn asks for a fact of the topic, which the turns after the first call "it". Where the topic changes, the question names
the new one, or means the answer before it ("that one"). No topic comes again, so that no question is asked twice. The last
question alone does not say what it is about, and the whole conversation is about much else, so that neither is a good query:
a policy has to say the question anew.
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
    switches: float = 0.28
    """Share of the turns after the first that change the topic, in expectation; .28 in TopiOCQA. It is more where topics are
    used up more often than that."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.conversations < 1 or self.turns < 2 or not 0 <= self.switches <= 1:
            raise ConfigurationError(
                f"conversations={self.conversations} must be at least 1, turns={self.turns} at least 2 and "
                f"switches={self.switches} within 0 and 1"
            )


def invented_conversations(facts: Facts, config: ConversationConfig) -> Iterator[Task]:
    """A task for every turn of every conversation, in their order.

    Its family is "first turn", or says whether the topic is that of the turn before: "same topic" or "new topic".

    Raises:
        ConfigurationError: there is nothing to talk about for several turns, or too little for one of the conversations.
    """
    rng = Random(f"{config.seed}/conversations")
    topics = [(kind, i) for kind in TYPES for i in range(len(facts.names[kind])) if _lasts(facts, (kind, i))]
    if not topics:
        raise ConfigurationError(
            f"a world of {facts.config.documents} documents has no entity with {LEAST} facts"
        )
    changes = _Changes(config.switches, rng)
    for number in range(config.conversations):
        yield from _conversation(facts, topics, config, changes, number)


@dataclass
class _Changes:
    """Decides which turns change their topic, so that a share of them does in expectation.

    Each turn draws whether it does. A topic that is used up changes anyway, and then a later turn that would change a topic
    keeps it.
    """

    share: float
    rng: Random
    owed: int = 0
    """Changes that came before they were drawn."""

    def next(self, used_up: bool) -> bool:
        """Whether the turn that comes changes a topic of which nothing is left (``used_up``) or something."""
        drawn = self.rng.random() < self.share
        if used_up:
            self.owed += not drawn
            return True
        if drawn and self.owed:
            self.owed -= 1
            return False
        return drawn


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
    facts: Facts, topics: list[Topic], config: ConversationConfig, changes: _Changes, number: int
) -> Iterator[Task]:
    rng = changes.rng
    topic, reference, family = rng.choice(topics), NAMED, "first turn"
    had, left = {topic}, _stated(facts, topic)
    answered: Topic | None = None
    history = list[tuple[str, str]]()
    for turn in range(1, config.turns + 1):
        if turn > 1:
            reference, family = SAME, "same topic"
            if changes.next(not left):
                family = "new topic"
                topic, reference = _next_topic(facts, topics, had, answered, rng)
                had.add(topic)
                left = _stated(facts, topic)
        relation = left.pop(rng.randrange(len(left)))
        hop = hop_of(facts, topic, relation)
        name = hop["entity"]
        asked = rng.choice(relation.questions[: facts.config.paraphrase])
        data: dict[str, Any] = {
            "hops": 1,
            "family": family,
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
        value = int(facts.values[topic[0]][relation.name][topic[1]])
        answered = (relation.kind, value) if relation.kind in TYPES else None


def _next_topic(
    facts: Facts, topics: list[Topic], had: set[Topic], answered: Topic | None, rng: Random
) -> tuple[Topic, str]:
    """A topic that the conversation has not had, and how a question refers to it.

    Raises:
        ConfigurationError: it has had them all.
    """
    if answered is not None and answered not in had and _lasts(facts, answered):
        return answered, MEANT
    new = [topic for topic in topics if topic not in had]
    if not new:
        raise ConfigurationError(
            f"a world of {facts.config.documents} documents has {len(topics)} entities with {LEAST} facts, and a "
            "conversation has had them all: take a larger world, or fewer turns"
        )
    return rng.choice(new), NAMED
