"""Finds the capabilities that an agent lacks by contrasting failures with successes (TRACE, arXiv:2604.05336).

Each episode is labelled with the capabilities that it lacks, by a program or by several passes of a language model. A
capability is kept if failed episodes lack it clearly more often than successful ones, and if the passes agree.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.grammar import read_json, shortened
from agentenv.errors import ContextTooSmall, EndpointFault, JudgeFault, PolicyFault
from agentenv.evaluation.capabilities import Skill
from agentenv.evaluation.diagnosis import cause_of
from agentenv.evaluation.records import EpisodeRecord
from agentenv.policies.endpoint import Chat

PASSES = 10
"""Passes of a model over each episode, as in the paper."""
LEAST_CONTRAST, LEAST_AGREEMENT, MOST = 0.2, 0.7, 6
"""Thresholds for keeping a capability, and the largest number kept. The paper's thresholds were not found."""
LEAST_LACKED = 0.2
"""The share of episodes that need a capability which must lack it, if a program labels the episodes. Without this threshold,
a capability that is nearly always shown would have a contrast of 1 as soon as the few episodes that lack it fail. No
environment for such a capability would lie within the range of useful success rates, but each would be measured."""
_EPISODES_SHOWN = 4  # number of episodes of each outcome in the prompt that asks for capabilities
_CHARS = 6000  # characters of one episode
_REPLY_TOKENS = 1024

PROPOSE = """\
An agent solved some of its tasks and failed at others. Compare the episodes and name at most {most} capabilities that the \
failures lack and the successes show, besides these: {known}.
Write nothing but a JSON list of objects with "name" (at most four words) and "description" (one sentence).
{episodes}
"""
LABEL = """\
These are capabilities of an agent:
{capabilities}
Which of them does the following episode lack, where its task calls for them? Write nothing but a JSON list of their names; \
an empty list if it lacks none.
{episode}
"""


@dataclass(frozen=True)
class Labels:
    """The capabilities that one episode lacks."""

    solved: bool
    lacks: Mapping[str, float]
    """Share of the passes that report the lack, by capability; capabilities that the task does not need are missing."""


@dataclass(frozen=True)
class Contrast:
    """Statistics of one capability over labelled episodes."""

    capability: str
    episodes: int
    """Number of episodes that need it."""
    in_failures: float
    """P(lack | failure); 0 without failures."""
    in_successes: float
    """P(lack | success); 0 without successes."""
    in_all: float
    """P(lack) among the episodes that need the capability."""
    agreement: float
    """Mean share of the passes that agree with the majority; 1 for labels by a program."""
    kept: bool

    @property
    def contrast(self) -> float:
        """S = P(lack | failure) - P(lack | success)."""
        return self.in_failures - self.in_successes


def contrasts(
    labels: Sequence[Labels],
    *,
    least_contrast: float = LEAST_CONTRAST,
    least_agreement: float = LEAST_AGREEMENT,
    least_lacked: float = 0.0,
    most: int = MOST,
) -> list[Contrast]:
    """Returns all labelled capabilities, the widest contrast first; at most ``most`` of them are ``kept``.

    Args:
        labels: The labels of each episode.
        least_contrast: The smallest contrast S of a kept capability.
        least_agreement: The smallest agreement of the passes of a kept capability.
        least_lacked: The smallest P(lack) of a kept capability. 0 suits labels by a model, which do not say whether an
            episode needs a capability: one that few tasks need is lacking in few.
        most: The largest number of kept capabilities.
    """
    found: list[Contrast] = []
    for name in sorted({name for one in labels for name in one.lacks}):
        called = [(one.solved, one.lacks[name]) for one in labels if name in one.lacks]
        failed, won = ([lack for solved, lack in called if solved is wanted] for wanted in (False, True))
        bad, good = (fmean(part) if part else 0.0 for part in (failed, won))
        agreement = fmean(max(lack, 1.0 - lack) for _, lack in called)
        lacked = fmean(lack for _, lack in called)
        wide, sure = bad - good >= least_contrast - 1e-9, agreement >= least_agreement - 1e-9
        kept = wide and sure and lacked >= least_lacked - 1e-9
        found.append(Contrast(name, len(called), bad, good, lacked, agreement, kept))
    ranked = sorted(found, key=lambda one: (-one.contrast, one.capability))
    best = [one.capability for one in ranked if one.kept][:most]
    return [Contrast(**{**vars(one), "kept": one.capability in best}) for one in ranked]


