"""CLEANER: what is detected, similarity and splices on token ids, budgets, log-probs of another context, the environment.

Scripts say what the policy samples, retries included, in order. Episodes without a stated environment are the calculator's.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat, TemplateFormat
from agentenv.core.env import Env
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Origin, Segment, SegmentKind, Trajectory
from agentenv.core.types import (
    Completion,
    Document,
    EndReason,
    Sampling,
    StateCapability,
    Step,
    Task,
    ToolStatus,
)
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.calculator import Calculator
from agentenv.envs.code import Code
from agentenv.envs.reex_sql import ReExSQL
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.sql import Sql
from agentenv.envs.trace_code import TraceCode
from agentenv.errors import (
    ConfigurationError,
    ContextTooSmall,
    EnvFault,
    PolicyFault,
    SnapshotError,
    SnapshotRefused,
)
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.sandbox.backends import make_executor, unavailable
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.trainers.strategies.rollback import HINT, RollbackStrategy
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.splicing import (
    SampledTurn,
    argument_text,
    call_start,
    is_call,
    similarity,
    splice,
)
from agentenv.trainers.strategies.strategies import get_strategy, play_groups

TOKENIZER = ByteTokenizer()
TASK = Task("sum", "6 * 7", ("42",))
END = "<|im_end|>"


def call(expression: str, thought: str = "") -> str:
    return f'{thought}<tool_call>{{"name": "calculate", "arguments": {{"expression": "{expression}"}}}}</tool_call>'


class NoWayBack(Calculator):
    """Declares that its state cannot be captured."""

    capability = StateCapability.NONE


class LoggedPolicy(ScriptedPolicy):
    """Plays its script with log-probs of its own: minus the number of the turn as it was sampled, from 1 on."""

    def __init__(self, *script: str) -> None:
        super().__init__({"e-0": script})
        self.prompts: list[str] = []
        self.seeds: list[int] = []
        self.budgets: list[int] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.prompts.append(TOKENIZER.decode(prompt_ids))
        self.seeds.append(sampling.seed)
        self.budgets.append(sampling.max_tokens)
        done = await super().generate(prompt_ids, sampling, episode=episode)
        return replace(done, logprobs=(-float(len(self.prompts)),) * len(done.ids))


def play(
    policy: Any,
    env: Env[Any] | None = None,
    *,
    task: Task = TASK,
    seed: int = 0,
    chat: Any = None,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Trajectory:
    settings = RolloutConfig(**({"context_tokens": 4000, "turn_tokens": 500} | (config or {})))
    context = RolloutContext(policy, chat or InlineFormat(TOKENIZER), settings, TOKENIZER.decode)
    spec = EpisodeSpec(env or Calculator(), task, seed, "g")
    ((played,),) = asyncio.run(play_groups([[spec]], RollbackStrategy(**options), context))
    return played


def after_prompt(trajectory: Trajectory) -> str:
    """The text of everything behind the prompt, sampled or observed."""
    return TOKENIZER.decode([i for s in trajectory.segments[1:] for i in s.ids])


def shape(trajectory: Trajectory) -> list[tuple[str, int, str, bool]]:
    return [
        (str(s.kind), s.turn, TOKENIZER.decode(s.ids), s.context_mismatch) for s in trajectory.segments[1:]
    ]


def figures(trajectory: Trajectory) -> dict[str, Any]:
    found: dict[str, Any] = trajectory.info["strategy"]
    return {name.removeprefix("rollback_"): value for name, value in found.items()}


# Similarity and splices.


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("print(1/0)", "print(1/1)", 0.9),  # worked examples E11
        ("abcd", "bcde", 0.75),
        ("abcd", "abzz", 0.5),
        ("abcdef", "uvwxyz", 0.0),
        ("ab", "abab", 2 * 2 / 6),
    ],
)
def test_similarity_is_that_of_matching_blocks(old: str, new: str, expected: float) -> None:
    assert similarity(old, new, "parity") == pytest.approx(expected, abs=1e-4)
    assert similarity(old, new) == pytest.approx(expected, abs=1e-4)


def test_parity_keeps_the_rule_for_frequent_characters_and_the_recommended_mode_does_not() -> None:
    old, new = "a" * 199 + "b", "b" + "a" * 199
    assert similarity(old, new, "parity") == pytest.approx(0.005, abs=1e-4)
    assert similarity(old, new) == pytest.approx(0.995, abs=1e-4)


def test_the_recommended_mode_compares_arguments_and_parity_the_wrapper_too() -> None:
    old, new = call("11"), call("22")
    assert similarity(old, new) == 0
    assert similarity(old, new, "parity") > 0.9
    assert argument_text(call("1 + 1")) == "1 + 1"
    assert argument_text("<python>\nx = 1</python>") == "\nx = 1"
    assert argument_text("<search>who") == "who"
    assert argument_text("no call") == "no call"
    assert argument_text('<tool_call>{"name": "f", "arguments": {"a": 1, "b": "x"}}</tool_call>') == "1\nx"


def turn(text: str, logprob: float) -> SampledTurn:
    ids = tuple(TOKENIZER.encode(text))
    return SampledTurn((Segment(SegmentKind.POLICY, ids, 0, logprobs=(logprob,) * len(ids)),), text)


def test_a_splice_of_like_calls_keeps_the_old_reasoning() -> None:
    done = splice(turn("old<t>1/0", -1.0), turn("new<t>1/1", -2.0), TOKENIZER.decode, ("<t>",))
    assert (done.shallow, done.turn.text) == (True, "old<t>1/1")
    assert done.similarity == pytest.approx(2 * 2 / 6)
    assert [(TOKENIZER.decode(s.ids), s.logprobs[0], s.context_mismatch) for s in done.turn.segments] == [
        ("old", -1.0, False),
        ("<t>1/1", -2.0, True),
    ]


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [("old<t>abcdef", "new<t>uvwxyz", None), ("no call", "new<t>1", None), ("old<t>1", "no call", None)],
)
def test_a_splice_of_unlike_calls_takes_the_whole_new_turn(old: str, new: str, alike: float | None) -> None:
    done = splice(turn(old, -1.0), turn(new, -2.0), TOKENIZER.decode, ("<t>",), threshold=0.6)
    assert (done.shallow, done.turn.text) == (False, new)
    assert [(TOKENIZER.decode(s.ids), s.context_mismatch) for s in done.turn.segments] == [(new, True)]


def test_a_similarity_at_the_threshold_is_shallow() -> None:
    """("abcd", "abzz") is .5, and the comparison is strict on the deep side."""
    old, new = turn("<t>abcd</t>", 0.0), turn("<t>abzz</t>", 0.0)
    assert splice(old, new, TOKENIZER.decode, ("<t>",), threshold=0.5).shallow
    assert not splice(old, new, TOKENIZER.decode, ("<t>",), threshold=0.51).shallow


def test_a_shallow_splice_that_would_not_fit_is_deep() -> None:
    old, new = turn("a long thought<t>1", 0.0), turn("<t>1", 0.0)
    assert splice(old, new, TOKENIZER.decode, ("<t>",), limit=18).shallow
    assert not splice(old, new, TOKENIZER.decode, ("<t>",), limit=17).shallow


class Pieces:
    """A tokenizer whose tokens are strings, so that a marker may begin within one."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in ids)


