"""The record of an episode: the token ids that were sampled or fed to the policy, divided into segments.

Text is derived from the ids and never stored in their place. Shapes: T is the number of tokens of one trajectory. Arrays
over T are computed from the segments and are never edited. A change of an episode builds a new ``Trajectory`` from other
segments.
"""

import json
import math
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentenv.core.images import PlacedImage, read_image
from agentenv.core.scene import TurnScene
from agentenv.core.types import EndReason, Message, Observation, Task, ToolResult, ToolStatus
from agentenv.errors import ConfigurationError


class SegmentKind(StrEnum):
    """Where the tokens of a segment come from. Only ``policy`` tokens can be trained."""

    PROMPT = "prompt"
    POLICY = "policy"  # sampled
    ENV = "env"  # an observation
    FORMAT = "format"  # end-of-turn marks that the policy did not sample
    INJECTED = "injected"  # put in by a strategy: guidance, demonstrations


class Origin(StrEnum):
    """How a trajectory was made."""

    BASE = "base"
    RETRY = "retry"
    SPLICE = "splice"
    BRANCH = "branch"
    REPLAY = "replay"
    REFLECTION = "reflection"  # a dialogue about another episode
    DEMONSTRATION = "demonstration"


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one kind within one turn."""

    kind: SegmentKind
    ids: tuple[int, ...]
    turn: int
    """Index of the turn that the tokens belong to: an observation has the index of its action, and the prompt has 0."""
    logprobs: tuple[float, ...] = ()
    """Sampler log-probability of each id; only for policy segments."""
    version: int = -1
    """Version of the weights that sampled the ids; -1 if they were not sampled."""
    context_mismatch: bool = False
    """True if the tokens were sampled in another context than the one in which they stand now. No importance ratio may then
    use their log-probs."""
    trained: bool = True
    """False leaves policy tokens out of the loss, for example the turns before a pivot."""
    exact_tokens: bool = True
    """False if the ids were made from text and are not those that the policy sampled. Such a segment can be evaluated and
    not trained."""
    row: int = 0
    """A row is one token sequence. A new row is opened when a prompt does not begin with the ids so far."""
    images: tuple[PlacedImage, ...] = ()
    """The images that some of the ids represent, in order; their positions count from the segment's first id."""

    def __post_init__(self) -> None:
        expected = len(self.ids) if self.kind is SegmentKind.POLICY else 0
        if len(self.logprobs) != expected:
            raise ValueError(
                f"a {self.kind} segment of {len(self.ids)} ids needs {expected} log-probs, "
                f"got {len(self.logprobs)}"
            )

    def part(self, start: int, end: int) -> "Segment":
        """Returns the tokens of the segment from ``start`` to before ``end``, with the images that lie completely within."""
        held = tuple(
            image.moved(-start) for image in self.images if start <= image.start and image.end <= end
        )
        return replace(self, ids=self.ids[start:end], logprobs=self.logprobs[start:end], images=held)

    def joined(self, other: "Segment") -> "Segment":
        """Returns the tokens of this segment followed by those of ``other``. Log-probs are not compared."""
        later = tuple(image.moved(len(self.ids)) for image in other.images)
        return replace(self, ids=self.ids + other.ids, images=self.images + later)