def label_by_skills(
    records: Sequence[EpisodeRecord], values: Sequence[float], skills: Mapping[str, Skill]
) -> list[Labels]:
    """Labels episodes by a program, in a single pass. Faults are left out.

    Args:
        records: The episodes of an evaluation.
        values: Their scores.
        skills: The skill to look for, by capability.
    """
    return [
        Labels(
            cause_of(record, value) == "correct",
            {
                name: float(not skill.demonstrated(record))
                for name, skill in skills.items()
                if skill.exercises(record)
            },
        )
        for record, value in zip(records, values, strict=True)
        if record["valid"]
    ]


async def propose(
    chat: Chat,
    records: Sequence[EpisodeRecord],
    values: Sequence[float],
    known: Sequence[str],
    *,
    most: int = MOST,
) -> dict[str, str]:
    """Asks a model to name capabilities by comparing failures with successes; returns descriptions by name.

    Args:
        chat: The model.
        records: The episodes of an evaluation.
        values: Their scores.
        known: Names that must not be proposed again.
        most: The largest number of capabilities.

    Raises:
        JudgeFault: the reply does not contain such a list.
        EndpointFault: the endpoint gave no reply.
    """
    pairs = [(r, cause_of(r, v) == "correct") for r, v in zip(records, values, strict=True) if r["valid"]]
    samples = [[r for r, won in pairs if won is wanted][:_EPISODES_SHOWN] for wanted in (False, True)]
    said = ("failed", "succeeded")
    episodes = "\n".join(
        f"This episode {what}:\n{transcript(r)}"
        for what, part in zip(said, samples, strict=True)
        for r in part
    )
    message = PROPOSE.format(most=most, known=", ".join(known), episodes=episodes)
    reply = await chat.complete([{"role": "user", "content": message}], max_tokens=_REPLY_TOKENS)
    rows = _json_list(reply.text)
    proposed = {
        str(row["name"]).strip(): str(row["description"]).strip()
        for row in rows
        if isinstance(row, dict) and {"name", "description"} <= row.keys()
    }
    return {name: text for name, text in list(proposed.items())[:most] if name and name not in known}


async def label_by_model(
    chat: Chat,
    records: Sequence[EpisodeRecord],
    values: Sequence[float],
    capabilities: Mapping[str, str],
    *,
    passes: int = PASSES,
) -> list[Labels]:
    """Labels each episode by ``passes`` independent replies of a model.

    A reply that is missing or cannot be parsed is not counted, and neither is one to an episode that does not fit into the
    model's context. An episode without any counted reply is left out, and so is one that ended by a fault.

    Args:
        chat: The model.
        records: The episodes of an evaluation.
        values: Their scores.
        capabilities: Descriptions by name.
        passes: The number of replies for each episode.

    Raises:
        JudgeFault: no reply to any episode could be obtained and parsed; the message gives the reason of the last one.
        ConfigurationError: the endpoint refuses the key or the model.
    """
    listed = "\n".join(f"- {name}: {text}" for name, text in capabilities.items())
    failed: list[str] = []

    async def one(record: EpisodeRecord, number: int) -> set[str] | None:
        message = LABEL.format(capabilities=listed, episode=transcript(record))
        try:
            reply = await chat.complete(
                [{"role": "user", "content": message}], max_tokens=_REPLY_TOKENS, temperature=1.0, seed=number
            )
            return {str(name) for name in _json_list(reply.text)} & capabilities.keys()
        except (ContextTooSmall, EndpointFault, JudgeFault, PolicyFault) as error:
            failed.append(str(error))
            return None

    async def label(record: EpisodeRecord, value: float) -> Labels | None:
        votes = [await one(record, number) for number in range(passes)]
        read = [vote for vote in votes if vote is not None]
        if not read:
            return None
        lacks = {name: fmean(name in vote for vote in read) for name in capabilities}
        return Labels(cause_of(record, value) == "correct", lacks)

    pairs = [(r, v) for r, v in zip(records, values, strict=True) if r["valid"]]
    labels = [one for one in await gather_all(label(*pair) for pair in pairs) if one is not None]
    if not labels:
        why = f"; the last: {failed[-1]}" if failed else ""
        raise JudgeFault(
            f"no reply of {chat.model} to {len(pairs)} episodes is a JSON list of capabilities{why}"
        )
    return labels


def transcript(record: EpisodeRecord) -> str:
    """Writes an episode as the model sees it, without the accepted answers."""
    turns = "\n".join(f"{turn['action']}\n{turn['observation']}" for turn in record.get("turns", ()))
    return shortened(f"Task: {record['question']}\n{turns}", _CHARS)


def _json_list(text: str) -> list[Any]:
    """Parses the JSON list in a reply, whatever text surrounds it.

    Raises:
        JudgeFault: the reply has no JSON list.
    """
    start, end = text.find("["), text.rfind("]")
    try:
        found = read_json(text[start : end + 1]) if 0 <= start < end else None
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise JudgeFault(f"the reply is no JSON list: {json.dumps(shortened(text, 200))}")
    return found
