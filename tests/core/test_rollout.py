"""The episode loop: exact ids, rows, budgets, faults, deadlines, determinism, many episodes at once."""

import asyncio
import math
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat, TemplateFormat
from agentenv.core.concurrency.batching import Batcher
from agentenv.core.env import AsyncEnv
from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, never_fitted, rollout
from agentenv.core.trajectory import SegmentKind, Trajectory, to_record
from agentenv.core.types import (
    Completion,
    EndReason,
    FinishReason,
    Info,
    Message,
    Observation,
    Sampling,
    Step,
    Task,
)
from agentenv.errors import ContextTooSmall, DatasetError, EnvFault, PolicyFault
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy

TASK = Task("t", "Who?", ("Ada",))
K = SegmentKind


@dataclass
class EchoState:
    heard: int = 0


class Echo(AsyncEnv[EchoState]):
    """Repeats what it hears; ``bye`` ends the episode with reward 1, other words are worth 0.25."""

    def __init__(self, before: Callable[[str], None] = lambda action: None, *, wait_s: float = 0.0) -> None:
        super().__init__()
        self.before = before
        self.wait_s = wait_s

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed)
        self.before("reset")
        self.state = EchoState()
        return (Message("user", "Hi"),), {"task_id": options["task"].id} if options else {}

    async def astep(self, action: str) -> Step:
        self.check_running()
        self.before(action)
        await asyncio.sleep(self.wait_s)
        self.state.heard += 1
        if action == "bye":
            return self.result((), reward=1.0, end=EndReason.ANSWERED, answer=action)
        return self.result((Message("tool", f"[{action}]"),), reward=0.25)

    def anchor_key(self) -> str:
        return str(self.state.heard)


def run(
    policy: Any,
    envs: Sequence[Echo],
    *,
    chat: ChatFormat | None = None,
    seeds: Sequence[int] | None = None,
    **config: Any,
) -> list[Trajectory]:
    specs = [
        EpisodeSpec(env, TASK, seed, "g") for env, seed in zip(envs, seeds or range(len(envs)), strict=True)
    ]
    config = {"context_tokens": 200, "turn_tokens": 50} | config
    chat = chat or InlineFormat(ByteTokenizer())
    return asyncio.run(rollout(specs, policy, chat, RolloutConfig(**config), name="e"))


def scripted(*actions: str, episodes: int = 1) -> ScriptedPolicy:
    return ScriptedPolicy({f"e-{i}": actions for i in range(episodes)})


def raising(error: Exception, on: str) -> Callable[[str], None]:
    def before(action: str) -> None:
        if action == on:
            raise error

    return before


def shape(trajectory: Trajectory) -> list[tuple[str, int, int, str]]:
    decode = ByteTokenizer().decode
    return [(str(s.kind), s.turn, s.row, decode(s.ids)) for s in trajectory.segments]


def test_an_inline_episode_is_recorded_exactly() -> None:
    (t,) = run(scripted("one", "bye"), [Echo()])
    assert shape(t) == [
        ("prompt", 0, 0, "Hi\n"),
        ("policy", 0, 0, "one<|im_end|>"),
        ("env", 0, 0, "[one]"),
        ("policy", 1, 0, "bye<|im_end|>"),
    ]
    assert (t.reward, t.end_reason, t.valid, t.group_id, t.id) == (1.25, EndReason.ANSWERED, True, "g", "e-0")
    assert [(turn.action, turn.reward, turn.anchor_key) for turn in t.turns] == [
        ("one", 0.25, "0"),
        ("bye", 1.0, "1"),
    ]
    assert t.info == {"answer": "bye"}
    assert t.prompt == (Message("user", "Hi"),)


def test_parts_that_add_up_to_the_full_reward_earn_it() -> None:
    """Weights of 0.7, 0.2 and 0.1 add up to 0.9999999999999999, which no success in the trainer or a bound ever reached."""

    class Weighted(Echo):
        async def astep(self, action: str) -> Step:
            return (await super().astep(action))._replace(reward=0.7 + 0.2 + 0.1 if action == "bye" else 0.0)

    (t,) = run(scripted("one", "bye"), [Weighted()])
    assert t.reward == 1.0


