"""Which capabilities TRACE names of an agent that lacks two of them: these two, and not what only follows from them.

The agent is the expert of ``LocalSearch-v0`` over questions of one and two hops, and errs in half of its episodes where a
capability is called for that it lacks.
"""

from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import Any

import pytest

from agentenv.core.types import Step, Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.capability_search import CAPABILITIES
from agentenv.envs.search.local_search import LocalSearch
from agentenv.evaluation.capabilities import SEARCH_SKILLS
from agentenv.evaluation.contrast import contrasts, label_by_skills
from agentenv.evaluation.diagnosis import answer_shown
from agentenv.evaluation.records import EpisodeRecord
from agentenv.retrievers.fakes import InMemoryRetriever

WORLD = FictionalWorld.generate(
    WorldConfig(documents=200, questions=120, hops=(1, 2), families=("lookup", "bridge"))
)
LACKING = ("search", "chain", "read", "form", "stop")
"""Without ``find``, which an agent can lack only by its queries: that is to search badly."""


def played(env: LocalSearch, task: Task, lacks: Sequence[str], rng: Random) -> tuple[EpisodeRecord, float]:
    """An episode of the agent, as an evaluation records it, and its score."""
    env.reset(seed=0, options={"task": task})
    *searches, answer = env.expert() or ()
    errs = [name for name in lacks if rng.random() < 0.5]
    if "search" in errs:
        searches = []
    if "chain" in errs and len(searches) > 1:
        searches = searches[:1] * 2
    turns: list[dict[str, Any]] = []
    for query in searches:
        turns.append(turn_of(query, env.step(query)))
    seen: Any = {"turns": turns, "answers": task.answers}
    if not answer_shown(seen) or "read" in errs:
        answer = "<answer>Zed</answer>"
    lasts = [answer]
    if "form" in errs:
        lasts = ["Zed"] * 9
    elif "stop" in errs and searches:
        lasts = searches[-1:] * 9
    for action in lasts:
        step = env.step(action)
        turns.append(turn_of(action, step))
        if step.terminated or step.truncated:
            break
    record: Any = {
        "id": task.id, "question": task.question, "answers": task.answers, "valid": True, "turns": turns,
        "prediction": step.info.get("answer"), "end_reason": str(step.info["end_reason"].value),
        "searches": sum(len(result.get("ids", ())) for turn in turns for result in turn["tool_results"]),
        "hops": task.data["hops"],
    }  # fmt: skip
    return record, step.reward


def turn_of(action: str, step: Step) -> dict[str, Any]:
    results = [
        {"name": one.name, "status": one.status.value, "text": one.text, "ids": one.data.get("ids", ())}
        for one in step.info["tool_results"]
    ]
    shown = "".join(message.text for message in step.observation)
    return {"action": action, "observation": shown, "valid": step.info["valid"], "tool_results": results}


@pytest.mark.parametrize("lacks", [*combinations(LACKING, 2)], ids="-".join)
def test_the_two_capabilities_are_named_that_an_agent_lacks(lacks: tuple[str, str]) -> None:
    env = LocalSearch(tasks=WORLD.questions, retriever=InMemoryRetriever(WORLD.documents), k=2, max_turns=4)
    rng, skills = Random(0), {skill.name: skill for skill in SEARCH_SKILLS}
    tasks = [task for task in WORLD.questions if played(env, task, (), rng)[1] == 1.0]
    assert len(tasks) > 60  # the search by word overlap does not find every document
    episodes = [played(env, task, lacks, rng) for task in tasks]
    named = {name: skills[capability.skill] for name, capability in CAPABILITIES.items()}
    labels = label_by_skills([record for record, _ in episodes], [score for _, score in episodes], named)
    kept = {one.capability: one.contrast for one in contrasts(labels) if one.kept}
    assert set(kept) == set(lacks)