def test_a_call_begins_with_the_token_in_which_its_marker_begins() -> None:
    decode = Pieces("so", ".<", "t>", "1", "<t>", "é").decode
    assert call_start([0, 1, 2, 3], decode, ("<t>",)) == 1
    assert call_start([0, 5, 4, 3], decode, ("<t>",)) == 2
    assert call_start([4, 3, 4], decode, ("<t>",)) == 0
    assert call_start([0, 4, 3, 4], decode, ("<x>", "<t>")) == 1
    assert call_start([0, 3], decode, ("<t>",)) is None


# Episodes.


def test_a_corrected_call_stands_where_the_failed_one_stood() -> None:
    policy = LoggedPolicy(call("6 * x", "think "), call("6 * 7", "again "), "42")
    played = play(policy)
    assert after_prompt(played) == (
        f"{call('6 * 7', 'think ')}{END}\n<tool_response>\n42\n</tool_response>\n42{END}"
    )
    assert [(s.kind, s.turn, s.context_mismatch) for s in played.segments[1:]] == [
        ("policy", 0, False),
        ("policy", 0, True),
        ("env", 0, False),
        ("policy", 1, False),
    ]
    assert (played.reward, played.origin, len(played.turns)) == (1.0, Origin.SPLICE, 2)
    assert [t.action for t in played.turns] == [call("6 * 7", "think "), "42"]
    assert "is not allowed" in policy.prompts[1]  # the retry saw the error
    assert "is not allowed" not in policy.prompts[2]  # and nobody after it
    found = figures(played)
    assert {name: found[name] for name in ("triggered", "recovered", "failed", "shallow", "deep")} == {
        "triggered": 1,
        "recovered": 1,
        "failed": 0,
        "shallow": 1,
        "deep": 0,
    }
    assert found["similarity"] == [pytest.approx(2 * 4 / 10)]
    assert found["retry_tokens"] == len(call("6 * 7", "again ")) + 1
    assert found["sampled_tokens"] == sum(len(text) + 1 for text in policy.actions["e-0"])


