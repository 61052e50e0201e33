"""When the question in play is refused: by the rules, as a duplicate, as trivial, unanswerable or ambiguous.

A check gives the name of the flaw, which is counted, or None. A check whose own episodes all failed refuses too
(``unverified``): nothing is accepted that was not looked at.
"""

from collections.abc import Callable, Mapping

from agentenv.core.scoring.normalize import squad
from agentenv.envs.search.proposals import QuestionRules, as_read, refusal
from agentenv.envs.search.self_play import GameSetup
from agentenv.trainers.selfplay.game_state import GameState

Check = Callable[[GameState, QuestionRules, GameSetup], str | None]

UNVERIFIED = "unverified"
"""The flaw that is ours."""


def signature(question: str) -> str:
    """What duplicates have in common: the question as it is read (`as_read`), normalised as SQuAD does."""
    return squad(as_read(question))


def _rules(state: GameState, rules: QuestionRules, setup: GameSetup) -> str | None:
    flaw = "no_question" if state.proposal is None else refusal(state.proposal, rules)
    return flaw or _duplicate(state, setup)


def _posed(state: GameState, rules: QuestionRules, setup: GameSetup) -> str | None:
    """Whether there is a question at all; what it is worth, the judge of the game says (MAE)."""
    return "no_question" if state.proposal is None else None


def _duplicate(state: GameState, setup: GameSetup) -> str | None:
    assert state.proposal is not None
    return "duplicate" if signature(state.proposal.question) in setup.known else None


def _agreed(move: str, flaw: str) -> Check:
    """Every episode of ``move`` has to give the gold."""

    def check(state: GameState, rules: QuestionRules, setup: GameSetup) -> str | None:
        played = state.valid(move)
        if len(played) < len(state.plays[move]):
            return UNVERIFIED
        return None if all(trajectory.info.get("agrees") for trajectory in played) else flaw

    return check


def _not_trivial(state: GameState, rules: QuestionRules, setup: GameSetup) -> str | None:
    played = state.valid("guess")
    if len(played) < len(state.plays["guess"]):
        return UNVERIFIED
    return "trivial" if any(trajectory.info.get("success") for trajectory in played) else None


AGREED = ("answerable", "unique")
"""The checks that ask a verifier for the gold."""

CHECKS: Mapping[str, Check] = {
    "rules": _rules,
    "posed": _posed,
    "not_trivial": _not_trivial,
    "answerable": _agreed("verify", "unanswerable"),
    "unique": _agreed("compete", "ambiguous"),
}
"""The checks by name."""
