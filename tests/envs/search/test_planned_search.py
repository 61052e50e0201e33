"""A planner over a frozen generator: who answers, what a plan costs, and which plans are worth it."""

from collections.abc import Sequence
from typing import Any

import pytest

from agentenv.core.types import Document, Passage, Task
from agentenv.envs.search.planned_search import Generator, PlannedSearch, make_generator
from agentenv.errors import ConfigurationError, EnvFault, UnknownName
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever

DOCUMENTS = [
    Document("a", "Halvik", "Halvik lies in Norland."),
    Document("b", "Ketterby", "Ketterby has a lighthouse."),
]
TASK = Task("q", "Where is Halvik?", ("Norland",))


class Reader:
    """Answers with the last word of the last passage."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    async def answer(self, question: str, passages: Sequence[Passage]) -> str | None:
        self.seen.append([passage.id for passage in passages])
        return passages[-1].text.split()[-1].strip(".") if passages else None


def rewards(*actions: str, **options: Any) -> list[float]:
    generator: Any = options.pop("generator", Reader())
    env = PlannedSearch(
        tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, generator=generator, **options
    )
    env.reset(seed=0)
    return [env.step(action).reward for action in actions]


READY = "<answer>ready</answer>"


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (["<search>Halvik</search>", READY], [0.2 - 0.05, 1.0]),
        (["<search>Ketterby</search>", "<search>Halvik</search>", READY], [-0.05, 0.15, 1.0]),
        (["<search>Ketterby\nHalvik</search>", READY], [0.2 - 0.1, 1.0]),  # two queries in one turn
        (
            ["<search>Ketterby</search>", "<answer>Norland</answer>"],
            [-0.05, 0.0],
        ),  # the planner's own word is not asked
        ([READY], [0.0]),
    ],
)
def test_outcome_process_and_cost(actions: list[str], expected: list[float]) -> None:
    assert rewards(*actions) == pytest.approx(expected)


def test_the_generator_reads_everything_that_was_found() -> None:
    reader = Reader()
    rewards("<search>Ketterby</search>", "<search>Halvik</search>", READY, generator=reader)
    assert reader.seen == [["b", "a"]]


def test_a_policy_is_a_generator() -> None:
    class Echo(ScriptedPolicy):
        prompts: list[str] = []  # noqa: RUF012

        async def generate(
            self, prompt_ids: Sequence[int], sampling: Any, *, episode: str | None = None
        ) -> Any:
            self.prompts.append(self.tokenizer.decode(prompt_ids))
            return await super().generate(prompt_ids, sampling, episode="g")

    policy = Echo({"g": ["I see. <answer> Norland </answer>"]})
    assert rewards("<search>Halvik</search>", READY, generator=Generator(policy))[-1] == 1.0
    assert "Halvik lies in Norland." in Echo.prompts[0]
    assert "Question: Where is Halvik?" in Echo.prompts[0]
    with pytest.raises(EnvFault, match="'g'"):
        rewards(READY, generator=Generator(policy))


def test_the_default_generator_needs_no_model() -> None:
    reader = make_generator("scripted:extractive")
    assert rewards("<search>Halvik</search>", READY, generator=reader) == pytest.approx([0.15, 1.0])
    assert rewards("<search>Ketterby</search>", READY, generator=reader) == pytest.approx([-0.05, 0.0])
    assert rewards(READY, generator=reader) == [0.0]
    with pytest.raises(UnknownName, match="'gpt'"):
        make_generator("gpt")
    with pytest.raises(ConfigurationError, match="search_cost=-1"):
        PlannedSearch(search_cost=-1.0)