def test_without_errors_it_is_plain_play_and_without_rolls_too() -> None:
    script = (call("6 * 7"), "42")
    assert play(LoggedPolicy(*script)).segments == plain(LoggedPolicy(*script)).segments
    rolled = (call("6 * x"), call("6 * 7"), "42")
    off = play(LoggedPolicy(*rolled), roll_probability=0.0)
    assert off.segments == plain(LoggedPolicy(*rolled)).segments
    assert (off.origin, figures(off)["triggered"]) == (Origin.BASE, 0)


def plain(policy: Any) -> Trajectory:
    context = RolloutContext(
        policy, InlineFormat(TOKENIZER), RolloutConfig(context_tokens=4096, turn_tokens=500), TOKENIZER.decode
    )
    spec = EpisodeSpec(Calculator(), TASK, 0, "g")
    ((played,),) = asyncio.run(play_groups([[spec]], get_strategy("plain"), context))
    return played


def test_a_later_retry_sees_the_latest_failure_only() -> None:
    """Calls x, then y, then right. All are alike, so the first thought stays throughout."""
    policy = LoggedPolicy(call("6 * x", "one "), call("6 * y", "two "), call("6 * 7", "three "), "42")
    played = play(policy)
    assert policy.prompts[1].endswith(feedback(policy, "x"))
    assert policy.prompts[2].endswith(f"{call('6 * y', 'one ')}{END}{feedback(policy, 'y')}")
    assert "6 * x" not in policy.prompts[2]
    assert after_prompt(played).startswith(call("6 * 7", "one "))
    assert [figures(played)[name] for name in ("triggered", "recovered", "failed", "shallow")] == [1, 1, 0, 2]


def feedback(policy: LoggedPolicy, name: str) -> str:
    return f"\n<tool_response>\nValueError: '{name}' is not allowed; use integers and + - * //\n</tool_response>\n"


def test_after_the_last_retry_the_latest_error_stays_and_nothing_is_rolled_back_any_more() -> None:
    env = Calculator()
    failing = [call(f"6 * {name}", f"{name} ") for name in "abcd"]
    policy = LoggedPolicy(*failing, call("e"), call("6 * 7"), "42")
    played = play(policy, env)
    hint = HINT.format(failures=4)
    assert [turn.action for turn in played.turns] == [call("6 * d", "a "), call("e"), call("6 * 7"), "42"]
    assert after_prompt(played).startswith(
        f"{call('6 * d', 'a ')}{END}{feedback(policy, 'd')}{hint}{call('e')}"
    )
    assert played.turns[0].observation[-1].text.endswith(hint)
    assert [figures(played)[name] for name in ("triggered", "recovered", "failed")] == [1, 0, 1]
    assert env.state.calls == 3  # those of the record: retries were undone
    assert played.reward == 1.0


def test_a_hint_comes_after_the_second_retry() -> None:
    one = play(LoggedPolicy(call("a"), call("b"), "42"), retries=1)
    two = play(LoggedPolicy(call("a"), call("b"), call("c"), "42"), retries=2)
    assert not one.turns[0].observation[-1].text.endswith("method.\n")
    assert two.turns[0].observation[-1].text.endswith(HINT.format(failures=3))


def test_committing_on_success_keeps_the_first_attempt_where_all_retries_fail() -> None:
    env = Calculator()
    played = play(LoggedPolicy(call("a"), call("b"), call("c"), "42"), env, retries=2, commit="on_success")
    assert [turn.action for turn in played.turns] == [call("a"), "42"]
    assert "'a' is not allowed" in after_prompt(played)
    assert not played.context_mismatch.any()
    assert (played.origin, env.state.calls) == (Origin.BASE, 1)
    assert [figures(played)[name] for name in ("failed", "deep")] == [1, 2]
    again = play(LoggedPolicy(call("a"), call("b"), call("1"), "42"), retries=2, commit="on_success")
    assert [turn.action for turn in again.turns] == [call("1"), "42"]


