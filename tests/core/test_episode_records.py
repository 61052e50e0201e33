"""What an episode hands on and what its record keeps: settings of the policy, seeds, gates, ends, errors, copies."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.env import AsyncEnv, Env
from agentenv.core.images import PlacedImage
from agentenv.core.rollout import EpisodeSpec, EpisodeState, RolloutConfig, open_episode, rollout, sample
from agentenv.core.trajectory import SegmentKind, Trajectory, Turn
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
from agentenv.errors import ConfigurationError, EnvFault, PolicyRefusal
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy

TASK = Task("t", "Who?", ("Ada",))
CHAT = InlineFormat(ByteTokenizer())
CONFIG = RolloutConfig(context_tokens=200, turn_tokens=50)


class Listener(AsyncEnv[dict[str, Any]]):
    """Hears every word with a reward of 0.25; ``ends`` says how a word ends the episode."""

    def __init__(self, ends: Callable[["Listener", str], Step | None] = lambda env, word: None) -> None:
        super().__init__()
        self.ends = ends
        self.posed: list[tuple[int | None, Any]] = []

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed)
        self.state = {}
        self.posed.append((seed, (options or {})["task"]))
        return (Message("user", (options or {})["task"].question),), {"task_id": (options or {})["task"].id}

    async def astep(self, action: str) -> Step:
        if (ended := self.ends(self, action)) is not None:
            return ended
        heard = ToolResult("ear", ToolStatus.ERROR, action)
        return self.result((Message("tool", "."),), reward=0.25, valid=False, tool_results=(heard,))


class Watched(ScriptedPolicy):
    """Notes what it is asked with; ``change`` alters what it says."""

    def __init__(self, *words: str, change: Callable[[Completion], Completion] = lambda said: said) -> None:
        super().__init__({f"e-{i}": words for i in range(4)})
        self.change = change
        self.asked: list[Sampling] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.asked.append(sampling)
        return self.change(await super().generate(prompt_ids, sampling, episode=episode))


def run(policy: Any, *specs: EpisodeSpec, config: RolloutConfig = CONFIG) -> list[Trajectory]:
    return asyncio.run(rollout(specs, policy, CHAT, config, name="e"))


def bye(env: Listener, word: str) -> Step | None:
    return env.result((), reward=1.0, end=EndReason.ANSWERED, answer=word) if word == "bye" else None


def test_the_policy_is_asked_as_the_run_says() -> None:
    policy = Watched("one", "bye")
    config = CONFIG.model_copy(
        update={"temperature": 0.5, "top_p": 0.75, "stop": ("]",), "turn_tokens": 9, "context_tokens": 20}
    )
    run(policy, EpisodeSpec(Listener(bye), TASK, 3), config=config)
    first, second = policy.asked
    assert (first.temperature, first.top_p, first.stop, first.max_tokens) == (0.5, 0.75, ("]",), 9)
    # "Who?" and a line end take 5 ids, "one" with its end 4 and the observation 1: 10 of 20 are left.
    assert second.max_tokens == 9
    small = Watched("one", "bye")
    run(small, EpisodeSpec(Listener(bye), TASK, 3), config=config.model_copy(update={"context_tokens": 13}))
    assert [asked.max_tokens for asked in small.asked] == [8, 3]


def test_seeds_differ_by_episode_by_turn_and_by_attempt() -> None:
    policy = Watched("one", "two", "bye")
    run(policy, *(EpisodeSpec(Listener(bye), TASK, seed) for seed in (0, 1)))
    assert len({asked.seed for asked in policy.asked}) == len(policy.asked) == 6

    async def attempts() -> set[int]:
        again = Watched(*["one"] * 3)
        state = await open_episode(EpisodeSpec(Listener(bye), TASK, 0), again, CHAT, CONFIG, episode="e-0")
        for attempt in range(3):
            await sample(state.copy(), again, CONFIG, attempt=attempt)
        return {asked.seed for asked in again.asked}

    assert len(asyncio.run(attempts())) == 3


def test_an_environment_is_reset_to_the_task_under_the_seed_of_its_episode() -> None:
    env = Listener(bye)
    run(Watched("bye"), EpisodeSpec(env, TASK, 7))
    assert env.posed == [(7, TASK)]


class Plain(Env[int]):
    """An environment of plain functions that notes its seed."""

    seeds: ClassVar[list[int | None]] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.state = 0
        self.seeds.append(seed)
        return (Message("user", "Hi"),), {"task_id": TASK.id}

    def step(self, action: str) -> Step:
        self.state += 1
        return self.result((), reward=1.0, end=EndReason.ANSWERED, answer=action)

    def anchor_key(self) -> str:
        return str(self.state)


def test_an_environment_of_plain_functions_has_the_seed_and_the_key_of_the_state_before() -> None:
    (t,) = run(Watched("bye"), EpisodeSpec(Plain(), TASK, 9))
    assert (t.valid, t.reward, t.turns[0].anchor_key, Plain.seeds) == (True, 1.0, "0", [9])


def test_a_turn_keeps_what_the_environment_said_of_it() -> None:
    (t,) = run(Watched("one", "bye"), EpisodeSpec(Listener(bye), TASK, 0))
    turn = t.turns[0]
    assert (turn.observation, turn.reward, turn.valid) == ((Message("tool", "."),), 0.25, False)
    assert [(result.name, result.status) for result in turn.tool_results] == [("ear", ToolStatus.ERROR)]
    assert min(turn.policy_seconds, turn.env_seconds) > 0
    assert t.turns[1].valid


def test_only_a_gate_that_closes_gives_an_episode_up() -> None:
    """An aborted episode has no reward; the gate is not asked about one that has ended by itself."""
    asked: list[int] = []

    def gate(state: EpisodeState) -> bool:
        assert state.ended is None
        asked.append(len(state.turns))
        return len(state.turns) < 2

    (given_up,) = run(Watched("one", "two", "bye"), EpisodeSpec(Listener(bye), TASK, 0, gate=gate))
    assert (given_up.end_reason, given_up.reward, len(given_up.turns)) == (EndReason.ABORTED, 0.0, 2)
    assert given_up.error
    (ended,) = run(Watched("one", "bye"), EpisodeSpec(Listener(bye), TASK, 0, gate=gate))
    assert (ended.end_reason, ended.reward) == (EndReason.ANSWERED, 1.25)
    assert asked == [1, 2, 1]


def test_an_end_that_the_environment_calls_a_fault_has_no_reward_and_its_text() -> None:
    def broken(env: Listener, word: str) -> Step | None:
        return (
            env.result((), reward=1.0, end=EndReason.ENV_FAULT, error="no \ud800 disk")
            if word == "bye"
            else None
        )

    (t,) = run(Watched("one", "bye"), EpisodeSpec(Listener(broken), TASK, 0))
    assert (t.valid, t.end_reason, t.reward, t.error) == (False, EndReason.ENV_FAULT, 0.0, "no ? disk")
    assert [turn.reward for turn in t.turns] == [0.25, 1.0]


def test_an_end_that_is_no_fault_keeps_its_reward_and_has_no_error() -> None:
    def late(env: Listener, word: str) -> Step | None:
        if word != "bye":
            return None
        return env.result((), reward=0.5, end=EndReason.TURN_LIMIT, truncated=True, error="late")

    (t,) = run(Watched("one", "bye"), EpisodeSpec(Listener(late), TASK, 0, "group"))
    assert (t.valid, t.end_reason, t.reward, t.error) == (True, EndReason.TURN_LIMIT, 0.75, "")
    assert (t.info, t.group_id, t.id) == ({"error": "late"}, "group", "e-0")


def test_a_policy_without_log_probs_of_its_own_is_no_fault() -> None:
    def textual(said: Completion) -> Completion:
        return replace(said, logprobs=(math.nan,) * len(said.ids), exact_tokens=False)

    (t,) = run(Watched("bye", change=textual), EpisodeSpec(Listener(bye), TASK, 0))
    assert (t.valid, t.reward) == (True, 1.0)
    assert [s.exact_tokens for s in t.segments if s.kind is SegmentKind.POLICY] == [False]


def test_a_lone_surrogate_of_the_policy_reaches_no_environment() -> None:
    (t,) = run(
        Watched("one", "bye", change=lambda said: replace(said, text=said.text.replace("one", "\udc80é"))),
        EpisodeSpec(Listener(bye), TASK, 0),
    )
    assert (t.valid, t.turns[0].action) == (True, "?é")


def test_a_policy_that_cannot_be_asked_ends_the_run() -> None:
    def refused(said: Completion) -> Completion:
        raise ConfigurationError("no such model")

    with pytest.raises(ConfigurationError, match="no such model"):
        run(Watched("one", change=refused), EpisodeSpec(Listener(), TASK, 0))


def test_one_prompt_without_room_fails_its_own_episode() -> None:
    long = Task("long", "Who? " * 100, ("Ada",))
    good, small = run(
        Watched("bye"), EpisodeSpec(Listener(bye), TASK, 0), EpisodeSpec(Listener(bye), long, 1)
    )
    assert (good.valid, good.reward) == (True, 1.0)
    assert (small.valid, small.end_reason, small.reward) == (False, EndReason.ENV_FAULT, 0.0)
    assert "'long'" in small.error


@pytest.mark.parametrize("info", [{}, {"task_id": "other"}])
def test_an_environment_that_poses_another_task_is_at_fault(info: dict[str, Any]) -> None:
    class Other(Listener):
        async def areset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Observation, Info]:
            opening, _ = await super().areset(seed=seed, options=options)
            return opening, info

    (t,) = run(Watched("bye"), EpisodeSpec(Other(bye), TASK, 0))
    assert (t.valid, t.end_reason) == (False, EndReason.ENV_FAULT)
    assert "'t'" in t.error


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    for error in (EnvFault("<" + "x" * 50_000 + ">"), ValueError("<" + "x" * 50_000 + "\ud800>")):
        state = EpisodeState(EpisodeSpec(Listener(), TASK, 0), "e")
        state.fail(EndReason.ENV_FAULT, error)
        assert state.ended is not None
        text = state.ended.error
        assert 10_000 < len(text) < 21_000
        assert text.endswith(">")
        assert text.startswith("EnvFault: <" if isinstance(error, EnvFault) else ("Traceback", "ValueError"))
        text.encode()


def test_a_copy_of_a_record_goes_its_own_way() -> None:
    state = EpisodeState(EpisodeSpec(Listener(), TASK, 0), "e")
    state.add(SegmentKind.PROMPT, (1, 2), 0)
    state.turns.append(Turn("a", reward=0.5))
    kept = state.copy()
    state.add(SegmentKind.POLICY, (3,), 0, logprobs=(-1.0,))
    state.turns.append(Turn("b", reward=0.25))
    assert (kept.ids, len(kept.segments), kept.reward) == ([1, 2], 1, 0.5)
    assert (state.ids, len(state.segments), state.reward) == ([1, 2, 3], 2, 0.75)
    state.add(SegmentKind.ENV, (), 1)
    assert len(state.segments) == 2


def test_a_new_row_holds_nothing_of_the_one_before() -> None:
    state = EpisodeState(EpisodeSpec(Listener(), TASK, 0), "e")
    state.add(SegmentKind.PROMPT, (1, 2), 0)
    state.reopen((7, 8), 1)
    assert (state.ids, state.row) == ([7, 8], 1)
    assert [(segment.ids, segment.row, segment.turn) for segment in state.segments] == [
        ((1, 2), 0, 0),
        ((7, 8), 1, 1),
    ]


def test_an_episode_that_fails_after_a_reward_has_none() -> None:
    state = EpisodeState(EpisodeSpec(Listener(), TASK, 0), "e")
    state.turns.append(Turn("a", reward=0.5))
    state.close(state.reward, EndReason.POLICY_FAULT, {}, "down")
    assert state.ended is not None
    assert (state.ended.reward, state.ended.valid, state.ended.error) == (0.0, False, "down")


def test_an_observation_that_leaves_no_room_for_a_token_ends_the_episode_unrecorded() -> None:
    """Prompt 5, "one" with its end 4 and the observation 1 fill ten tokens."""
    policy = Watched("one", "bye")
    (full,) = run(
        policy, EpisodeSpec(Listener(bye), TASK, 0), config=CONFIG.model_copy(update={"context_tokens": 10})
    )
    assert (full.end_reason, full.valid, full.reward) == (EndReason.TOKEN_LIMIT, True, 0.25)
    assert (len(full.ids), len(policy.asked)) == (9, 1)
    policy = Watched("one", "bye")
    run(policy, EpisodeSpec(Listener(bye), TASK, 0), config=CONFIG.model_copy(update={"context_tokens": 11}))
    assert [asked.max_tokens for asked in policy.asked] == [6, 1]


class Sees(Watched):
    """Reads images."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None, images: Any = None
    ) -> Completion:
        self.shown = images
        return await super().generate(prompt_ids, sampling, episode=episode)


