"""When the question in play is refused: by the rules, as a duplicate, as trivial, unanswerable or ambiguous.

A check gives the name of the flaw, which is counted, or None. A check whose own episodes all failed refuses too
(``unverified``): nothing is accepted that was not looked at.
"""

from collections.abc import Callable, Mapping

from agentenv.core.scoring.normalize import squad
from agentenv.envs.search.proposals import FILTERS, Rules, refusal
from agentenv.envs.search.self_play import Deal
from agentenv.trainers.selfplay.board import Board

Check = Callable[[Board, Rules, Deal], str | None]

UNVERIFIED = "unverified"
"""The flaw that is ours."""
_OF_TEXT = ("no_question", "too_short", "too_long", "few_words")


def signature(question: str) -> str:
    """What duplicates have in common: the question normalised as SQuAD does."""
    return squad(question)


def _rules(board: Board, rules: Rules, deal: Deal) -> str | None:
    flaw = "no_question" if board.proposal is None else refusal(board.proposal, rules)
    return flaw or _duplicate(board, deal)


def _posed(board: Board, rules: Rules, deal: Deal) -> str | None:
    """The rules of a question alone, for games without golds."""
    if board.proposal is None:
        return "no_question"
    proposal = board.proposal
    flaw = next((name for name in _OF_TEXT if FILTERS[name](proposal, rules)), None)
    copied = deal.reference and signature(deal.reference) == signature(proposal.question)
    return flaw or ("copied" if copied else None) or _duplicate(board, deal)


def _duplicate(board: Board, deal: Deal) -> str | None:
    assert board.proposal is not None
    return "duplicate" if signature(board.proposal.question) in deal.known else None


def _agreed(move: str, flaw: str) -> Check:
    """Every episode of ``move`` has to give the gold."""

    def check(board: Board, rules: Rules, deal: Deal) -> str | None:
        played = board.valid(move)
        if len(played) < len(board.plays[move]):
            return UNVERIFIED
        return None if all(trajectory.info.get("agrees") for trajectory in played) else flaw

    return check


def _not_trivial(board: Board, rules: Rules, deal: Deal) -> str | None:
    played = board.valid("guess")
    if len(played) < len(board.plays["guess"]):
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
