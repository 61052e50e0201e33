"""The graph of facts by hand: seeds, a walk over three nodes, what is found and what stands next to it."""

import pytest

from agentenv.core.types import Document, Passage
from agentenv.data.synthesis.facts import Fact
from agentenv.envs.search.fact_graph import FactGraph, seed_weights
from agentenv.errors import DatasetError
from agentenv.retrievers.rerank import OverlapReranker
from agentenv.retrievers.storage.corpus import Corpus

CORPUS = Corpus(
    [
        Document("1", "Halvik", "Halvik was built by Ada Stone."),
        Document("2", "Ada Stone", "She left for Ulm."),
        Document("3", "Ulm", "A town on a river."),
        Document("4", "Ketterby", "Nothing to see."),
    ]
)
FACTS = [
    Fact("1", "Halvik", "was built by", "Ada Stone"),
    Fact("2", "ada stone", "left for", "Ulm"),
    Fact("3", "Ulm", "is on", "a river"),
]
JUDGE = OverlapReranker()


def test_a_name_weighs_the_mean_of_its_facts_over_its_passages() -> None:
    """Ada Stone: (.8 + .4) / 2 over two passages; Halvik .8 over one; Ulm .4 over two."""
    weights = seed_weights([(0.8, FACTS[0]), (0.4, FACTS[1])], {"halvik": 1, "ada stone": 2, "ulm": 2})
    assert weights == pytest.approx({"halvik": 0.8, "ada stone": 0.3, "ulm": 0.2})


def test_a_walk_over_one_fact() -> None:
    """Of two names and their passage, each next to both others, the names are the seeds: x = (1 - x) / 4, so x = 1/5."""
    (found,) = FactGraph(Corpus([Document("1", "A", "a")]), [Fact("1", "a1", "r", "b1")]).rank(
        "a1", [], 3, JUDGE
    )
    assert found.id == "1"
    assert found.score == pytest.approx(0.2)


def test_a_passage_is_found_by_what_another_states() -> None:
    """The query shares words with the first passage alone; the walk goes on by Ada Stone to the second, then the third."""
    graph = FactGraph(CORPUS, FACTS)
    assert [p.id for p in graph.rank("who built halvik", [], 9, JUDGE)] == ["1", "2", "3"]
    assert [p.id for p in graph.rank("who built halvik", [], 1, JUDGE)] == ["1"]


def test_what_a_search_finds_is_a_seed_of_little_weight_and_all_there_is_without_a_fact() -> None:
    graph = FactGraph(CORPUS, FACTS)
    ranking = [Passage("4", "Ketterby", "Nothing to see.", 3.0)]
    assert [p.id for p in graph.rank("who built halvik", ranking, 9, JUDGE)] == ["1", "2", "4", "3"]
    assert graph.rank("zebra", ranking, 9, JUDGE) == ranking
    assert graph.rank("zebra", [], 9, JUDGE) == []


def test_passages_that_share_a_name_stand_next_to_each_other() -> None:
    graph = FactGraph(CORPUS, FACTS)
    assert [d.id for d in graph.near("Ada Stone")] == ["2", "1", "3"]  # about her, and then by way of Ulm
    assert [d.id for d in graph.near("the River")] == ["3", "2"]
    assert graph.near("Nobody") == []


def test_no_fact_and_facts_of_elsewhere_are_refused() -> None:
    with pytest.raises(DatasetError, match="no fact"):
        FactGraph(CORPUS, [])
    with pytest.raises(DatasetError, match="'9'"):
        FactGraph(CORPUS, [Fact("9", "a", "b", "c")])
