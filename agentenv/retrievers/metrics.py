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
    if not supporting_ids or not all(supporting_ids):
        raise ConfigurationError("Recall needs questions, and a supporting document for every one of them.")
    shares = [
        len(set(needed).intersection(ranked[:k])) / len(set(needed))
        for ranked, needed in zip(ranked_ids, supporting_ids, strict=True)
    ]
    return sum(shares) / len(shares)
