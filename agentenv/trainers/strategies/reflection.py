"""Reflection on a finished episode: the report, its prompt and its checks, and who writes it (R3L, Shi et al. 2026).

A report is one JSON object. It judges the episode and, unless the episode was flawless, names the first turn in which
another decision could change the outcome (the pivot) and says in a sentence of its own what to do better.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from agentenv.core.concurrency.deadlines import within
from agentenv.core.images import refuse_images
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import EpisodeSpec, EpisodeState
from agentenv.core.trajectory import Origin, Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Message, Observation, Sampling
from agentenv.errors import ContextTooSmall, PolicyFault
from agentenv.trainers.strategies.step_verifiers import Verifier

Report = Mapping[str, Any]


class EpisodeOutcome(StrEnum):
    """What a report may say of an episode."""

    SUCCESS = "success"
    INEFFICIENT = "success_but_inefficient"
    FAILURE = "failure"


class ReportCheck(NamedTuple):
    """Whether a report can be used, and whether it finds nothing to improve."""

    valid: bool
    perfect: bool


REQUIRED = ("trajectory_outcome", "improvement_suggestion", "retry_from_step")

SYSTEM = """\
You review the log of an agent that acted step by step. Find out why the episode went as it did: ask why the outcome came \
about, then why that was so, and go on until you reach the root cause. Judge decisions by what the agent could know at the \
time.
Reply with one JSON object and nothing else. Its keys:
- "trajectory_summary": one to three sentences on the strategy, the outcome and the quality of the episode.
- "root_cause_analysis": the chain of causes that you found.
- "trajectory_outcome": "success", "success_but_inefficient" or "failure".
- "improvement_suggestion": a general principle that stands on its own and would have led to a better episode; null if the \
outcome is "success".
- "retry_from_step": the number of the earliest step in which the root cause shows, or in which another decision could \
change the outcome, from 0 to the last step; null if the outcome is "success" or another try is of no use.
Example of a reply:
{"trajectory_summary": "The agent searched for the film, took its producer for its director and answered with the \
producer's birthplace. Wrong.", "root_cause_analysis": "The answer was wrong because the person was wrong. The person was \
wrong because the agent read one passage that names both and did not check which role was asked for.", \
"trajectory_outcome": "failure", "improvement_suggestion": "Before using a name from a passage, check that it stands in the \
relation that the question asks for, and search once more if the passage leaves it open.", "retry_from_step": 1}"""

_GUIDANCE = """\
Lessons from an earlier try at this task follow. Apply them in what you do next. Do not mention them, nor that there was an \
earlier try.
"""


def parse_report(text: str) -> Report | None:
    """The JSON object between the first and the last brace of ``text``; None where it cannot be read."""
    try:
        report: Report = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except (ValueError, RecursionError):
        return None
    return report


def pivot_of(report: Report) -> int | None:
    """The step to retry from as a number, however it was written; None where it is none."""
    value = report.get("retry_from_step")
    if isinstance(value, bool):
        return None
    try:
        return int(value)  # type: ignore[arg-type]  # whatever JSON can hold
    except (TypeError, ValueError, OverflowError):
        return None


def validate_report(report: Report | None, steps: int) -> ReportCheck:
    """Whether ``report`` can be used for an episode of ``steps`` turns.

    Success needs nothing more and is perfect; the other two outcomes need a suggestion and a pivot of 0 to steps - 1.
    """
    if report is None or any(key not in report for key in REQUIRED):
        return ReportCheck(valid=False, perfect=False)
    outcome, pivot = report["trajectory_outcome"], pivot_of(report)
    if outcome == EpisodeOutcome.SUCCESS:
        return ReportCheck(valid=True, perfect=True)
    known = outcome in (EpisodeOutcome.INEFFICIENT, EpisodeOutcome.FAILURE)
    usable = bool(report["improvement_suggestion"]) and pivot is not None and 0 <= pivot < steps
    return ReportCheck(valid=known and usable, perfect=False)


def guidance_of(report: Report) -> str:
    """What a retry is told: the whole report, and to apply it without mentioning it."""
    text = json.dumps(report, ensure_ascii=False)
    return _GUIDANCE + text.encode(errors="replace").decode()  # JSON can spell half a character


def reflection_prompt(trajectory: Trajectory, ceiling: float) -> Observation:
    """What a reflector is asked about an episode.

    Args:
        trajectory: A finished episode.
        ceiling: The most that an episode can be rewarded with.
    """
    request = "Reply with the JSON object about this episode."
    return (Message("system", SYSTEM), Message("user", f"{episode_log(trajectory, ceiling)}\n\n{request}"))


def episode_log(trajectory: Trajectory, ceiling: float) -> str:
    """An episode as text: rules, numbered steps, the outcome.

    Args:
        trajectory: A finished episode.
        ceiling: The most that an episode can be rewarded with.

    Raises:
        ConfigurationError: images were shown in it.
    """
    for messages in (trajectory.prompt, *(turn.observation for turn in trajectory.turns)):
        refuse_images(
            messages,
            "a report on an episode is written from its text: set another reflector, or pixels=false",
        )
    rules = [message.text for message in trajectory.prompt if message.role == "system"]
    seen = [message.text for message in trajectory.prompt if message.role != "system"]
    parts = [f"Rules of the episode:\n{text}" for text in rules]
    for step, turn in enumerate(trajectory.turns):
        transcript = "\n".join(seen).strip() or "(nothing)"
        parts.append(f"step {step}:\nobservation: {transcript}\naction: {turn.action.strip()}")
        seen = [message.text for message in turn.observation]
    late = trajectory.end_reason in (EndReason.TURN_LIMIT, EndReason.TOKEN_LIMIT, EndReason.TIME_LIMIT)
    parts.append(
        f"feedback: reward {trajectory.reward:g} of {ceiling:g} after {len(trajectory.turns)} steps; "
        f"limit of steps or length {'reached' if late else 'not reached'} ({trajectory.end_reason})"
    )
    return "\n\n".join(parts)


@dataclass(frozen=True)
class Reflection:
    """What came of reflecting on one episode."""

    report: Report | None
    """None where the reply could not be read."""
    guidance: str = ""
    """What a retry is told; only with a usable report."""
    dialogue: Trajectory | None = None
    """Question and reply as the trained policy sampled it, with reward 1; None where somebody else wrote the report."""
    tokens: int = 0
    """Tokens that were sampled for it."""


class Reflector(Protocol):
    """Writes reports on finished episodes."""

    async def reflect(self, trajectory: Trajectory, ceiling: float, *, episode: str, seed: int) -> Reflection:
        """Reflects on a finished episode.

        Args:
            trajectory: The episode.
            ceiling: The most that an episode can be rewarded with.
            episode: Id for what an engine keeps while it samples, and of the dialogue.
            seed: Seeds the sampling.

        Raises:
            PolicyFault: the engine behind it failed.
        """


@dataclass(frozen=True)
class VerifierReflector:
    """Makes a report of what a verifier found; samples nothing."""

    verifier: Verifier

    async def reflect(self, trajectory: Trajectory, ceiling: float, *, episode: str, seed: int) -> Reflection:
        """The report, with the verifier's advice as guidance."""
        flaw = await self.verifier.first_flaw(trajectory, ceiling)
        outcome = EpisodeOutcome.FAILURE if trajectory.reward < ceiling else EpisodeOutcome.INEFFICIENT
        report = {
            "trajectory_summary": f"{len(trajectory.turns)} steps, reward {trajectory.reward:g}.",
            "root_cause_analysis": flaw.cause if flaw else "",
            "trajectory_outcome": outcome if flaw else EpisodeOutcome.SUCCESS,
            "improvement_suggestion": flaw.advice if flaw else None,
            "retry_from_step": flaw.turn if flaw else None,
        }
        return Reflection(report, flaw.advice if flaw else "")


