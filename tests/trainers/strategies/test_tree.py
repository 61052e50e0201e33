"""Trees: who forks where, no turn executed twice, credit on real rollouts, pruning, faults, environments that are closed.

The environment walks: it remembers every word it was told, "oops" fails, and a number ends the episode with that reward.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.chat import InlineFormat, ends_of_turn
from agentenv.core.env import AsyncEnv
from agentenv.core.native_format import NativeFormat
from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Origin, Trajectory
from agentenv.core.types import (
    Completion,
    EndReason,
    Info,
    Message,
    Observation,
    Sampling,
    Step,
    Task,
    ToolResult,
    ToolStatus,
)
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.code import Code
from agentenv.errors import ConfigurationError, SnapshotError, SnapshotRefused
from agentenv.policies.fakes import ByteTokenizer, chat_tokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import play_groups
from agentenv.trainers.strategies.tree import TreeStrategy
from agentenv.trainers.strategies.tree_branches import shares, trained_once

TOKENIZER = ByteTokenizer()
TASK = Task("t", "q")


@dataclass
class WalkState:
    said: list[str] = field(default_factory=list)


@dataclass
class Log:
    """What all environments of a test did together."""

    steps: list[str] = field(default_factory=list)
    opened: int = 0
    closed: int = 0


class Walk(AsyncEnv[WalkState]):
    def __init__(self, log: Log, *, broken: Exception | None = None) -> None:
        super().__init__()
        self.log, self.broken = log, broken

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed)
        self.state = WalkState()
        return (Message("user", "Go"),), {"task_id": options["task"].id} if options else {}

    async def astep(self, action: str) -> Step:
        self.check_running()
        self.state.said.append(action)
        self.log.steps.append(" ".join(self.state.said))
        if action.isdigit():
            return self.result((), reward=float(action), end=EndReason.ANSWERED, path=[*self.state.said])
        status = ToolStatus.ERROR if action == "oops" else ToolStatus.OK
        return self.result((Message("tool", f"[{action}]"),), tool_results=(ToolResult("walk", status),))

    def fork(self, n: int = 1) -> Any:
        if self.broken:
            raise self.broken
        self.log.opened += n
        return super().fork(n)

    def close(self) -> None:
        self.log.closed += 1
        super().close()


def play(
    scripts: Mapping[str, Sequence[str]],
    *,
    slots: int,
    log: Log | None = None,
    broken: Exception | None = None,
    policy: Any = None,
    chat: ChatFormat | None = None,
    step: int = 0,
    **options: Any,
) -> list[Trajectory]:
    log = log or Log()
    specs = [EpisodeSpec(Walk(log, broken=broken), TASK, seed, "g") for seed in range(slots)]
    context = RolloutContext(
        policy or ScriptedPolicy(scripts),
        chat or InlineFormat(TOKENIZER),
        RolloutConfig(context_tokens=4096, turn_tokens=500),
        TOKENIZER.decode,
        step=step,
    )
    (group,) = asyncio.run(play_groups([specs], TreeStrategy(**options), context))
    return group


def lineage(group: Sequence[Trajectory]) -> list[tuple[str, str | None, int | None, list[str]]]:
    return [(t.id, t.parent_id, t.fork_turn, [turn.action for turn in t.turns]) for t in group]


# Turn 1 forks e-0 into e-0 and e-2, turn 2 each of them once more: scripts hold the own turns of each branch.
FULL = {"e-0": ("a", "b", "c", "1"), "e-1": ("d", "2"), "e-2": ("f", "g", "3"), "e-3": ("h", "4")}


def test_a_tree_of_two_forks_has_four_leaves_that_share_their_past() -> None:
    log = Log()
    group = play(FULL, slots=4, log=log, roots=1)
    assert lineage(group) == [
        ("e-0", None, None, ["a", "b", "c", "1"]),
        ("e-1", "e-0", 2, ["a", "b", "d", "2"]),
        ("e-2", "e-0", 1, ["a", "f", "g", "3"]),
        ("e-3", "e-2", 2, ["a", "f", "h", "4"]),
    ]
    assert [t.origin for t in group] == [Origin.BASE, Origin.BRANCH, Origin.BRANCH, Origin.BRANCH]
    assert {t.group_id for t in group} == {"g"}
    assert [t.info["path"] for t in group] == [[turn.action for turn in t.turns] for t in group]
    stems = [[s.ids for s in t.segments if s.turn < 2] for t in group]
    assert stems[0] == stems[1]
    assert stems[2] == stems[3]


@pytest.mark.parametrize("drops_thinking", [False, True])
def test_a_tree_in_the_native_format_has_the_same_leaves(drops_thinking: bool) -> None:
    """Where the template drops the thinking of earlier turns, each turn opens a row; branches share what precedes a fork."""
    pytest.importorskip("transformers", reason="needs the train extra")
    kept = "false" if drops_thinking else "true"
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.reasoning_content and (loop.last or "
        + kept
        + ") %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = chat_tokenizer(template, eos="<|im_end|>", special=["<|im_start|>"])
    scripts = {name: [f"<think>Hm.</think>{word}" for word in words] for name, words in FULL.items()}
    log = Log()
    chat = NativeFormat(tokenizer, ends=ends_of_turn(tokenizer))
    policy = ScriptedPolicy(scripts, tokenizer)
    group = play({}, slots=4, log=log, policy=policy, chat=chat, roots=1)
    assert [t.info["path"] for t in group] == [list(path) for path in ("abc1", "abd2", "afg3", "afh4")]
    assert [(t.parent_id, t.fork_turn) for t in group] == [(None, None), ("e-0", 2), ("e-0", 1), ("e-2", 2)]
    stems = [[(s.ids, s.row) for s in t.segments if s.turn < 2] for t in group]
    assert stems[0] == stems[1]
    assert stems[2] == stems[3]
    assert {len(t.row_slices) for t in group} == {4 if drops_thinking else 1}
    assert len(log.steps) == len(set(log.steps)) == 11
    trained = [sorted({s.turn for s in t.segments if s.trained and s.logprobs}) for t in group]
    assert trained == [[0, 1, 2, 3], [2, 3], [1, 2, 3], [2, 3]]


def test_no_turn_is_executed_twice_and_every_fork_is_closed() -> None:
    """Eleven edges, eleven steps: the path of each is new."""
    log = Log()
    group = play(FULL, slots=4, log=log, roots=1)
    edges = {" ".join(turn.action for turn in t.turns[:end]) for t in group for end in range(1, 5)}
    assert len(edges) == 11
    assert sorted(log.steps) == sorted(edges)
    assert (log.opened, log.closed) == (3, 3)  # the first environment is its maker's to close


def test_each_turn_is_trained_in_one_leaf_and_its_tokens_are_counted_once() -> None:
    group = play(FULL, slots=4, roots=1)
    trained = [
        [segment.turn for segment in t.segments if segment.trained and segment.logprobs] for t in group
    ]
    assert trained == [[0, 1, 2, 3], [2, 3], [1, 2, 3], [2, 3]]
    assert sum(int(t.loss_mask.sum()) for t in group) == 22  # eleven turns of one letter and the end mark
    assert sum(t.info["strategy"]["sampled_tokens"] for t in group) == 22
    assert sum(t.info["strategy"]["tree_branches"] for t in group) == 3


def credits(name: str, group: Sequence[Trajectory], **options: Any) -> dict[str, float]:
    """The credit of each trained turn, by its path."""
    found = {}
    for trajectory, values in zip(group, get_estimator(name, options)(group), strict=True):
        for turn in {s.turn for s in trajectory.segments if s.trained and s.logprobs}:
            mine = values[(trajectory.turn_index == turn) & trajectory.loss_mask]
            assert np.ptp(mine) == 0
            found["".join(t.action for t in trajectory.turns[: turn + 1])] = float(mine[0])
    return found


def test_sibling_credit_of_real_rollouts() -> None:
    """Values of turns 1: b (1 + 2) / 2 = 1.5, f 3.5; of turns 2: c 1, d 2, g 3, h 4.

    The last turns have no sibling and take that of the turn before. A turn counts four leaves over the siblings met on the
    way: 4 / 2 and 4 / 4.
    """
    group = play(FULL, slots=4, roots=1)
    assert credits("sibling", group) == pytest.approx(
        {
            "a": 0.0,
            "ab": (1.5 - 3.5) * 2,
            "af": (3.5 - 1.5) * 2,
            "abc": -1.0,
            "abc1": -1.0,
            "abd": 1.0,
            "abd2": 1.0,
            "afg": -1.0,
            "afg3": -1.0,
            "afh": 1.0,
            "afh4": 1.0,
        }
    )


def test_tree_credit_of_real_rollouts() -> None:
    """Depth 1: leaves behind b 1.5, behind f 3.5, deviation sqrt 2; depths 2 and 3: 1, 2, 3, 4, deviation sqrt(5/3)."""
    group = play(FULL, slots=4, roots=1)
    by_depth = [-1.5, -0.5, 0.5, 1.5] / np.sqrt(5 / 3)
    expected = {"a": 0.0, "ab": -(0.5**0.5), "af": 0.5**0.5}
    for name, value in zip(("abc", "abd", "afg", "afh"), by_depth, strict=True):
        expected |= {name: value}
    for name, value in zip(("abc1", "abd2", "afg3", "afh4"), by_depth, strict=True):
        expected |= {name: value}
    assert credits("tree", group) == pytest.approx(expected, abs=1e-6)


def test_a_branch_that_ends_early_leaves_its_lanes_unplayed() -> None:
    group = play({"e-0": ("a", "1"), "e-2": ("f", "g", "3"), "e-3": ("h", "4")}, slots=4, roots=1)
    assert [t.id for t in group] == ["e-0", "e-2", "e-3"]


def test_width_depth_and_roots_bound_the_leaves() -> None:
    wide = play({f"e-{i}": ("a", "1", "1") for i in range(6)}, slots=6, roots=1, width=3, depth=1)
    assert [(t.id, t.fork_turn) for t in wide] == [("e-0", None), ("e-2", 1), ("e-4", 1)]
    flat = play({f"e-{i}": ("a", "1") for i in range(5)}, slots=5, roots=2, depth=0)
    assert [t.id for t in flat] == ["e-0", "e-2"]
    rooted = play({f"e-{i}": ("1",) for i in range(3)}, slots=3, roots=9)
    assert [t.parent_id for t in rooted] == [None, None, None]
    assert shares(range(3, 8), 2) == [range(3, 5), range(5, 8)]


def test_at_a_failure_the_state_before_it_is_forked() -> None:
    log = Log()
    scripts = {"e-0": ("a", "oops", "1"), "e-1": ("fine", "2")}
    group = play(scripts, slots=2, log=log, roots=1, fork_at="failure")
    assert lineage(group) == [
        ("e-0", None, None, ["a", "oops", "1"]),
        ("e-1", "e-0", 1, ["a", "fine", "2"]),
    ]
    assert [t.info["path"] for t in group] == [["a", "oops", "1"], ["a", "fine", "2"]]
    assert sorted(log.steps) == ["a", "a fine", "a fine 2", "a oops", "a oops 1"]
    assert [t.id for t in play({"e-0": ("a", "1")}, slots=2, roots=1, fork_at="failure")] == ["e-0"]


class Unsure(ScriptedPolicy):
    """Is unsure of one word."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        done = await super().generate(prompt_ids, sampling, episode=episode)
        return replace(done, logprobs=(-2.0 if done.text == "hm" else -0.1,) * len(done.ids))


