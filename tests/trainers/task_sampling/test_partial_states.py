"""ReST-GRPO's states by hand: where solutions are cut, which groups give and train, what waits, how a prefix is played."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory, Turn, from_record, to_record
from agentenv.core.types import Completion, Document, EndReason, Sampling, Task
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.trainers.config.config_files import load_config, override
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups
from agentenv.trainers.task_sampling.partial_states import PartialStates, cut_chances, drawn_cuts, states_of
from agentenv.trainers.task_sampling.step_budget import Group, StepBudget

TOKENIZER = ByteTokenizer()
TASK = Task("t", "Where was the builder of Iria born?", ("Orun",))
TASKS = [TASK, Task("t1", "q"), Task("t2", "q"), Task("t3", "q")]
DOCUMENTS = [
    Document("1", "Iria", "Iria was built by Tomas Vell."),
    Document("2", "Tomas Vell", "Born in Orun."),
]
IRIA, VELL = "<search>Iria built</search>", "<search>Tomas Vell born</search>"
RIGHT, WRONG = "<answer>Orun</answer>", "<answer>Iria</answer>"
CONFIG = RolloutConfig(context_tokens=4000, turn_tokens=60, stop=("</search>", "</answer>"))


def test_early_cuts_are_preferred() -> None:
    """.5^0, .5^1, .5^2 over 1.75."""
    np.testing.assert_allclose(cut_chances(3, 0.5), [4 / 7, 2 / 7, 1 / 7])
    rng = np.random.default_rng(0)
    cuts = [drawn_cuts(3, 2, 0.5, rng) for _ in range(3000)]
    assert {len(mine) for mine in cuts} == {2}
    shares = np.bincount(np.concatenate(cuts), minlength=4)[1:] / 6000
    np.testing.assert_allclose(shares, [4 / 7, 2 / 7, 1 / 7], rtol=0, atol=0.035)  # five standard errors
    assert any(len(set(mine)) == 1 for mine in cuts)  # with replacement


def test_half_of_the_turns_of_a_solution_are_drawn() -> None:
    """ceil(.5 l) of a solution of l lines, its last one counted; .1 * 30 is 3 and not the next larger number."""
    assert [states_of(turns, 0.5) for turns in (2, 3, 4, 5)] == [1, 2, 2, 3]
    assert (states_of(30, 0.1), states_of(3, 1.0)) == (3, 3)


class Terse(ScriptedPolicy):
    """Samples no token at all for an empty action, where others sample the end of a text."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        said = await super().generate(prompt_ids, sampling, episode=episode)
        return said if said.text else replace(said, ids=(), logprobs=())


def played(
    actions: Sequence[str], *, prefix: Trajectory | None = None, documents: Sequence[Document] = DOCUMENTS
) -> Trajectory:
    name = "e-0" if prefix is None else "e-0-continued"
    env = LocalSearch(
        tasks=[TASK], retriever=InMemoryRetriever(documents), k=1, max_turns=3, prompt="{question}"
    )
    context = RolloutContext(Terse({name: actions}), InlineFormat(TOKENIZER), CONFIG, TOKENIZER.decode)
    specs = [EpisodeSpec(env, TASK, 1, "g", prefix=prefix)]
    ((trajectory,),) = asyncio.run(play_groups([specs], get_strategy("plain"), context))
    return trajectory


def test_an_episode_goes_on_from_a_recorded_one_token_by_token() -> None:
    whole = played([IRIA, VELL, RIGHT])
    assert whole.reward == 1.0
    record = json.loads(json.dumps(to_record(whole.cut(2), whole=True) | {"id": whole.id}))
    again = played([WRONG], prefix=from_record(record, TASK))
    assert [turn.action for turn in again.turns] == [IRIA, VELL, WRONG]
    assert (again.reward, again.origin, again.parent_id, again.fork_turn) == (0.0, Origin.RETRY, "e-0", 2)
    shared = sum(len(s.ids) for s in whole.segments if s.turn < 2)
    assert again.ids[:shared].tolist() == whole.ids[:shared].tolist()
    assert again.logprobs[:shared].tolist() == whole.logprobs[:shared].tolist()
    assert TOKENIZER.decode(again.ids[again.loss_mask].tolist()) == WRONG
    assert again.info["strategy"] == {"continued": 1, "sampled_tokens": len(TOKENIZER.encode(WRONG))}


def test_a_recorded_turn_without_tokens_is_repeated_as_one() -> None:
    """The policy samples nothing in its first turn, so that the record has no segment of it."""
    whole = played(["", VELL, RIGHT])
    assert not [s for s in whole.segments if s.kind is SegmentKind.POLICY and s.turn == 0]
    again = played([WRONG], prefix=whole.cut(2))
    assert again.valid, again.error
    assert [turn.action for turn in again.turns] == ["", VELL, WRONG]
    shared = sum(len(s.ids) for s in whole.segments if s.turn < 2)
    assert again.ids[:shared].tolist() == whole.ids[:shared].tolist()


