"""Rankings that are cut at random: how long they are, and that an episode which is played again sees the same."""

import asyncio
from collections import Counter

import pytest

from agentenv.core.types import Document, Query, QueryContext
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.prefixes import PrefixRetriever, prefix_length


def asked(seed: int, step: int = 0) -> Query:
    return Query("halvik", QueryContext("e", step=step, seed=seed))


def test_each_number_from_one_on_is_as_likely_as_the_others() -> None:
    """Of 3000 draws of 3 each number comes 1000 times, with a standard error of 26; five of them are 130."""
    counts = Counter(prefix_length(asked(seed), 3) for seed in range(3000))
    assert set(counts) == {1, 2, 3}
    assert all(count == pytest.approx(1000, abs=130) for count in counts.values())
    assert [prefix_length("halvik", found) for found in (0, 1)] == [0, 1]


def test_the_draw_depends_on_the_episode_and_on_nothing_else() -> None:
    assert len({prefix_length(asked(3), 100) for _ in range(5)}) == 1
    assert len({prefix_length(asked(3, step), 100) for step in range(9)}) > 1


def test_a_ranking_keeps_its_order_and_the_retriever_says_that_it_depends_on_the_episode() -> None:
    inner = InMemoryRetriever([Document(f"d{n}", f"T{n}", "halvik " * (5 - n)) for n in range(4)])
    retriever = PrefixRetriever(inner)
    (whole,) = asyncio.run(inner.search(["halvik"], 4))
    for seed in range(9):
        (shown,) = asyncio.run(retriever.search([asked(seed)], 4))
        assert shown == whole[: len(shown)] != []
    assert retriever.info().contextual
    assert retriever.info().fingerprint != inner.info().fingerprint