def test_a_retry_without_a_call_follows_the_failed_one_and_ends_the_rollbacks() -> None:
    played = play(LoggedPolicy(call("a"), "I give up: 42", call("b")), max_turns(8))
    assert [turn.action for turn in played.turns] == [call("a"), "I give up: 42"]
    assert "'a' is not allowed" in after_prompt(played)
    assert not played.context_mismatch.any()
    assert [figures(played)[name] for name in ("triggered", "recovered", "failed")] == [1, 0, 0]


def max_turns(n: int) -> Calculator:
    class Short(Calculator):
        max_turns = n

    return Short()


def test_retries_cost_no_turns_and_a_call_that_fails_in_the_last_turn_ends_the_episode() -> None:
    two = play(LoggedPolicy(call("a"), call("b"), call("c"), call("1"), call("d")), max_turns(2))
    assert [turn.action for turn in two.turns] == [call("1"), call("d")]
    assert two.end_reason is EndReason.TURN_LIMIT
    assert figures(two)["triggered"] == 1


def test_retries_cost_no_tokens() -> None:
    """The context holds the opening and two calls; the retry stands behind a failed call and its error."""
    opening = len(play(LoggedPolicy("42")).segments[0].ids)
    script = (call("6 * x"), call("6 * 7"), "42")
    room = len(call("6 * 7")) + 1 + len("\n<tool_response>\n42\n</tool_response>\n") + 10
    policy = LoggedPolicy(*script)
    played = play(policy, config={"context_tokens": opening + room})
    assert played.end_reason is EndReason.ANSWERED
    assert len(played.ids) <= opening + room
    assert policy.budgets[:2] == [room, room]
    assert len(policy.prompts[1]) > opening + room


class SmallPolicy(LoggedPolicy):
    """An engine whose own context ends before the retry's prompt does."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        if self.prompts:
            raise ContextTooSmall("full")
        return await super().generate(prompt_ids, sampling, episode=episode)


class BreakingPolicy(LoggedPolicy):
    """An engine that fails in the retry."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        if self.prompts:
            raise PolicyFault("gone")
        return await super().generate(prompt_ids, sampling, episode=episode)


def test_where_the_engine_has_no_room_for_a_retry_the_episode_ends_on_the_failed_call() -> None:
    played = play(SmallPolicy(call("a")))
    assert (played.end_reason, played.valid) == (EndReason.TOKEN_LIMIT, True)
    assert [s.kind for s in played.segments] == ["prompt", "policy"]


def test_a_fault_in_a_retry_makes_the_episode_invalid() -> None:
    played = play(BreakingPolicy(call("a")))
    assert (played.end_reason, played.valid) == (EndReason.POLICY_FAULT, False)
    assert "gone" in played.error


def test_what_follows_an_error_without_a_call_must_fit_too() -> None:
    opening = len(play(LoggedPolicy("42")).segments[0].ids)
    policy = LoggedPolicy(call("a"), "42")
    played = play(policy, config={"context_tokens": opening + len(call("a")) + 2})
    assert played.end_reason is EndReason.TOKEN_LIMIT
    assert len(played.turns) == 1


def test_a_retry_draws_from_a_seed_of_its_own() -> None:
    policy = LoggedPolicy(call("a"), call("b"), call("1"), call("c"), call("2"), "42")
    play(policy, seed=2**31 - 1)
    assert len(set(policy.seeds)) == 6
    assert max(policy.seeds) < 2**63


@dataclass
class Flaky(Calculator):
    """Gives written statuses to its calls, one after the other; a snapshot can be refused, and they are counted."""

    statuses: list[ToolStatus]
    refuse: Exception | None = None
    fault_at: int = 99

    def __post_init__(self) -> None:
        super().__init__()
        self.stepped, self.live = 0, []  # type: ignore[var-annotated]

    async def astep(self, action: str) -> Step:
        self.stepped += 1
        if self.stepped == self.fault_at:
            raise EnvFault("down")
        step = await super().astep(action)
        if not step.info["tool_results"]:
            return step
        results = tuple(replace(r, status=self.statuses.pop(0)) for r in step.info["tool_results"])
        return step._replace(info=step.info | {"tool_results": results})

    def snapshot(self) -> Any:
        if self.refuse:
            raise self.refuse
        taken = super().snapshot()
        self.live.append(taken)
        return taken


S = ToolStatus


