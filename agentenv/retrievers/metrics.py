"""Measures of whether a retriever finds what questions need."""

from collections.abc import Collection, Sequence

from agentenv.errors import ConfigurationError


def recall_at_k(
    ranked_ids: Sequence[Sequence[str]], supporting_ids: Sequence[Collection[str]], k: int
) -> float:
    """Returns the mean over questions of the share of supporting documents among the first ``k`` retrieved ones.

    Args:
        ranked_ids: The retrieved ids of each question, best first.
        supporting_ids: The ids that each question needs.
        k: The number of retrieved ids that count.

    Raises:
        ConfigurationError: there are no questions, or a question has no supporting documents.
    """
    shares = _shares(ranked_ids, supporting_ids, k)
    return sum(shares) / len(shares)


def all_at_k(ranked_ids: Sequence[Sequence[str]], supporting_ids: Sequence[Collection[str]], k: int) -> float:
    """Returns the share of questions with all supporting documents among the first ``k``; otherwise like `recall_at_k`."""
    shares = _shares(ranked_ids, supporting_ids, k)
    return sum(share == 1 for share in shares) / len(shares)


def _shares(
    ranked_ids: Sequence[Sequence[str]], supporting_ids: Sequence[Collection[str]], k: int
) -> list[float]:
    if not supporting_ids or not all(supporting_ids):
        raise ConfigurationError("Recall needs at least one question, and supporting_ids for each.")
    return [
        len(set(needed).intersection(ranked[:k])) / len(set(needed))
        for ranked, needed in zip(ranked_ids, supporting_ids, strict=True)
    ]