def test_a_template_episode_has_glue_where_the_policy_did_not_end_its_turn() -> None:
    chat = TemplateFormat(ByteTokenizer(chat=True))
    (t,) = run(scripted("one]", "two", "bye"), [Echo()], chat=chat, stop=("]",))
    tail = "<|im_end|>\n<|im_start|>assistant\n"
    assert shape(t)[1:] == [
        ("policy", 0, 0, "one]"),
        ("format", 0, 0, "<|im_end|>"),
        ("env", 0, 0, f"\n<|im_start|>tool\n[one]]{tail}"),
        ("policy", 1, 0, "two<|im_end|>"),
        ("env", 1, 0, f"\n<|im_start|>tool\n[two]{tail}"),
        ("policy", 2, 0, "bye<|im_end|>"),
    ]
    assert t.loss_mask.sum() == len("one]") + len("two") + 1 + len("bye") + 1


class IdPolicy:
    """Gives written ids, as an engine would that samples them one by one."""

    version = 3

    def __init__(self, tokenizer: Any, *turns: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.turns = list(turns)
        self.prompts: list[list[int]] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        ids = tuple(self.turns[len(self.prompts)])
        self.prompts.append(list(prompt_ids))
        text = self.tokenizer.decode(list(ids))
        return Completion(ids, text, tuple(-float(i) for i in ids), FinishReason.STOP, self.version)

    def release(self, episode: str) -> None: ...

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [0.0] * len(ids)


def test_sampled_ids_are_never_encoded_again() -> None:
    # D14: "ab" is one piece when encoded; a sampler may well have drawn "a" and then "b".
    pytest.importorskip("transformers", reason="needs the train extra")
    from agentenv.policies.tiny import build_tokenizer

    tokenizer = build_tokenizer(["abab abab bye bye"] * 50)
    a, b = (tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "ab")
    bye = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "bye"]
    sampled = [[a, b, a, b], [b, a], bye]
    assert tokenizer.encode("abab", add_special_tokens=False) != sampled[0]
    policy = IdPolicy(tokenizer, *sampled)
    (t,) = run(policy, [Echo()], chat=InlineFormat(tokenizer))
    assert [list(s.ids) for s in t.segments if s.kind is K.POLICY] == sampled
    assert t.ids[t.loss_mask].tolist() == [i for turn in sampled for i in turn]
    assert t.logprobs[t.loss_mask].tolist() == [-float(i) for turn in sampled for i in turn]
    assert set(t.policy_version[t.loss_mask].tolist()) == {3}
    # What the engine was shown in a turn is what the record holds before it.
    for turn, prompt in enumerate(policy.prompts):
        first = int(((t.turn_index == turn) & t.loss_mask).argmax())
        assert t.ids[:first].tolist() == prompt


