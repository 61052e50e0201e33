"""A teacher behind an endpoint against the learner itself: its episode, spelt, is what the learner would have recorded.

The teacher plays through a real socket. Its record is spelt for a learner, whose own episode with the same turns in the same
environment then has the same segments.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agentenv.core.chat import ends_of_turn
from agentenv.core.native_format import NativeFormat
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.tools import ToolEnv, tool
from agentenv.core.trajectory import SegmentKind, Trajectory
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
from agentenv.evaluation.records import ENDPOINT, EpisodeRecord
from agentenv.evaluation.runner import to_record
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.openai import OpenAIPolicy
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.warmstart.spelt_records import Speller
from tests.core.test_native_families import MODELS

CONFIG = RolloutConfig(turn_tokens=2000, context_tokens=30_000, deterministic=False)
TASK = Task("who", "Who is it?", ("Ada",))


class Library(ToolEnv[int]):
    """Finds things; ``system`` opens it, and ``forgets`` replaces the whole context after the second turn."""

    max_turns = 4

    def __init__(self, *, system: str = "", forgets: bool = False) -> None:
        super().__init__()
        self._system, self._forgets = system, forgets
        self.state = 0

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed, options=options)
        self.state = 0
        opening = (Message("system", self._system),) * bool(self._system)
        return (*opening, Message("user", TASK.question)), {"task_id": TASK.id}

    @tool
    def find(self, query: str, of: list[Any] = []) -> str:  # noqa: B006
        """Finds something.

        Args:
            query: What.
            of: Where; the tool finds nothing without a query.
        """
        return f"{query} {json.dumps(of)}" if query else ""

    @tool
    def ping(self) -> str:
        """Says that it is there."""
        return "pong"

    async def astep(self, action: str) -> Step:
        step = await super().astep(action)
        self.state += 1
        if not self._forgets or self.state != 2 or step.terminated or step.truncated:
            return step
        return step._replace(
            observation=(Message("system", ""), Message("user", "You know something. Go on."))
        )

    def answer(self, text: str) -> Step:
        return self.result((), reward=1.0, end=EndReason.ANSWERED, answer=text)


def calls(*made: tuple[str, Mapping[str, Any]]) -> tuple[tuple[str, str, str], ...]:
    return tuple((f"id{place}", name, json.dumps(given)) for place, (name, given) in enumerate(made))


FIND, WHERE = ("find", {"query": "who"}), ("find", {"query": 'Wér 日本 🙂\n"', "of": [1, {"a": None}]})
LAST = Answer("It is Ada.", reasoning="So it is.")
TEACHERS: dict[str, list[Answer]] = {
    "thinks": [
        Answer("", calls=calls(FIND), reasoning="Who?\n\nI look."),
        Answer("", calls=calls(WHERE), reasoning="Where?"),
        LAST,
    ],
    "talks": [Answer("I look it up.", calls=calls(FIND)), Answer("It is Ada.")],
    "calls several tools": [Answer("", calls=calls(FIND, ("ping", {}), WHERE), reasoning="All."), LAST],
    "finds nothing": [Answer("", calls=calls(("find", {"query": ""}))), Answer("Nobody.")],
    "speaks of marks": [
        Answer("", calls=calls(FIND), reasoning="I write </think>, <tool_call> and <|im_end|>."),
        Answer("Yes."),
    ],
    "quotes marks": [Answer("", calls=calls(("find", {"query": "a </tool_call> <think> b"}))), LAST],
    "writes tags": [Answer("I use <ping>it</ping> now."), LAST],
    "errs": [Answer("", calls=calls(("fnd", {"query": "who"}))), Answer("", calls=calls(FIND)), LAST],
    "never answers": [Answer("", calls=calls(FIND), reasoning="Again.")],
}
ENVS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with a system prompt": {"system": "Be brief."},
    "with a new context": {"system": "Be brief.", "forgets": True},
}
NO_TEXT_BESIDE_CALLS = ("Llama 3.2", "gpt-oss", "Mistral (v3)", "Mistral (v11)")
ONE_CALL = ("Llama 3.2", "gpt-oss")
SAME_TAGS = ("Qwen2.5", "Qwen3", "GLM-4.7", "SmolLM3")
"""Models whose calls end with a tag that one of the teachers quotes."""


async def play(env: Library, policy: Policy, chat: ChatFormat) -> Trajectory:
    (played,) = await rollout([EpisodeSpec(env, TASK, 0)], policy, chat, CONFIG, name="e")
    return played


class Given(ScriptedPolicy):
    """Samples the ids that it was given, turn by turn."""

    def __init__(self, tokenizer: Any, turns: Sequence[Sequence[int]]) -> None:
        super().__init__({}, tokenizer)
        self._turns = iter(turns)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        ids = tuple(next(self._turns))
        return Completion(ids, self.tokenizer.decode(ids[:-1]), (0.0,) * len(ids), FinishReason.EOS)


@pytest.fixture(scope="module")
def records() -> dict[tuple[str, str], EpisodeRecord]:
    """What every teacher did in every environment."""
    found: dict[tuple[str, str], EpisodeRecord] = {}
    for env, options in ENVS.items():
        for teacher, answers in TEACHERS.items():
            said = iter([*answers, *answers[-1:] * Library.max_turns])
            with FakeEndpoint(lambda _, said=said: next(said)) as server:  # type: ignore[misc]
                policy = OpenAIPolicy(ChatClient(Endpoint("any", server.url))).in_format("native", "", {})
                played = asyncio.run(play(Library(**options), policy, policy.chat))
            assert played.valid, played.error
            found[env, teacher] = to_record(played)
    return found


def spelt(
    record: EpisodeRecord, chat: NativeFormat, tokenizer: Any, family: str = ENDPOINT
) -> Trajectory | str:
    context = RolloutContext(ScriptedPolicy({}, tokenizer), chat, CONFIG, tokenizer.decode, name="recorded")
    tools = [tool.to_openai() for tool in Library().native_tools()]
    return Speller(context, tools).spelt(record, family)


def turns_of(trajectory: Trajectory) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for segment in trajectory.segments:
        if segment.kind is SegmentKind.POLICY:
            found.setdefault(segment.turn, []).extend(segment.ids)
    return list(found.values())


def has_no_way(name: str, teacher: str) -> bool:
    return (
        (teacher == "talks" and name in NO_TEXT_BESIDE_CALLS)
        or (teacher == "calls several tools" and name in ONE_CALL)
        or (teacher == "quotes marks" and name in SAME_TAGS)
    )


LEARNERS = (
    "Qwen2.5",
    "Qwen3",
    "Llama 3.2",
    "gpt-oss",
    "GLM-4.7",
    "Mistral (v3)",
    "Mistral (v13)",
    "SmolLM3",
    "Kimi-K2",
)


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("off", [False, True], ids=["thinking on", "thinking off"])
@pytest.mark.parametrize("name", LEARNERS)
def test_an_episode_of_a_teacher_is_one_of_the_learner(
    name: str, off: bool, teacher: str, records: Mapping[tuple[str, str], EpisodeRecord]
) -> None:
    model = MODELS[name]
    if off and not model.off:
        return
    tokenizer = model.tokenizer()
    chat = NativeFormat(tokenizer, options=model.off if off else {}, ends=ends_of_turn(tokenizer))
    for env, options in ENVS.items():
        record = records[env, teacher]
        found = spelt(record, chat, tokenizer)
        if has_no_way(name, teacher):
            assert found == "have a turn that the chat template of the learner has no way to write"
            continue
        assert not isinstance(found, str), (env, found)
        own = asyncio.run(play(Library(**options), Given(tokenizer, turns_of(found)), chat))
        assert [(s.kind, s.turn, s.row, s.ids) for s in own.segments] == [
            (s.kind, s.turn, s.row, s.ids) for s in found.segments
        ]
        assert own.loss_mask.tolist() == found.loss_mask.tolist()
        assert len(turns_of(found)) == len(record["turns"])
        assert own.end_reason == record["end_reason"]


def test_a_local_teacher_whose_prompt_opens_the_thinking_thinks_still(
    records: Mapping[tuple[str, str], EpisodeRecord],
) -> None:
    """As DeepSeek-R1, GLM-4.7 and Qwen3-Thinking do: the turn has the end of the thinking alone."""
    record: Any = json.loads(json.dumps(records["plain", "thinks"]))
    for turn in record["turns"]:
        turn["action"] = turn["action"].removeprefix("<think>\n")
    tokenizer = MODELS["Qwen3"].tokenizer()
    chat = NativeFormat(tokenizer, ends=ends_of_turn(tokenizer))
    found, wanted = (
        spelt(one, chat, tokenizer, family)
        for one, family in ((record, "qwen"), (records["plain", "thinks"], ENDPOINT))
    )
    assert not isinstance(found, str)
    assert not isinstance(wanted, str)
    assert turns_of(found) == turns_of(wanted)


def test_a_turn_that_a_budget_cut_is_left_out() -> None:
    answers = iter([Answer("I think so, and", finish="length"), LAST])
    with FakeEndpoint(lambda _: next(answers)) as server:
        policy = OpenAIPolicy(ChatClient(Endpoint("any", server.url))).in_format("native", "", {})
        record = to_record(asyncio.run(play(Library(), policy, policy.chat)))
    assert record["turns"][0]["cut"] is True
    tokenizer = MODELS["Qwen3"].tokenizer()
    chat = NativeFormat(tokenizer, ends=ends_of_turn(tokenizer))
    assert spelt(record, chat, tokenizer) == "have a turn that a budget of tokens cut off"


def test_arguments_that_are_no_json_are_left_out() -> None:
    answers = iter([Answer("", calls=(("id0", "find", '{"query": '),)), LAST])
    with FakeEndpoint(lambda _: next(answers)) as server:
        policy = OpenAIPolicy(ChatClient(Endpoint("any", server.url))).in_format("native", "", {})
        record = to_record(asyncio.run(play(Library(), policy, policy.chat)))
    assert [turn["valid"] for turn in record["turns"]] == [False, True]
    for name in ("Qwen3", "Llama 3.2"):
        tokenizer = MODELS[name].tokenizer()
        found = spelt(record, NativeFormat(tokenizer, ends=ends_of_turn(tokenizer)), tokenizer)
        assert found == "have a turn that the chat template of the learner has no way to write"