@pytest.mark.parametrize("status", [S.ERROR, S.TIMEOUT, S.FORMAT_ERROR])
def test_mistakes_of_the_policy_are_taken_back(status: ToolStatus) -> None:
    env = Flaky([status, S.OK])
    played = play(LoggedPolicy(call("1"), call("2"), "42"), env)
    assert [turn.action for turn in played.turns] == [call("2"), "42"]
    assert env.live
    assert all(snapshot.released for snapshot in env.live)


@pytest.mark.parametrize("statuses", [[S.ENV_FAULT], [S.OK]])
def test_nothing_else_is(statuses: list[ToolStatus]) -> None:
    played = play(LoggedPolicy(call("1"), "42"), Flaky(statuses))
    assert [turn.action for turn in played.turns] == [call("1"), "42"]
    assert figures(played)["triggered"] == 0


def test_a_fault_of_ours_beside_an_error_is_not_taken_back() -> None:
    both = call("1") + call("2")
    assert figures(play(LoggedPolicy(both, "42"), Flaky([S.ENV_FAULT, S.ERROR])))["triggered"] == 0


def test_of_several_calls_the_last_error_is_shown_and_all_are_run_again() -> None:
    env = Calculator()
    policy = LoggedPolicy(call("1") + call("a") + call("b") + call("2"), call("3") + call("4"), "42")
    played = play(policy, env)
    assert policy.prompts[1].endswith(END + feedback(policy, "b"))
    assert "'a' is not allowed" not in policy.prompts[1]
    assert after_prompt(played).count("<tool_response>") == 2
    assert env.state.calls == 2


def test_a_snapshot_that_is_refused_leaves_the_error_and_one_that_fails_is_a_fault() -> None:
    refused = play(LoggedPolicy(call("a"), "42"), Flaky([S.ERROR], SnapshotRefused("threads")))
    assert refused.valid
    assert [turn.action for turn in refused.turns] == [call("a"), "42"]
    broken = play(LoggedPolicy(call("a"), "42"), Flaky([S.ERROR], SnapshotError("no memory")))
    assert (broken.end_reason, broken.valid) == (EndReason.ENV_FAULT, False)


def test_an_environment_that_breaks_in_a_retry_makes_the_episode_invalid_and_frees_its_snapshots() -> None:
    env = Flaky([S.ERROR], fault_at=2)
    played = play(LoggedPolicy(call("a"), call("1")), env)
    assert (played.end_reason, played.reward) == (EndReason.ENV_FAULT, 0.0)
    assert figures(played)["recovered"] == 0
    assert all(snapshot.released for snapshot in env.live)


def test_after_so_many_turns_with_calls_nothing_is_taken_back() -> None:
    script = (call("1"), call("a"), call("2"), "42")
    assert [t.action for t in play(LoggedPolicy(*script), max_phases=2).turns] == [call("1"), call("2"), "42"]
    assert [t.action for t in play(LoggedPolicy(*script), max_phases=1).turns] == list(script)


def test_retries_count_among_the_calls_after_which_nothing_is_taken_back() -> None:
    """Calls a and b use the two that there are up: b stays with its error, though a third retry was left, and so does c."""
    script = (call("a"), call("b"), call("c"), "42")
    two = play(LoggedPolicy(*script), max_phases=1)
    assert [t.action for t in two.turns] == [call("b"), call("c"), "42"]
    assert "'b' is not allowed" in after_prompt(two)
    assert [figures(two)[name] for name in ("triggered", "failed")] == [1, 1]
    three = play(LoggedPolicy(*script), max_phases=2)
    assert [t.action for t in three.turns] == [call("c"), "42"]
    assert three.turns[0].observation[-1].text.endswith(HINT.format(failures=3))


def test_an_episode_rolls_back_or_not_by_its_seed() -> None:
    def rolled(seed: int) -> bool:
        return bool(
            figures(play(LoggedPolicy(call("a"), call("1"), "42"), seed=seed, roll_probability=0.7))[
                "triggered"
            ]
        )

    drawn = [rolled(seed) for seed in range(40)]
    assert drawn == [rolled(seed) for seed in range(40)]
    assert 20 <= sum(drawn) <= 36


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\b3\b.*\b30\b.*\b2\.0\b"):
        RollbackStrategy(roll_probability=2.0)


def test_under_a_chat_template_the_corrected_turn_is_one_assistant_message() -> None:
    tokenizer = ByteTokenizer(chat=True)
    policy = LoggedPolicy(call("6 * x"), call("6 * 7"), "42")
    played = play(policy, chat=TemplateFormat(tokenizer))
    response = "<|im_start|>tool\n\n<tool_response>\n42\n</tool_response>\n"
    assert after_prompt(played) == (f"{call('6 * 7')}{END}\n{response}{END}\n<|im_start|>assistant\n42{END}")