class UpdatedPolicy(IdPolicy):
    """New weights come after the second id of a turn."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        done = await super().generate(prompt_ids, sampling, episode=episode)
        return replace(done, versions=(3, 3, *[4] * (len(done.ids) - 2)))


def test_ids_keep_the_version_of_the_weights_that_sampled_them() -> None:
    (t,) = run(UpdatedPolicy(ByteTokenizer(), b"four", b"bye"), [Echo()])
    assert [(bytes(s.ids), s.version, s.turn) for s in t.segments if s.kind is K.POLICY] == [
        (b"fo", 3, 0),
        (b"ur", 4, 0),
        (b"by", 3, 1),
        (b"e", 4, 1),
    ]
    assert t.policy_version[t.loss_mask].tolist() == [3, 3, 4, 4, 3, 3, 4]
    assert t.logprobs[t.loss_mask].tolist() == [-float(i) for i in b"fourbye"]


def test_a_pad_or_end_id_inside_a_response_stays_where_it_is() -> None:
    # D15: a mask by pad id would lose or move it.
    tokenizer = ByteTokenizer()
    (t,) = run(IdPolicy(tokenizer, [98, 256, 0, 99, 256], list(b"bye")), [Echo()])
    assert t.segments[1].ids == (98, 256, 0, 99, 256)
    assert t.loss_mask.tolist()[3:8] == [True] * 5


class Rewriting(InlineFormat):
    """Shortens what stands in the context before every observation."""

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        return [*b"...", *super().extend([], messages)]


def test_a_format_that_rewrites_opens_a_new_row_and_both_are_recorded() -> None:
    (t,) = run(scripted("one", "two", "bye"), [Echo()], chat=Rewriting(ByteTokenizer()))
    assert shape(t) == [
        ("prompt", 0, 0, "Hi\n"),
        ("policy", 0, 0, "one<|im_end|>"),
        ("prompt", 1, 1, "...[one]"),
        ("policy", 1, 1, "two<|im_end|>"),
        ("prompt", 2, 2, "...[two]"),
        ("policy", 2, 2, "bye<|im_end|>"),
    ]
    assert len(t.row_slices) == 3
    assert t.loss_mask.sum() == 12


def test_a_fault_of_the_environment_is_no_reward() -> None:
    (t,) = run(scripted("one", "bye"), [Echo(raising(EnvFault("sandbox is down"), on="bye"))])
    assert (t.valid, t.end_reason, t.reward) == (False, EndReason.ENV_FAULT, 0.0)
    assert t.error == "EnvFault: sandbox is down"
    assert len(t.turns) == 1


def test_a_bug_in_the_environment_keeps_its_traceback() -> None:
    (t,) = run(scripted("one"), [Echo(raising(ZeroDivisionError("oops"), on="one"))])
    assert (t.valid, t.end_reason) == (False, EndReason.ENV_FAULT)
    assert "Traceback" in t.error
    assert "ZeroDivisionError: oops" in t.error


def test_a_reset_that_fails_is_a_fault_without_tokens() -> None:
    (t,) = run(scripted("one"), [Echo(raising(EnvFault("no room"), on="reset"))])
    assert (t.valid, t.end_reason, t.error) == (False, EndReason.ENV_FAULT, "EnvFault: no room")
    assert len(t.ids) == 0


def test_bad_input_is_raised_and_not_a_fault() -> None:
    with pytest.raises(DatasetError, match="no answers"):
        run(scripted("one"), [Echo(raising(DatasetError("no answers"), on="reset"))])


def test_an_engine_that_fails_is_a_fault_of_the_policy() -> None:
    (t,) = run(scripted("one"), [Echo()])
    assert (t.valid, t.end_reason, t.reward) == (False, EndReason.POLICY_FAULT, 0.0)
    assert t.error.startswith("PolicyFault: the script")


class DivergedPolicy(IdPolicy):
    """Its third log-prob is no finite number."""

    lost = math.nan

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        done = await super().generate(prompt_ids, sampling, episode=episode)
        return replace(done, logprobs=(*done.logprobs[:2], self.lost, *done.logprobs[3:]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_log_probs_that_are_not_finite_are_a_fault_of_the_policy(value: float) -> None:
    policy = DivergedPolicy(ByteTokenizer(), b"bye")
    policy.lost = value
    (t,) = run(policy, [Echo()])
    assert (t.valid, t.end_reason, t.reward) == (False, EndReason.POLICY_FAULT, 0.0)
    assert "not finite" in t.error
    assert t.response_tokens == 0


def test_one_fault_leaves_the_other_episodes_alone() -> None:
    envs = [Echo(), Echo(raising(EnvFault("down"), on="one")), Echo()]
    for deterministic in (True, False):
        got = run(scripted("one", "bye", episodes=3), envs, deterministic=deterministic)
        assert [t.valid for t in got] == [True, False, True]
        assert [t.reward for t in got] == [1.25, 0.0, 1.25]


def test_the_episode_ends_before_the_context_overflows() -> None:
    # Prompt 3, "one" and end 4, "[one]" 5: 12 of 14, and so two tokens are left for the next turn, which cuts "two".
    (t,) = run(scripted("one", "two", "bye"), [Echo()], context_tokens=14)
    assert (t.end_reason, t.valid) == (EndReason.TOKEN_LIMIT, True)
    assert [turn.action for turn in t.turns] == ["one", "tw"]
    assert shape(t)[0] == ("prompt", 0, 0, "Hi\n")
    assert len(t.ids) == 14
    assert t.reward == 0.5


def test_what_giving_up_costs_is_lost_in_a_full_context_too() -> None:
    """Or else a policy would write until the context is full; the last turn has it, and the trajectory the sum."""

    class Dear(Echo):
        def cut_reward(self) -> float:
            return -1.0

    (t,) = run(scripted("one", "two", "bye"), [Dear()], context_tokens=14)
    assert (t.end_reason, t.reward) == (EndReason.TOKEN_LIMIT, -0.5)
    assert [turn.reward for turn in t.turns] == [0.25, -0.75]
    (t,) = run(scripted("one", "two", "bye"), [Dear()])
    assert (t.end_reason, t.reward) == (EndReason.ANSWERED, 1.5)

    class Broken(Echo):
        def cut_reward(self) -> float:
            raise ValueError

    class Unknown(Echo):
        def cut_reward(self) -> float:
            return float("nan")

    for broken in (Broken(), Unknown()):
        (t,) = run(scripted("one", "two", "bye"), [broken], context_tokens=14)
        assert (t.end_reason, t.valid, t.reward) == (EndReason.ENV_FAULT, False, 0.0)


@pytest.mark.parametrize(
    ("context", "kinds"), [(12, ["prompt", "policy"]), (13, ["prompt", "policy", "env", "policy"])]
)
def test_an_observation_is_recorded_where_it_leaves_room_for_a_token(context: int, kinds: list[str]) -> None:
    """Prompt, "one" with its end and "[one]" are 12 tokens."""
    (t,) = run(scripted("one", "bye"), [Echo()], context_tokens=context)
    assert [str(s.kind) for s in t.segments] == kinds
    assert [s.turn for s in t.segments] == [0, 0, 0, 1][: len(kinds)]
    assert t.end_reason is EndReason.TOKEN_LIMIT


def test_an_observation_that_does_not_fit_is_not_recorded() -> None:
    # "one" and end make 7 of 10; "[one]" would make 12.
    (t,) = run(scripted("one", "bye"), [Echo()], context_tokens=10)
    assert t.end_reason is EndReason.TOKEN_LIMIT
    assert shape(t)[-1] == ("policy", 0, 0, "one<|im_end|>")


def test_a_prompt_that_leaves_no_room_fails_its_own_episode() -> None:
    for deterministic in (True, False):
        for t in run(
            scripted("one", episodes=2), [Echo(), Echo()], context_tokens=3, deterministic=deterministic
        ):
            assert (t.valid, t.end_reason, t.reward) == (False, EndReason.ENV_FAULT, 0.0)
            assert re.search(r"'t'.*\b3\b.*\b3\b", t.error)
            assert never_fitted(t)


class Small(ScriptedPolicy):
    """An engine with a context of its own."""

    def __init__(self, context: int, *actions: str) -> None:
        super().__init__({"e-0": actions})
        self.context = context

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        if len(prompt_ids) >= self.context:
            raise ContextTooSmall(f"{len(prompt_ids)} tokens")
        return await super().generate(prompt_ids, sampling, episode=episode)


def test_the_engine_s_own_context_ends_an_episode_as_well() -> None:
    (t,) = run(Small(10, "one", "bye"), [Echo()])
    assert (t.end_reason, t.valid, t.reward) == (EndReason.TOKEN_LIMIT, True, 0.25)
    (t,) = run(Small(3, "one"), [Echo()])
    assert (t.valid, t.end_reason, never_fitted(t)) == (False, EndReason.ENV_FAULT, True)
    assert "3 tokens" in t.error


def test_turn_tokens_bound_one_turn() -> None:
    (t,) = run(scripted("abcdef", "bye"), [Echo()], turn_tokens=4)
    assert [turn.action for turn in t.turns] == ["abcd", "bye"]


def test_a_step_past_the_deadline_is_a_fault_that_names_it() -> None:
    (t,) = run(scripted("one"), [Echo(wait_s=5.0)], deadline_s=0.05)
    assert (t.end_reason, t.valid) == (EndReason.ENV_FAULT, False)
    assert re.match(r"EnvFault: .*\bstep\b.*\b0\.05\b", t.error)


class Slow(ScriptedPolicy):
    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        await asyncio.sleep(5)
        raise PolicyFault("never reached")


def test_a_policy_past_the_deadline_is_a_fault_that_names_it() -> None:
    (t,) = run(Slow({}), [Echo()], deadline_s=0.05)
    assert (t.end_reason, t.error) == (
        EndReason.POLICY_FAULT,
        "PolicyFault: the policy took longer than 0.05 s",
    )


class Dice:
    """Draws words from the seed of the request; batches them, with a thread that takes its time."""

    version = 0

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.released: list[str] = []
        self._batcher = Batcher[tuple[int, ...], Completion](self._run, rank=1)

    def _run(self, requests: list[tuple[int, ...]]) -> list[Completion]:
        self.batches.append(len(requests))
        time.sleep(0.001 * random.random())
        return [self._draw(seed) for seed, *_ in requests]

    def _draw(self, seed: int) -> Completion:
        word = random.Random(seed).choice([*"abcdefgh", "bye"])
        ids = (*word.encode(), 256)
        return Completion(ids, word, (-0.5,) * len(ids), FinishReason.EOS)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        return await self._batcher.submit((sampling.seed, *prompt_ids))

    def release(self, episode: str) -> None:
        self.released.append(episode)

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [0.0] * len(ids)


@pytest.mark.parametrize("deterministic", [True, False])
def test_equal_seeds_give_equal_records(deterministic: bool) -> None:
    def play() -> list[dict[str, Any]]:
        envs = [Echo(wait_s=random.random() / 500) for _ in range(40)]
        return [to_record(t) for t in run(Dice(), envs, seeds=range(40), deterministic=deterministic)]

    first = play()
    assert play() == first
    assert len({str(record["segments"]) for record in first}) > 20
    assert [record["id"] for record in first] == [f"e-{i}" for i in range(40)]


def test_deterministic_batches_do_not_depend_on_time() -> None:
    def batches() -> list[int]:
        dice = Dice()
        run(dice, [Echo(wait_s=random.random() / 200) for _ in range(20)])
        return dice.batches

    first = batches()
    assert first[0] == 20
    assert batches() == first


def test_every_episode_is_released() -> None:
    dice = Dice()
    run(dice, [Echo(), Echo(raising(EnvFault("down"), on="a")), Echo()])
    assert sorted(dice.released) == ["e-0", "e-1", "e-2"]


def test_each_turn_samples_under_a_seed_of_its_own() -> None:
    seeds: list[int] = []

    class Noting(ScriptedPolicy):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
        ) -> Completion:
            seeds.append(sampling.seed)
            return await super().generate(prompt_ids, sampling, episode=episode)

    script = {f"e-{i}": ("one", "two", "bye") for i in range(10)}
    run(Noting(script), [Echo() for _ in range(10)])
    assert len(set(seeds)) == len(seeds) == 30


class Forgetful(Echo):
    """Tells the whole context anew each time: a system message and the last word alone."""

    async def astep(self, action: str) -> Step:
        step = await super().astep(action)
        heard = (Message("system", "Forget."), Message("user", f"<{action}{action}>"))
        return step._replace(observation=heard if step.observation else ())


def test_an_observation_with_a_system_message_is_a_context_of_its_own() -> None:
    (trajectory,) = run(scripted("a", "b", "bye"), [Forgetful()])
    rows = [ByteTokenizer().decode(trajectory.ids[part].tolist()) for part in trajectory.row_slices]
    end = ByteTokenizer.eos_token
    assert rows == [f"Hi\na{end}", f"Forget.\n\n<aa>\nb{end}", f"Forget.\n\n<bb>\nbye{end}"]
    assert ByteTokenizer().decode(trajectory.ids[trajectory.loss_mask].tolist()) == f"a{end}b{end}bye{end}"


def test_a_whole_context_that_does_not_fit_ends_the_episode() -> None:
    (trajectory,) = run(scripted("a", "b" * 40, "bye"), [Forgetful()], context_tokens=60)
    assert (trajectory.end_reason, trajectory.valid) == (EndReason.TOKEN_LIMIT, True)


class Textual(IdPolicy):
    """An engine that gives text alone."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        return replace(await super().generate(prompt_ids, sampling, episode=episode), exact_tokens=False)


def test_ids_that_only_code_text_are_marked_in_the_record() -> None:
    (t,) = run(Textual(ByteTokenizer(), b"bye"), [Echo()])
    assert [s.exact_tokens for s in t.segments] == [True, False]
