"""CapabilitySearch-v0: what shows each capability and what does not, and what an episode earns."""

from typing import Any

import pytest

from agentenv.core.env import Env, run_sync
from agentenv.core.env_contract import EnvContract
from agentenv.core.types import Document, Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.capability_search import CAPABILITIES, CapabilitySearch, get_capability
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.capabilities import SEARCH_SKILLS
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.fakes import InMemoryRetriever

PAGES = (
    Document("film", "Moon Road", "Moon Road was directed by Anna Leroy"),
    Document("person", "Anna Leroy", "Anna Leroy was born in Oslo"),
    Document("other", "Green Hill", "Green Hill was painted by Bob Ray"),
)
TASK = Task(
    "t", "Where was the director of Moon Road born?", ("Oslo",), data={"supporting_ids": ("film", "person")}
)
FILM, PERSON, OTHER = (
    "<search>Moon Road directed</search>",
    "<search>Anna Leroy born</search>",
    "<search>Green Hill painted</search>",
)
BOTH = "<search>Moon Road directed\nAnna Leroy born</search>"
RIGHT, WRONG, NONE = "<answer>Oslo</answer>", "<answer>Rome</answer>", "oops"


class TestContract(EnvContract):
    def make(self) -> Env[Any]:
        return CapabilitySearch()


def earned(capability: str, *actions: str, **options: Any) -> float:
    env = CapabilitySearch(
        capability=capability, tasks=(TASK,), retriever=InMemoryRetriever(PAGES), k=1, max_turns=5, **options
    )
    run_sync(env.areset(seed=0))
    return sum(run_sync(env.astep(action)).reward for action in actions)


CASES = [
    ("search", (FILM, RIGHT), 1.0),
    ("search", (FILM, WRONG), 0.5),
    ("search", (OTHER, RIGHT), 0.0),  # a search that finds nothing needed
    ("search", (RIGHT,), 0.0),
    ("chain", (FILM, PERSON, RIGHT), 1.0),
    ("chain", (FILM, OTHER, PERSON, WRONG), 0.5),
    ("chain", (BOTH, RIGHT), 0.0),  # the name was in no page yet
    ("chain", (BOTH, BOTH, RIGHT), 0.0),  # nor in one before it was asked for first
    ("chain", ("<search>Moon Road directed</search>", "<search>Moon Road born</search>", PERSON, RIGHT), 1.0),
    ("chain", (FILM, FILM, PERSON), 0.0),  # it has not ended
    ("chain", (FILM, FILM, RIGHT), 0.0),
    ("chain", (FILM, PERSON), 0.0),  # it has not ended
    ("find", (PERSON, WRONG), 0.5),
    ("find", (FILM, RIGHT), 0.0),  # the answer stands on no page
    ("read", (PERSON, RIGHT), 1.0),
    ("read", (PERSON, WRONG), 0.0),
    ("read", (RIGHT,), 0.0),
    ("form", (FILM, RIGHT), 1.0),
    ("form", (NONE, FILM, RIGHT), 0.0),
    ("form", (RIGHT,), 0.0),
    ("stop", (FILM, PERSON, RIGHT), 1.0),
    ("stop", (FILM, PERSON, OTHER, RIGHT), 1.0),
    ("stop", (FILM, PERSON, OTHER, OTHER, RIGHT), 0.0),
    ("stop", (FILM, RIGHT), 0.0),
    ("stop", (FILM, PERSON, OTHER, OTHER, OTHER, OTHER), 0.0),
]


@pytest.mark.parametrize(
    ("capability", "actions", "reward"),
    CASES,
    ids=[f"{name}-{number}" for number, (name, *_) in enumerate(CASES)],
)
def test_what_an_episode_earns(capability: str, actions: tuple[str, ...], reward: float) -> None:
    assert earned(capability, *actions) == reward


def test_the_reward_of_the_paper_pays_the_exercise_alone() -> None:
    assert earned("search", FILM, WRONG, exercise=1.0) == 1.0
    assert earned("search", FILM, RIGHT, exercise=0.25) == 1.0
    with pytest.raises(ConfigurationError):
        CapabilitySearch(exercise=0.0)


def test_yes_and_no_stand_on_no_page() -> None:
    task = Task("y", "Is it?", ("yes",), data={"supporting_ids": ("film",)})
    env = CapabilitySearch(capability="find", tasks=(task,), retriever=InMemoryRetriever(PAGES), k=1)
    run_sync(env.areset(seed=0))
    run_sync(env.astep(FILM))
    assert run_sync(env.astep("<answer>yes</answer>")).reward == 1.0


def test_every_capability_has_a_skill_that_finds_it_and_worlds_that_can_be_made() -> None:
    assert {one.skill for one in CAPABILITIES.values()} == {skill.name for skill in SEARCH_SKILLS}
    with pytest.raises(UnknownName, match="'chian'"):
        get_capability("chian")


@pytest.mark.parametrize("name", CAPABILITIES)
def test_the_expert_shows_it(name: str) -> None:
    """On worlds of which a search by words finds every document that it needs."""
    world = FictionalWorld.generate(WorldConfig(documents=200, questions=20, **CAPABILITIES[name].worlds[0]))
    env = CapabilitySearch(
        capability=name, tasks=world.questions, retriever=BM25Retriever.build(world.documents), k=5
    )
    for seed in range(10):
        run_sync(env.areset(seed=seed))
        assert sum(run_sync(env.astep(action)).reward for action in env.expert() or ()) == 1.0