def test_where_the_policy_is_unsure_the_state_before_is_forked() -> None:
    policy = Unsure({"e-0": ("a", "hm", "1"), "e-1": ("b", "2")})
    group = play({}, slots=2, policy=policy, roots=1, fork_at="surprise", surprise=1.5)
    assert lineage(group) == [("e-0", None, None, ["a", "hm", "1"]), ("e-1", "e-0", 1, ["a", "b", "2"])]


def test_pruned_leaves_stay_in_the_statistics_and_are_not_trained() -> None:
    """Half of four: the best (e-3, 4) and the worst (e-0, 1). What is behind a kept leaf stays trained."""
    group = play(FULL, slots=4, roots=1, keep=0.5)
    assert [[s.turn for s in t.segments if s.trained and s.logprobs] for t in group] == [
        [0, 1, 2, 3],
        [],
        [1],  # af lies behind e-3 as well, and e-2 is its first holder
        [2, 3],
    ]
    assert len(group) == 4


@pytest.mark.parametrize(("step", "pruned"), [(1, [0, 1]), (2, [1, 2]), (4, [2, 3]), (6, [0, 1])])
def test_a_window_of_turns_that_are_not_trained_moves_over_the_tree(step: int, pruned: list[int]) -> None:
    """Two of four turns, a turn further every two steps: floor(step / 2) mod 3."""
    options: dict[str, Any] = {"slots": 4, "roots": 1, "hold": 2, "turns": 4, "step": step}
    whole, group = play(FULL, **options), play(FULL, pruned=2, **options)
    trained = [[[s.turn for s in t.segments if s.trained and s.logprobs] for t in g] for g in (whole, group)]
    assert trained[1] == [[turn for turn in mine if turn not in pruned] for mine in trained[0]]
    assert [t.reward for t in group] == [t.reward for t in whole]
    assert trained[1] != trained[0]