def sampled(policy: Any, state: EpisodeState, **more: Any) -> Completion | None:
    return asyncio.run(sample(state, policy, CONFIG, **more))


def prompted(*images: PlacedImage) -> EpisodeState:
    state = EpisodeState(EpisodeSpec(Listener(bye), TASK, 2), "e-0")
    state.add(SegmentKind.PROMPT, [1, 2, 3], 0, images=images)
    return state


def test_a_policy_is_shown_the_images_of_the_row_and_one_of_text_is_given_none() -> None:
    image = PlacedImage(b"png", 1, 1, 1)
    sees = Sees("one")
    sampled(sees, prompted(image))
    assert sees.shown == (image,)
    sampled(sees, prompted())
    assert sees.shown is None
    assert sampled(Watched("one"), prompted()) is not None  # it takes no such argument


def test_the_seed_of_a_turn_is_that_of_its_episode_its_number_and_its_attempt() -> None:
    policy, state = Watched("one", "two", "three"), prompted()
    sampled(policy, state)
    sampled(policy, state, attempt=3)
    state.turns.append(Turn("one"))
    sampled(policy, state)
    assert [asked.seed for asked in policy.asked] == [2_000_006, 2_000_006 + (3 << 52), 2_000_007]


def test_a_refusal_of_the_policy_is_its_own_doing_and_keeps_what_it_earned() -> None:
    class Refuses(Watched):
        async def generate(self, *given: Any, **options: Any) -> Completion:
            if len(self.asked) == 1:
                raise PolicyRefusal("I would rather not")
            return await super().generate(*given, **options)

    (t,) = run(Refuses("one", "two"), EpisodeSpec(Listener(bye), TASK, 0))
    assert (t.end_reason, t.valid, t.reward, t.error) == (EndReason.REFUSED, True, 0.25, "I would rather not")