@dataclass(frozen=True)
class PolicyReflector:
    """Asks a policy: the trained one, whose dialogue can be learned from, or another."""

    policy: Policy
    chat: ChatFormat
    trained: bool
    """Whether the policy is the one that is trained."""
    max_tokens: int = 4096
    """Tokens of one report."""
    temperature: float = 1.0
    """Sampling temperature; that of the episodes where the dialogue is trained on."""
    deadline_s: float = 600.0
    """Seconds that one report may take."""

    async def reflect(self, trajectory: Trajectory, ceiling: float, *, episode: str, seed: int) -> Reflection:
        """Samples a report; one that cannot be read, or a log that fills the context, is no report."""
        prompt = reflection_prompt(trajectory, ceiling)
        ids = self.chat.prompt(prompt)
        sampling = Sampling(self.max_tokens, temperature=self.temperature, seed=seed)
        asking = self.policy.generate(ids, sampling, episode=episode)
        try:
            reply = await within(self.deadline_s, asking, PolicyFault("the reflector"))
        except ContextTooSmall:
            return Reflection(None)
        finally:
            self.policy.release(episode)
        sampled = Segment(
            SegmentKind.POLICY, reply.ids, 0, reply.logprobs, reply.version, exact_tokens=reply.exact_tokens
        )
        dialogue = Trajectory(
            task=trajectory.task,
            segments=(Segment(SegmentKind.PROMPT, tuple(ids), 0), sampled),
            turns=(Turn(reply.text, reward=1.0),),
            reward=1.0,
            end_reason=EndReason.SUBMITTED,
            prompt=prompt,
            id=episode,
            parent_id=trajectory.id,
            origin=Origin.REFLECTION,
        )
        report = parse_report(reply.text)
        usable = validate_report(report, len(trajectory.turns))
        guidance = guidance_of(report) if report is not None and usable.valid and not usable.perfect else ""
        return Reflection(report, guidance, dialogue if self.trained else None, len(reply.ids))


def failed_reflection(spec: EpisodeSpec, episode: str, error: Exception) -> Trajectory:
    """A reflection that an infrastructure failure ended, in a group of its own: it is counted and teaches nothing."""
    state = EpisodeState(spec, episode)
    state.fail(EndReason.POLICY_FAULT, error)
    assert state.ended is not None
    return replace(state.ended, group_id=f"{spec.group_id}/{episode}", origin=Origin.REFLECTION)
