"""How well a retriever finds what a question needs."""

from collections.abc import Collection, Sequence

from agentenv.errors import ConfigurationError


def recall_at_k(
    ranked_ids: Sequence[Sequence[str]], supporting_ids: Sequence[Collection[str]], k: int
) -> float:
    """Mean over questions of the share of supporting documents among the first ``k`` retrieved.

    Args:
        ranked_ids: for each question the retrieved ids, best first.
        supporting_ids: for each question the ids that it needs.
        k: how many retrieved ids count.

    Raises:
        ConfigurationError: no questions, or a question without supporting documents.
    """
    shares = _shares(ranked_ids, supporting_ids, k)
    return sum(shares) / len(shares)


def all_at_k(ranked_ids: Sequence[Sequence[str]], supporting_ids: Sequence[Collection[str]], k: int) -> float:
    """Share of questions all of whose supporting documents are among the first ``k``; the rest as `recall_at_k`."""
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