def test_a_segment_for_each_version_of_the_weights() -> None:
    def change(said: Completion) -> Completion:
        return replace(
            said,
            ids=(1, 2, 3, 4),
            logprobs=(-1.0, -2.0, -3.0, -4.0),
            versions=(5, 5, 6, 5),
            exact_tokens=False,
        )

    state = prompted()
    state.turns.append(Turn("zero"))
    sampled(Watched("one", change=change), state)
    _, *made = state.segments
    assert [(s.kind, s.ids, s.logprobs, s.version, s.turn, s.exact_tokens) for s in made] == [
        (SegmentKind.POLICY, (1, 2), (-1.0, -2.0), 5, 1, False),
        (SegmentKind.POLICY, (3,), (-3.0,), 6, 1, False),
        (SegmentKind.POLICY, (4,), (-4.0,), 5, 1, False),
    ]
    assert state.ids == [1, 2, 3, 1, 2, 3, 4]
    assert state.policy_seconds > 0


def test_an_episode_without_room_for_a_token_ends_before_the_policy_is_asked() -> None:
    policy, state = Watched("one"), prompted()
    state.turns.append(Turn("zero", reward=0.5))
    assert asyncio.run(sample(state, policy, CONFIG.model_copy(update={"context_tokens": 3}))) is None
    assert policy.asked == []
    assert state.ended is not None
    assert (state.ended.end_reason, state.ended.reward) == (EndReason.TOKEN_LIMIT, 0.5)