def placed_in(segments: Sequence[Segment]) -> tuple[PlacedImage, ...]:
    """Returns the images of the row that ``segments`` make up, with their positions in the row."""
    found: list[PlacedImage] = []
    start = 0
    for segment in segments:
        found += [image.moved(start) for image in segment.images]
        start += len(segment.ids)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Turn:
    """One action of the policy and the answer of the environment."""

    action: str
    observation: Observation = ()
    tool_results: tuple[ToolResult, ...] = ()
    reward: float = 0.0
    valid: bool = True
    anchor_key: str | None = None
    """Key of the state in which the action was chosen; see ``Env.anchor_key``."""
    policy_seconds: float = 0.0
    env_seconds: float = 0.0
    scene: TurnScene | None = None
    """The screen on which the action was chosen, if the environment has one."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    """The named parts of ``reward``, from ``info["reward_parts"]``. They need not add up to all of it."""
    cut: bool = False
    """Whether a token budget ended the action, and not the policy."""


@dataclass(frozen=True)
class Trajectory:
    """One episode, ready for credit assignment."""

    task: Task
    segments: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    reward: float
    end_reason: EndReason
    prompt: Observation = ()
    """The messages that opened the episode, as text. Their ids are in the first segment."""
    tools: tuple[Mapping[str, Any], ...] | None = None
    """The declared tools in OpenAI's form; None if the policy does not use its native form, or if a later context changed
    them."""
    valid: bool = True
    """False after an infrastructure failure. Such an episode counts neither in the loss nor in any statistic."""
    error: str = ""
    """The message of the infrastructure failure, if there was one."""
    reports_searches: bool = True
    """Whether its tool results include all its searches; see ``Env.reports_searches``."""
    group_id: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    parent_id: str | None = None
    fork_turn: int | None = None
    origin: Origin = Origin.BASE
    info: dict[str, Any] = field(default_factory=dict)
    """The info of the last step, except the entries that have a field here; for example "answer". "strategy" contains the
    metrics of the rollout strategy: numbers and lists of numbers by name."""

    def _spread(self, values: Sequence[Any], dtype: Any) -> NDArray[Any]:
        counts = [len(segment.ids) for segment in self.segments]
        return np.repeat(np.asarray(values, dtype=dtype), counts)

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """int64[T]: all tokens, row after row."""
        return np.fromiter((i for segment in self.segments for i in segment.ids), dtype=np.int64)

    @cached_property
    def loss_mask(self) -> NDArray[np.bool_]:
        """bool[T]: true on sampled tokens that are trained.

        Raises:
            ConfigurationError: the engine returned no token ids, so there is nothing to train on.
        """
        if not all(segment.exact_tokens for segment in self.segments):
            raise ConfigurationError(
                f"The episode of task {self.task.id!r} was played by an endpoint that gives text and no token "
                "ids: it can be evaluated and not trained on. Train with hf:PATH."
            )
        return self._spread([s.kind is SegmentKind.POLICY and s.trained for s in self.segments], np.bool_)

    @cached_property
    def logprobs(self) -> NDArray[np.float32]:
        """float32[T]: log-probs recorded by the sampler, 0 for tokens that were not sampled."""
        zeros: dict[int, tuple[float, ...]] = {}
        parts = (s.logprobs or zeros.setdefault(len(s.ids), (0.0,) * len(s.ids)) for s in self.segments)
        return np.fromiter((value for part in parts for value in part), dtype=np.float32)

    @cached_property
    def context_mismatch(self) -> NDArray[np.bool_]:
        """bool[T]: true on tokens that were sampled in another context than the one in which they stand now."""
        return self._spread([s.context_mismatch for s in self.segments], np.bool_)

    @cached_property
    def policy_version(self) -> NDArray[np.int64]:
        """int64[T]: version of the weights that sampled each token, -1 for tokens that were not sampled."""
        return self._spread([s.version for s in self.segments], np.int64)

    @cached_property
    def turn_index(self) -> NDArray[np.int64]:
        """int64[T]: the policy turn that each token belongs to."""
        return self._spread([s.turn for s in self.segments], np.int64)

    @cached_property
    def row_slices(self) -> list[slice]:
        """One slice of the arrays for each row; nearly always a single one."""
        rows = self._spread([s.row for s in self.segments], np.int64)
        edges = np.flatnonzero(np.diff(rows)) + 1
        bounds = [0, *edges.tolist(), len(rows)] if len(rows) else []
        return [slice(a, b) for a, b in pairwise(bounds)]

    @cached_property
    def row_images(self) -> list[tuple[PlacedImage, ...]]:
        """The images of each row with their positions in it, in the order of ``row_slices``."""
        # A row without tokens has no slice, and the images must match the slices.
        held = (segment for segment in self.segments if segment.ids)
        return [placed_in(list(row)) for _, row in groupby(held, key=lambda segment: segment.row)]

    @property
    def guided(self) -> bool:
        """Whether the policy had help: the episode is a retry, a reflection, or a demonstration of the expert."""
        retried = self.origin is Origin.RETRY and self.parent_id is not None
        return retried or self.origin in (Origin.REFLECTION, Origin.DEMONSTRATION)

    @property
    def response_tokens(self) -> int:
        """Number of sampled tokens."""
        return sum(len(s.ids) for s in self.segments if s.kind is SegmentKind.POLICY)

    def with_segments(self, segments: Sequence[Segment], **changes: Any) -> "Trajectory":
        """The same episode with other segments. It has a new id, and this trajectory is its parent."""
        lineage = {"id": uuid.uuid4().hex, "parent_id": self.id} | changes
        return replace(self, segments=tuple(segments), **lineage)

    def cut(self, turn: int) -> "Trajectory":
        """The part of the episode before turn ``turn``."""
        kept = [s for s in self.segments if _precedes_turn(s, turn)]
        return self.with_segments(kept, turns=self.turns[:turn], fork_turn=turn)

    def splice(self, turn: int, replacement: Sequence[Segment], record: Turn) -> "Trajectory":
        """The same episode with turn ``turn`` replaced by other segments and another record."""
        before = [s for s in self.segments if _precedes_turn(s, turn)]
        after = [s for s in self.segments if s.turn > turn]
        turns = (*self.turns[:turn], record, *self.turns[turn + 1 :])
        spliced = (*before, *replacement, *after)
        return self.with_segments(spliced, turns=turns, fork_turn=turn, origin=Origin.SPLICE)


def _precedes_turn(segment: Segment, turn: int) -> bool:
    """Whether ``segment`` is in the context of turn ``turn``. The prompt of a row that was opened for this turn is."""
    return segment.turn < turn or (segment.kind is SegmentKind.PROMPT and segment.turn == turn)


def to_record(trajectory: Trajectory, *, whole: bool = False) -> dict[str, Any]:
    """Returns the trajectory in plain values for JSON: everything that credit and loss depend on, without times.

    Args:
        trajectory: The episode.
        whole: Whether the record contains its images; otherwise it contains their digests (see ``keep_image``).
    """
    images = {image.digest: image.image for segment in trajectory.segments for image in segment.images}
    held = {digest: b64encode(image).decode() for digest, image in images.items()}
    return ({"images": held} if whole and held else {}) | {
        "id": trajectory.id,
        "group_id": trajectory.group_id,
        "parent_id": trajectory.parent_id,
        "fork_turn": trajectory.fork_turn,
        "origin": trajectory.origin,
        "task": {"id": trajectory.task.id, "question": trajectory.task.question},
        "reward": trajectory.reward,
        "end_reason": trajectory.end_reason,
        "valid": trajectory.valid,
        "error": trajectory.error,
        "segments": [
            {"kind": s.kind, "turn": s.turn, "row": s.row, "ids": s.ids, "version": s.version}
            | ({"logprobs": s.logprobs} if s.logprobs and s.exact_tokens else {})
            | ({"context_mismatch": True} if s.context_mismatch else {})
            | ({} if s.trained else {"trained": False})
            | ({} if s.exact_tokens else {"exact_tokens": False})
            | ({"images": [(i.start, i.rows, i.columns, i.digest) for i in s.images]} if s.images else {})
            for s in trajectory.segments
        ],
        "turns": [
            {
                "action": turn.action,
                "observation": "".join(message.text for message in turn.observation),
                "tool_results": [
                    {"name": r.name, "status": r.status, "text": r.text, "error_class": r.error_class}
                    for r in turn.tool_results
                ],
                "reward": turn.reward,
                "valid": turn.valid,
                "anchor_key": turn.anchor_key,
            }
            | ({"reward_parts": dict(turn.reward_parts)} if turn.reward_parts else {})
            for turn in trajectory.turns
        ],
    }


def checkpoint_record(trajectory: Trajectory) -> dict[str, Any]:
    """Returns the whole record for a checkpoint, which is read with ``weights_only`` and so may hold only plain values."""
    record: dict[str, Any] = json.loads(json.dumps(to_record(trajectory, whole=True)))
    return record


def from_record(record: Mapping[str, Any], task: Task, images: Path | None = None) -> Trajectory:
    """Restores the trajectory from a record of ``to_record``, with everything that credit and loss read.

    It lacks what ``to_record`` omits: the opening messages, times, scenes and the data of tool results. Each observation is
    a single text message.

    Args:
        record: The record.
        task: Its task.
        images: The folder of images that are not in the record itself; see ``keep_image``.

    Raises:
        ConfigurationError: an image that the record names is missing or has another content.
    """
    held = {digest: b64decode(image) for digest, image in record.get("images", {}).items()}

    def image_of(digest: str) -> bytes:
        if digest not in held:
            held[digest] = read_image(images, digest)
        return held[digest]

    return Trajectory(
        task=task,
        segments=tuple(_segment(segment, image_of) for segment in record["segments"]),
        turns=tuple(_turn(turn) for turn in record["turns"]),
        reward=record["reward"],
        end_reason=EndReason(record["end_reason"]),
        valid=record["valid"],
        error=record["error"],
        group_id=record["group_id"],
        id=record["id"],
        parent_id=record["parent_id"],
        fork_turn=record["fork_turn"],
        origin=Origin(record["origin"]),
    )


def _segment(record: Mapping[str, Any], image_of: Callable[[str], bytes]) -> Segment:
    kind, ids = SegmentKind(record["kind"]), tuple(record["ids"])
    unknown = len(ids) if kind is SegmentKind.POLICY else 0  # an endpoint returns no log-probs
    return Segment(
        kind,
        ids,
        record["turn"],
        logprobs=tuple(record.get("logprobs", (math.nan,) * unknown)),
        version=record["version"],
        context_mismatch=record.get("context_mismatch", False),
        trained=record.get("trained", True),
        exact_tokens=record.get("exact_tokens", True),
        row=record["row"],
        images=tuple(PlacedImage(image_of(digest), *place) for *place, digest in record.get("images", ())),
    )


def _turn(record: Mapping[str, Any]) -> Turn:
    results = [
        ToolResult(r["name"], ToolStatus(r["status"]), r["text"], r["error_class"])
        for r in record["tool_results"]
    ]
    return Turn(
        action=record["action"],
        observation=(Message("tool", record["observation"]),) if record["observation"] else (),
        tool_results=tuple(results),
        reward=record["reward"],
        valid=record["valid"],
        anchor_key=record["anchor_key"],
        reward_parts=record.get("reward_parts", {}),
    )