@pytest.mark.parametrize("options", [{"pruned": -1}, {"pruned": 4}, {"pruned": 1, "window": 2}], ids=str)
def test_what_is_pruned_has_bounds(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=f"pruned={options['pruned']}"):
        TreeStrategy(**options)  # type: ignore[arg-type]


def test_a_leaf_lost_to_a_fault_hands_its_share_on() -> None:
    group = play(FULL, slots=4, roots=1)
    unmarked = [replace(t, segments=tuple(replace(s, trained=True) for s in t.segments)) for t in group]
    marked = trained_once([replace(unmarked[0], valid=False), *unmarked[1:]])
    assert [s.turn for s in marked[1].segments if s.trained and s.logprobs] == [0, 1, 2, 3]
    assert marked[0] is not group[0]
    assert marked[0].segments == unmarked[0].segments


def test_an_environment_that_cannot_be_forked_now_plays_on_alone() -> None:
    group = play({"e-0": ("a", "b", "1")}, slots=2, roots=1, broken=SnapshotRefused("threads"))
    assert [(t.id, t.valid) for t in group] == [("e-0", True)]


def test_a_fork_that_fails_is_a_fault_of_that_branch() -> None:
    group = play({"e-0": ("a", "b", "1")}, slots=2, roots=1, broken=SnapshotError("no memory"))
    assert [(t.id, t.end_reason) for t in group] == [("e-0", EndReason.ENV_FAULT)]