# Other environments.


QUESTION = Task("q", "Who?", ("Ada",))


def search_env() -> LocalSearch:
    return LocalSearch(
        tasks=[QUESTION], retriever=InMemoryRetriever([Document("1", "Ada", "Ada was first.")])
    )


def test_a_turn_without_a_call_is_not_taken_back() -> None:
    """SAAR looks at turns with tool calls: a misspelt tag is none, and neither is an answer that does not end."""
    script = ("<serch>ada</serch>", "<answer>Ada", "<search>ada</search>", "<answer>Ada</answer>")
    played = play(LoggedPolicy(*script), search_env(), task=QUESTION)
    assert [t.action for t in played.turns] == list(script)
    assert figures(played)["triggered"] == 0
    # Neither uses up one of the turns with calls after which an episode rolls back no more.
    script = ("<serch>ada</serch>", "<read>Eve</read>", "<read>Ada</read>", "<answer>Ada</answer>")
    played = play(LoggedPolicy(*script), search_env(), task=QUESTION, max_phases=1)
    assert [t.action for t in played.turns] == [script[0], *script[2:]]


def test_a_turn_without_a_call_is_taken_back_where_that_is_asked_for() -> None:
    script = ("<serch>ada</serch>", "<search>ada</search>", "<answer>Ada</answer>")
    played = play(LoggedPolicy(*script), search_env(), task=QUESTION, without_call=True)
    assert [t.action for t in played.turns] == list(script[1:])
    assert figures(played)["recovered"] == 1


def test_a_search_that_cannot_be_read_is_corrected() -> None:
    env = search_env()
    policy = LoggedPolicy(
        "<search>ada",
        "<search>ada</search>",
        "<read>Eve</read>",
        "<read>Ada</read>",
        "<answer>Ada</answer>",
    )
    played = play(policy, env, task=QUESTION)
    assert [t.action for t in played.turns] == [
        "<search>ada</search>",
        "<read>Ada</read>",
        "<answer>Ada</answer>",
    ]
    assert env.state.turns == 2
    assert figures(played)["recovered"] == 2
    assert [s.context_mismatch for s in played.segments if s.kind is SegmentKind.POLICY] == [
        True,
        True,
        False,
    ]


def code_script() -> tuple[Task, tuple[str, ...]]:
    task = generate_code_tasks(1)[0]
    return task, (
        "<python>seen = 1\nseen / 0</python>",
        "<python>print('seen' in globals())</python>",
        f"<submit>{task.data['solution']}</submit>",
    )


def check_interpreter(executor: Any) -> None:
    """What the failed cell assigned is gone when its correction runs."""
    task, script = code_script()
    env = Code(tasks=[task], executor=executor)
    try:
        played = play(LoggedPolicy(*script), env, task=task)
    finally:
        env.close()
    assert [t.action for t in played.turns] == list(script[1:])
    assert "False" in played.turns[0].observation[0].text
    assert (played.reward, played.end_reason) == (1.0, EndReason.SUBMITTED)


def test_an_interpreter_is_taken_back_with_its_names() -> None:
    check_interpreter(FakeExecutor())


def test_a_live_interpreter_in_a_jail_is_taken_back_with_its_names() -> None:
    if reason := unavailable("bwrap"):
        pytest.skip(f"bwrap: {reason}")
    with contextlib.closing(make_executor("bwrap", size=1)) as executor:
        check_interpreter(executor)


@pytest.mark.parametrize(
    ("env", "call"),
    [
        (Sql, "<sql>SELECT 1</sql>"),
        (ReExSQL, "<intermediate_sql>SELECT 1</intermediate_sql>"),
        (TraceCode, "<plan>p</plan>"),
    ],
)
def test_an_environment_with_tags_says_where_a_call_begins(env: type[Env[Any]], call: str) -> None:
    """Or a turn without one would count as a call."""
    assert is_call(f"I look. {call}", env.call_markers)
    assert not is_call("I look. SELECT 1", env.call_markers)


def test_an_environment_without_a_way_back_is_refused() -> None:
    """Every episode ended as an infrastructure failure, which said nothing of the strategy."""
    with pytest.raises(ConfigurationError, match="NoWayBack can neither be captured nor replayed"):
        play(LoggedPolicy(call("1 / 0"), call("6 * 7"), "42"), NoWayBack())