def test_an_episode_that_is_given_up_by_its_environment_loses_what_that_costs_in_its_last_turn() -> None:
    class Costs(Listener):
        def cut_reward(self) -> float:
            return -0.75

    state = EpisodeState(EpisodeSpec(Costs(), TASK, 0, "g"), "e-0", prompt=(Message("user", "Who?"),))
    state.cut(EndReason.TOKEN_LIMIT, {"valid": True, "more": 1}, "full")
    assert state.ended is not None
    assert (state.ended.reward, state.ended.turns) == (0.0, ())  # nothing was begun
    played = EpisodeState(
        EpisodeSpec(Costs(), TASK, 0, "g"), "e-0", turns=[Turn("a", reward=0.5), Turn("b", reward=1.0)]
    )
    played.cut(EndReason.TOKEN_LIMIT, {"valid": True, "more": 1}, "full")
    ended = played.ended
    assert ended is not None
    assert [turn.reward for turn in ended.turns] == [0.5, 0.25]
    assert (ended.reward, ended.info, ended.error, ended.valid) == (0.75, {"more": 1}, "full", True)
    assert (ended.group_id, ended.id, ended.end_reason) == ("g", "e-0", EndReason.TOKEN_LIMIT)


def test_an_error_of_exactly_as_many_characters_as_are_kept_is_whole() -> None:
    state = prompted()
    state.fail(EndReason.ENV_FAULT, EnvFault("x" * 5))
    assert state.ended is not None
    assert state.ended.error == "EnvFault: xxxxx"
    assert (state.ended.reward, state.ended.valid) == (0.0, False)