def test_forks_are_closed_when_the_step_is_given_up() -> None:
    """A policy that cannot be asked ends the run; no interpreter may stay behind."""

    class Unusable(ScriptedPolicy):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
        ) -> Completion:
            if episode == "e-1":
                raise ConfigurationError("no key")
            return await super().generate(prompt_ids, sampling, episode=episode)

    log = Log()
    with pytest.raises(ConfigurationError, match="no key"):
        play({}, slots=2, log=log, policy=Unusable({"e-0": ("a", "b", "c", "1")}), roots=1)
    assert (log.opened, log.closed) == (1, 1)


def test_interpreters_fork_with_their_names() -> None:
    (task,) = generate_code_tasks(1)
    scripts = {
        "e-0": ("<python>x = 1</python>", "<python>x += 1; x</python>", "<submit></submit>"),
        "e-1": ("<python>x += 10; x</python>", "<submit></submit>"),
    }
    executor = FakeExecutor()
    specs = [EpisodeSpec(Code(tasks=[task], executor=executor), task, i, "g") for i in range(2)]
    config = RolloutConfig(turn_tokens=500, context_tokens=9000)
    context = RolloutContext(ScriptedPolicy(scripts), InlineFormat(TOKENIZER), config, TOKENIZER.decode)
    (group,) = asyncio.run(play_groups([specs], TreeStrategy(roots=1), context))
    shown = [t.turns[1].observation[0].text.strip() for t in group]
    assert shown == ["<output>\n2\n</output>", "<output>\n11\n</output>"]
    assert executor.programs.count("x = 1") == 1


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\b2\b.*\b1\b.*\b2\b.*\b1\b"):
        TreeStrategy(width=1)