def test_a_world_that_shows_something_else_is_a_fault_and_no_failure() -> None:
    whole = played([IRIA, VELL, RIGHT])
    other = [replace(DOCUMENTS[0], text="Iria was never built."), DOCUMENTS[1]]
    again = played([RIGHT], prefix=whole.cut(2), documents=other)
    assert (again.valid, again.end_reason) == (False, EndReason.POLICY_FAULT)
    assert "turn 1" in again.error


def episode(place: int, reward: float, turns: int = 3) -> Trajectory:
    own = played([IRIA, VELL, RIGHT]).segments if turns == 3 else ()
    return Trajectory(
        TASKS[place], own, (Turn("a"),) * turns, reward, EndReason.ANSWERED, id=f"{place}-{reward}"
    )


def step_budget_of(outcomes: dict[int, list[float]], step: int = 1, turns: int = 3) -> StepBudget:
    step_budget = StepBudget(step, TASKS, np.random.default_rng(step), 2, 2)
    for place, rewards in outcomes.items():
        members = [episode(place, reward, turns) for reward in rewards]
        step_budget.groups.append(Group(place, step_budget.reserved, members))
    return step_budget


def test_groups_that_spread_are_trained_and_their_successes_give_states() -> None:
    """The deviation of 1 and .88 is .06, of 1 and .92 it is .04; a best of .8 is not good enough."""
    sampler = PartialStates()
    selection = sampler.select(step_budget_of({0: [1.0, 0.0], 1: [1.0, 0.88], 2: [1.0, 0.92], 3: [0.8, 0.0]}))
    assert [group.task for group in selection.trained] == [0, 1, 3]
    waiting = sampler.state_dict()["starts"]
    assert [task for task, _ in waiting] == [0, 0, 1, 1]  # half of three turns each, rounded up
    assert [record["id"] for _, record in waiting] == ["0-1.0", "0-1.0", "1-1.0", "1-1.0"]
    assert all(len(record["turns"]) in (1, 2) for _, record in waiting)
    assert sampler.select(step_budget_of({0: [1.0, 0.0]}, turns=1)).metrics == {"waiting_states": 4}


@pytest.mark.parametrize(("options", "drawn"), [({"count": 5}, 5), ({"share": 0.1}, 1), ({"share": 1.0}, 3)])
def test_how_many_states_are_drawn(options: dict[str, Any], drawn: int) -> None:
    """Of three turns, of which two can be kept: a fixed number, a tenth, which is one, and as many as there are turns."""
    cuts = cuts_with(**options)
    assert len(cuts) == drawn
    assert set(cuts) <= {1, 2}


def test_all_states_are_starts_once() -> None:
    assert cuts_with(all=True) == [1, 2]


def cuts_with(**options: Any) -> list[int]:
    """Turns that are kept in the starts that a solution of three turns gives."""
    sampler = PartialStates(**options)
    sampler.select(step_budget_of({0: [1.0, 0.0]}))
    return [len(record["turns"]) for _, record in sampler.state_dict()["starts"]]


def test_states_are_played_once_and_the_rest_are_whole_tasks() -> None:
    sampler, again = PartialStates(), PartialStates()
    sampler.select(step_budget_of({0: [1.0, 0.0], 1: [1.0, 0.0]}))
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert json.dumps(again.state_dict()) == json.dumps(sampler.state_dict())
    first, second = sampler.draw(step_budget_of({}, step=2))
    assert (first.task, first.rollouts, second.prefix) == (0, 2, None)
    assert first.prefix is not None
    assert [draw.task for draw in again.draw(step_budget_of({}, step=2))] == [first.task, second.task]
    played = [sampler.draw(step_budget_of({}, step=step))[0] for step in (3, 4, 5)]
    assert [(draw.task, draw.prefix is None) for draw in played] == [(0, False), (1, False), (1, False)]
    assert all(draw.prefix is None for draw in sampler.draw(step_budget_of({}, step=6)))


def test_an_episode_that_began_within_a_solution_gives_no_states() -> None:
    step_budget = step_budget_of({0: [1.0, 0.0]})
    members = step_budget.groups[0].members
    step_budget.groups[0].members = [replace(m, origin=Origin.RETRY, parent_id="e") for m in members]
    sampler = PartialStates()
    assert len(sampler.select(step_budget).trained) == 1
    assert sampler.state_dict() == {"starts": []}


@pytest.mark.parametrize(
    "option",
    [{"part": 1.1}, {"min_spread": -0.1}, {"share": 0.0}, {"decay": 0.0}, {"queue": 0}, {"count": -1}],
)
def test_options_have_bounds(option: dict[str, float]) -> None:
    (name,) = option
    with pytest.raises(ConfigurationError, match=name):
        PartialStates(**option)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="count=3"):
        PartialStates(count=3, all=True)


def test_other_strategies_cannot_begin_within_an_episode() -> None:
    with pytest.raises(ConfigurationError, match="'tree'"):
        override(
            load_config("laptop-search"),
            ["--rollout.sampler", "partial_states", "--rollout.strategy", "tree"],
        )
    assert SegmentKind.POLICY in {s.kind for s in played([RIGHT]).segments}
