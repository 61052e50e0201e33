"""Synonyms by hand: the cosine of two vectors, which names have any, how many, and the walk that they lead."""

from collections.abc import Sequence

import numpy as np
import pytest

from agentenv.core.types import Document
from agentenv.data.synthesis.facts import Fact
from agentenv.envs.search.fact_graph import FactGraph
from agentenv.envs.search.synonyms import Synonym, nearest, synonyms_of
from agentenv.retrievers.encoder import Recipe, Vectors
from agentenv.retrievers.rerank import OverlapReranker
from agentenv.retrievers.storage.corpus import Corpus


class Angles:
    """Gives names unit vectors by an angle in degrees; those that it does not know stand at a right angle to all others."""

    spec, id, dim, recipe = "angles", "angles", 8, Recipe()

    def __init__(self, **degrees: float) -> None:
        self.degrees = degrees

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), 8), dtype=np.float32)
        for row, text in enumerate(texts):
            if text in self.degrees:
                angle = np.deg2rad(self.degrees[text])
                vectors[row, :2] = np.cos(angle), np.sin(angle)
            else:
                vectors[row, 2 + row % 6] = 1.0
        return vectors

    encode_queries = encode_passages


def test_names_within_the_angle_are_synonyms_the_nearest_first() -> None:
    """Cosines of 10, 25 and 35 degrees are .985, .906 and .819; that of 45 degrees is .707."""
    found = synonyms_of(["rome", "roma", "roman", "ulm"], Angles(rome=0, roma=10, roman=35, ulm=80))
    assert [(s.name, s.other) for s in found] == [
        ("rome", "roma"),
        ("rome", "roman"),
        ("roma", "rome"),
        ("roma", "roman"),
        ("roman", "roma"),
        ("roman", "rome"),
    ]
    assert [s.similarity for s in found[:2]] == pytest.approx([0.98481, 0.81915], abs=1e-4)
    stricter = synonyms_of(["rome", "roma", "roman"], Angles(rome=0, roma=10, roman=35), similarity=0.95)
    assert [(s.name, s.other) for s in stricter] == [("rome", "roma"), ("roma", "rome")]
    assert synonyms_of([], Angles()) == []


def test_a_name_of_two_letters_has_no_synonyms_of_its_own() -> None:
    vectors = Angles(eu=0, euro=0).encode_passages(["eu", "euro"])
    assert list(nearest(["eu", "euro"], vectors, similarity=0.8)) == [Synonym("euro", "eu", 1.0)]


def test_a_name_has_at_most_101_and_rows_are_compared_in_parts() -> None:
    names = [f"name {place}" for place in range(1003)]
    found = list(nearest(names, np.ones((1003, 1), dtype=np.float32), similarity=0.8))
    assert len(found) == 101 * 1003
    last = [s.other for s in found if s.name == "name 1002"]
    assert last == names[:101]


def test_a_walk_goes_on_by_a_synonym() -> None:
    """What is asked is stated of Ada Stone, and the other passage writes A. Stone; their edge weighs the cosine, .9."""
    corpus = Corpus([Document("1", "Halvik", "."), Document("2", "Ulm", ".")])
    facts = [Fact("1", "Halvik", "was built by", "Ada Stone"), Fact("2", "Ulm", "is home of", "Adastone")]
    alike = Angles(**{"ada stone": 0, "adastone": float(np.rad2deg(np.arccos(0.9)))})
    apart = FactGraph(corpus, facts)
    linked = FactGraph(corpus, facts, alike)
    judge = OverlapReranker()
    assert [p.id for p in apart.rank("who built Halvik", [], 9, judge)] == ["1"]
    assert [p.id for p in linked.rank("who built Halvik", [], 9, judge)] == ["1", "2"]
    assert [
        p.id for p in FactGraph(corpus, facts, alike, similarity=0.95).rank("built Halvik", [], 9, judge)
    ] == ["1"]


def test_the_similarity_takes_the_place_of_a_facts_edge() -> None:
    """Of two names a and b and their passage p the edge of a and b weighs .9 and those to p 1 each.

    The walk begins at both names alike and goes on with probability 1/2, from a name to p in 1 of 1.9 cases. So p = a / 1.9
    and 2 a + p = 1, which gives p = 1 / 4.8; an edge of weight 1 would give p = a / 2 = 1/5.
    """
    corpus = Corpus([Document("1", "Halvik", ".")])
    facts = [Fact("1", "rome", "is", "roma")]
    alike = Angles(rome=0, roma=float(np.rad2deg(np.arccos(0.9))))
    (found,) = FactGraph(corpus, facts, alike).rank("rome", [], 1, OverlapReranker())
    assert found.score == pytest.approx(1 / 4.8)
