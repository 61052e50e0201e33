"""The state of one game: what has been played so far, the question in play, and what it was refused for."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentenv.core.grammar import shortened
from agentenv.core.protocols import ChatFormat
from agentenv.core.tool_results import searches_of
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Message, Task
from agentenv.envs.search.page_format import filled
from agentenv.envs.search.proposals import Proposal

_ROOM = 8  # of its context a role has at least this part for its reply, where cutting what others wrote can give it
_LEAST_CHARS = 200  # of a text that is not cut further


def successes(state: "GameState") -> float | None:
    """Share of the attempts that succeeded; a reward short of a success is none."""
    return mean_of([float(bool(t.info.get("success"))) for t in state.valid("solve")])


@dataclass
class GameState:
    """One game under way."""

    seed: Task
    """What it began with."""
    rate_by: Callable[["GameState"], float | None] | None = successes
    """What says how well the question was solved; None where the game does not tell."""
    plays: dict[str, list[Trajectory]] = field(default_factory=dict)
    """The episodes of each move played so far, by place."""
    refused: list[Trajectory] = field(default_factory=list)
    """Proposer's episodes whose question was refused."""
    proposal: Proposal | None = None
    """The latest one."""
    task: Task | None = None
    """The question in play, with its gold where there is one."""
    pooled: bool = False
    """Whether it is one of the pool."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """Every proposal so far: ``topic``, ``question``, ``answer``, the proposer's ``searches``, ``outcome`` (the flaw that it
    was refused for or ``accepted``; ``pooled`` for a question of the pool) and ``solve_rate``, where it was played."""
    counts: Counter[str] = field(default_factory=Counter)
    """What happened how often."""

    def log(self, outcome: str) -> None:
        """Notes what became of the question in play."""
        question, answer = "", ""
        if self.task is not None:
            question, answer = self.task.question, next(iter(self.task.answers), "")
            searches = self.task.data.get("searches", 0)
        else:  # its proposer may have searched all the same
            turns = [turn for played in self.plays.get("propose", ()) for turn in played.turns]
            searches = len(searches_of(result for turn in turns for result in turn.tool_results) or ())
        row = {"topic": self.seed.question, "question": question, "answer": answer, "searches": searches}
        played = {} if self.solve_rate is None else {"solve_rate": self.solve_rate}
        self.asked.append(row | {"outcome": outcome} | played)

    def text(self, source: str, place: int) -> str:
        """The field ``MOVE.TAG`` of the episode at ``place``; empty where it was not written."""
        move, _, tag = source.partition(".")
        return field_of(self.plays[move][place], tag)

    def valid(self, move: str) -> list[Trajectory]:
        """The episodes of ``move`` that no infrastructure failure ended."""
        return [trajectory for trajectory in self.plays.get(move, ()) if trajectory.valid]

    @property
    def solve_rate(self) -> float | None:
        """How well the question was solved, 0 to 1; None where nothing can be said."""
        return self.rate_by(self) if self.rate_by else None


def outcomes(groups: Iterable[Sequence[Trajectory]]) -> list[dict[str, Any]]:
    """What became of the question of each game among the episodes: ``info["game"]``."""
    return [trajectory.info["game"] for group in groups for trajectory in group if "game" in trajectory.info]


def asked(groups: Iterable[Sequence[Trajectory]]) -> list[dict[str, Any]]:
    """Every proposal of the games among the episodes, as ``GameState.asked`` has it."""
    return [row for outcome in outcomes(groups) for row in outcome["asked"]]


def field_of(trajectory: Trajectory, tag: str) -> str:
    """What a written turn put into ``tag``; empty where it did not."""
    return str(trajectory.info.get("fields", {}).get(tag, ""))


def actions_of(trajectory: Trajectory) -> str:
    """All that the policy itself wrote."""
    return "".join(turn.action for turn in trajectory.turns)


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return sum(values) / len(values) if values else None


def fitting(
    prompt: str, seen: Mapping[str, str], written: Collection[str], chat: ChatFormat, context_tokens: int
) -> str:
    """``prompt`` filled with ``seen``; what roles have written is cut in its middle where it leaves no room for a reply.

    A role that writes too much for the prompt of its judge would have no verdict otherwise, and its episode be left out.

    Args:
        prompt: Of a written turn.
        seen: What each of its braces is filled with.
        written: The braces whose texts roles have written; only these are cut, the longest first.
        chat: How the prompt becomes ids.
        context_tokens: Of the role that reads it.
    """

    def tokens(text: str) -> int:
        return len(chat.prompt((Message("user", text),)))

    texts, most = dict(seen), context_tokens - context_tokens // _ROOM
    while tokens(text := filled(prompt, texts)) > most:
        longest = max(written, key=lambda brace: len(texts[brace]), default="")
        if len(texts.get(longest, "")) <= _LEAST_CHARS:
            # What takes the room is not theirs, such as documents: cutting is of use only where nothing fits otherwise.
            whole = filled(prompt, seen)
            return whole if tokens(whole) < context_tokens else text
        texts[longest] = shortened(seen[longest], len(texts[longest]) // 2)
    return text


def paid_by_game(played: Trajectory, reward: float) -> Trajectory:
    """``played`` with the game's reward for all of it, which its last turn gets."""
    if not played.valid:
        return played
    turns = played.turns
    if turns:
        turns = (*turns[:-1], replace(turns[-1], reward=reward - sum(turn.reward for turn in turns[:-1])))
    return replace(played, reward=reward, turns=turns)


def masked(played: Trajectory, why: str) -> Trajectory:
    """``played`` masked: left out of the loss and of all statistics."""
    return replace(played, valid=False, reward=0.0, error=played.error or why)


def without_tokens(played: Trajectory) -> Trajectory:
    """``played`` without tokens: others' weights wrote them."""
    return replace(played, segments=())
