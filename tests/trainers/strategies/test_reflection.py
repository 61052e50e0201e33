"""Reports: reading, checking (example E9 of the specification), the prompt, the rule-based and the asking reflector."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.core.chat import InlineFormat
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory, Turn
from agentenv.core.types import (
    Completion,
    EndReason,
    Message,
    Sampling,
    ToolResult,
    ToolStatus,
)
from agentenv.errors import ContextTooSmall, PolicyFault
from agentenv.policies.fakes import ByteTokenizer, random_policy
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.strategies.reflection import (
    PolicyReflector,
    Reflection,
    VerifierReflector,
    guidance_of,
    parse_report,
    pivot_of,
    reflection_prompt,
    validate_report,
)
from agentenv.trainers.strategies.reflectors import other_policy
from agentenv.trainers.strategies.step_verifiers import RuleVerifier

Episode = Callable[..., Trajectory]


def report(outcome: Any = "failure", pivot: Any = 1, suggestion: Any = "Search first.") -> dict[str, Any]:
    return {
        "trajectory_outcome": outcome,
        "improvement_suggestion": suggestion,
        "retry_from_step": pivot,
    }


@pytest.mark.parametrize(
    ("given_report", "verdict"),
    [
        # E9: five steps
        (report(pivot=5), (False, False)),
        (report(pivot=4), (True, False)),
        (report(pivot="3"), (True, False)),
        (report(pivot=-1), (False, False)),
        (report(pivot=None), (False, False)),
        (report(outcome="Failure"), (False, False)),
        (report(outcome="success", pivot=17), (True, True)),
        (report(outcome="success", pivot=None, suggestion=None), (True, True)),
        # the rest of the rule
        (report(outcome="success_but_inefficient", pivot=0), (True, False)),
        (report(suggestion=""), (False, False)),
        (report(suggestion=None), (False, False)),
        (report(pivot="three"), (False, False)),
        (report(pivot=True), (False, False)),
        (report(pivot=[1]), (False, False)),
        (report(pivot=float("inf")), (False, False)),
        (report(outcome=["failure"]), (False, False)),
        ({"trajectory_outcome": "success"}, (False, False)),
        (None, (False, False)),
    ],
)
def test_a_report_is_checked(given_report: dict[str, Any] | None, verdict: tuple[bool, bool]) -> None:
    assert validate_report(given_report, 5) == verdict


def test_a_pivot_in_quotes_is_a_number_in_use() -> None:
    assert pivot_of(report(pivot="3")) == 3
    assert pivot_of({}) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('Here it is: {"a": {"b": 1}} That is all.', {"a": {"b": 1}}),
        ("no braces", None),
        ('} {"a": 1', None),
        ("{'a': 1}", None),
        ('{"a": 1} and {"b": 2}', None),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, None),
    ],
)
def test_what_stands_between_the_outer_braces_is_read(text: str, found: Any) -> None:
    assert parse_report(text) == found


@settings(max_examples=50)
@given(st.text('{}[]":,1a', max_size=12))
def test_no_text_breaks_the_reader(text: str) -> None:
    found = parse_report(text)
    assert found is None or isinstance(found, dict)
    validate_report(found, 3)


def result(status: ToolStatus, name: str = "search", error: str = "") -> tuple[ToolResult, ...]:
    return (ToolResult(name, status, error_class=error),)


OK = result(ToolStatus.OK)
FIRST = Turn("<search>a</search>", (Message("tool", "page A"),), OK, anchor_key="0")
LAST = Turn("<answer>b</answer>", anchor_key="1")


@pytest.fixture
def failed(episode: Episode) -> Trajectory:
    """A search that helped, then a wrong answer."""
    return played(episode, FIRST, LAST)


def played(episode: Episode, *turns: Turn, reward: float = 0.0) -> Trajectory:
    parts = [(SegmentKind.PROMPT, (1,)), *((SegmentKind.POLICY, (2,)) for _ in turns)]
    prompt = (Message("system", "Be brief."), Message("user", "Who?"))
    return episode(parts, reward, turns=turns, prompt=prompt, id="base")


def test_the_prompt_shows_rules_numbered_steps_and_the_outcome(failed: Trajectory) -> None:
    system, user = reflection_prompt(failed, 1.0)
    assert (system.role, user.role) == ("system", "user")
    assert user.text == (
        "Rules of the episode:\nBe brief.\n\n"
        "step 0:\nobservation: Who?\naction: <search>a</search>\n\n"
        "step 1:\nobservation: page A\naction: <answer>b</answer>\n\n"
        "feedback: reward 0 of 1 after 2 steps; limit of steps or length not reached (answered)\n\n"
        "Reply with the JSON object about this episode."
    )


def test_the_prompt_says_when_a_limit_was_reached(episode: Episode) -> None:
    cut = played(episode, FIRST, LAST, reward=0.5)
    assert (
        "reward 0.5 of 1 after 2 steps; limit of steps or length not" in reflection_prompt(cut, 1.0)[1].text
    )
    cut = episode([(SegmentKind.PROMPT, (1,))], turns=(FIRST,), end_reason=EndReason.TURN_LIMIT)
    assert "limit of steps or length reached (turn_limit)" in reflection_prompt(cut, 1.0)[1].text


def test_the_example_in_the_prompt_is_a_valid_report(failed: Trajectory) -> None:
    text = reflection_prompt(failed, 1.0)[0].text
    example = parse_report(text[text.index("Example of a reply:") :])
    assert validate_report(example, 3) == (True, False)


def test_guidance_is_the_whole_report_in_an_instruction() -> None:
    text = guidance_of(report())
    assert json.loads(text[text.index("{") :]) == report()
    assert "Do not mention" in text
    half = parse_report('{"improvement_suggestion": "caf\u00e9 \\ud83d"}')
    assert half is not None
    assert guidance_of(half).endswith('{"improvement_suggestion": "café ?"}')


def by_rule(trajectory: Trajectory) -> Reflection:
    return asyncio.run(VerifierReflector(RuleVerifier()).reflect(trajectory, 1.0, episode="r", seed=0))


@pytest.mark.parametrize(
    ("turns", "pivot", "word"),
    [
        ((FIRST, LAST), 1, "<answer>b</answer>"),  # nothing broke: the answer was wrong
        ((FIRST, Turn("c", (), result(ToolStatus.ERROR, "read", "UnknownTitle")), LAST), 1, "UnknownTitle"),
        ((FIRST, Turn("c", (), result(ToolStatus.TIMEOUT, "run")), LAST), 1, "timeout"),
        ((FIRST, Turn("hm", (), result(ToolStatus.FORMAT_ERROR), valid=False), LAST), 1, "form"),
        ((Turn("hm", valid=False), FIRST, LAST), 0, "form"),
        ((FIRST, Turn("again", (), OK, anchor_key="1"), LAST), 1, "nothing new"),  # the state stays "1"
    ],
)
def test_the_rule_finds_the_first_flaw(
    episode: Episode, turns: Sequence[Turn], pivot: int, word: str
) -> None:
    found = by_rule(played(episode, *turns))
    assert found.report is not None
    assert validate_report(found.report, len(turns)) == (True, False)
    assert pivot_of(found.report) == pivot
    assert word in found.guidance
    assert (found.dialogue, found.tokens) == (None, 0)


def test_the_rule_finds_nothing_wrong_with_a_clean_success(episode: Episode) -> None:
    clean = by_rule(played(episode, FIRST, LAST, reward=1.0))
    assert validate_report(clean.report, 2) == (True, True)
    wasteful = by_rule(played(episode, Turn("x", valid=False), LAST, reward=1.0))
    assert wasteful.report is not None
    assert wasteful.report["trajectory_outcome"] == "success_but_inefficient"


class Sure(ScriptedPolicy):
    """A scripted policy with log-probs that can be told apart, and the requests it got."""

    version = 7

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.asked = (list(prompt_ids), sampling)
        made = await super().generate(prompt_ids, sampling, episode=episode)
        return Completion(made.ids, made.text, (-0.5,) * len(made.ids), made.finish, self.version)


def ask(policy: Any, trajectory: Trajectory, *, trained: bool = True, deadline_s: float = 60.0) -> Reflection:
    reflector = PolicyReflector(
        policy, InlineFormat(ByteTokenizer()), trained, max_tokens=900, deadline_s=deadline_s
    )
    return asyncio.run(reflector.reflect(trajectory, 1.0, episode="base-reflection", seed=5))


def test_the_policy_s_own_dialogue_can_be_trained_on(failed: Trajectory) -> None:
    text = json.dumps(report())
    policy = Sure({"base-reflection": [text]})
    found = ask(policy, failed)
    prompt, sampling = policy.asked
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.stop) == (900, 1.0, 5, ())
    assert (found.report, found.guidance, found.tokens) == (report(), guidance_of(report()), len(text) + 1)
    dialogue = found.dialogue
    assert dialogue is not None
    assert (dialogue.reward, dialogue.origin, dialogue.parent_id) == (1.0, Origin.REFLECTION, "base")
    assert dialogue.ids.tolist() == [*prompt, *text.encode(), 256]
    assert dialogue.loss_mask.sum() == len(text) + 1
    assert set(dialogue.policy_version[dialogue.loss_mask].tolist()) == {7}
    assert not dialogue.context_mismatch.any()


def test_another_policy_s_dialogue_is_not_kept(failed: Trajectory) -> None:
    found = ask(Sure({"base-reflection": [json.dumps(report())]}), failed, trained=False)
    assert (found.report, found.dialogue) == (report(), None)


@pytest.mark.parametrize("text", ["I cannot say.", json.dumps(report(pivot=2))])
def test_a_reply_that_cannot_be_used_gives_no_guidance(failed: Trajectory, text: str) -> None:
    assert ask(Sure({"base-reflection": [text]}), failed).guidance == ""


class Failing(ScriptedPolicy):
    def __init__(self, error: Exception | None) -> None:
        super().__init__({})
        self.error = error
        self.released: list[str] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        if self.error is not None:
            raise self.error
        await asyncio.sleep(60)
        raise AssertionError

    def release(self, episode: str) -> None:
        self.released.append(episode)


def test_a_log_that_fills_the_context_is_no_report(failed: Trajectory) -> None:
    policy = Failing(ContextTooSmall("full"))
    assert ask(policy, failed) == Reflection(None)
    assert policy.released == ["base-reflection"]


def test_an_engine_that_fails_or_hangs_is_a_fault(failed: Trajectory) -> None:
    for policy in (Failing(PolicyFault("down")), Failing(None)):
        with pytest.raises(PolicyFault, match=r"down|\b0\.2 s"):
            ask(policy, failed, deadline_s=60.0 if policy.error else 0.2)
        assert policy.released == ["base-reflection"]


def test_a_policy_whose_weights_were_replaced_is_loaded_again(tmp_path: Path) -> None:
    """Another run, or an earlier one in this process, may have written to the folder since."""
    folder = tmp_path / "policy"
    random_policy(folder, ["who is it"])
    first, _ = other_policy(f"hf:{folder}")
    assert other_policy(f"hf:{folder}")[0] is first
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-4] + bytes(4))
    second, _ = other_policy(f"hf:{folder}")
    assert second is not first
    assert other_policy(f"hf:{folder}")[0] is second
