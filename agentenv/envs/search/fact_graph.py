"""The graph of facts that HierSearch searches: names and passages, ranked by random walks from facts that match a query.

HippoRAG (Gutierrez et al. 2024, arXiv:2405.14831), with facts as the seeds of the walk as in its second version
(arXiv:2502.14802). Names are equal if they are equal after the normalisation of SQuAD. With an encoder, similar names are
linked by an edge.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from agentenv.core.scoring.normalize import squad
from agentenv.core.types import Document, Passage
from agentenv.data.synthesis.facts import Fact, facts_of_titles, read_facts
from agentenv.envs.search.page_graph import personalised_pagerank
from agentenv.envs.search.synonyms import SIMILARITY, synonyms_of
from agentenv.errors import DatasetError
from agentenv.retrievers.encoder import Encoder, make_encoder
from agentenv.retrievers.rerank import Reranker
from agentenv.retrievers.storage.corpus import Corpus

TITLES = "titles"
"""Used in place of a file for the facts that a rule derives from titles."""
PASSAGE_WEIGHT = 0.05
"""The weight of passages among the seeds, relative to names (HippoRAG 2)."""
MOST_FACTS = 5
"""The number of facts from which a walk starts (HippoRAG 2)."""


def seed_weights(facts: Sequence[tuple[float, Fact]], passages: Mapping[str, int]) -> dict[str, float]:
    """Returns the weight of each name in the facts: the mean score of its facts over its number of passages (HippoRAG 2).

    Args:
        facts: Facts with their scores.
        passages: The number of passages that contain a name; rare names are more specific (HippoRAG's node specificity).
    """
    scores: dict[str, list[float]] = defaultdict(list)
    for score, fact in facts:
        for name in dict.fromkeys((squad(fact.subject), squad(fact.object))):
            scores[name].append(score)
    return {name: sum(some) / len(some) / passages[name] for name, some in scores.items()}


class FactGraph:
    """Names and passages of a corpus, with an edge for every fact, every name in a passage, and every pair of synonyms.

    Args:
        corpus: The passages.
        facts: The facts in the passages.
        encoder: Finds synonyms among names by their vectors; None finds none.
        similarity: The cosine from which on two names are synonyms.

    Raises:
        DatasetError: there is no fact, or one that belongs to no passage of the corpus.
    """

    def __init__(
        self,
        corpus: Corpus,
        facts: Sequence[Fact],
        encoder: Encoder | None = None,
        *,
        similarity: float = SIMILARITY,
    ) -> None:
        self._documents: dict[str, Document] = {document.id: document for document in corpus}
        self._titled: dict[str, list[str]] = defaultdict(list)
        for document in corpus:
            self._titled[squad(document.title)].append(document.id)
        self._facts = tuple(facts)
        if not self._facts:
            raise DatasetError("the graph of facts has no fact")
        links: dict[str, dict[str, float]] = defaultdict(dict)
        for fact in self._facts:
            if fact.document not in self._documents:
                raise DatasetError(
                    f"the facts name the passage {fact.document!r}, which the corpus does not hold"
                )
            names = [_name(fact.subject), _name(fact.object)]
            pairs = [(names[0], names[1]), *((name, _passage(fact.document)) for name in names)]
            for one, other in pairs:
                if one != other:
                    links[one][other] = links[other][one] = 1.0
        self._links = dict(links)
        self._passages = {
            node[2:]: sum(other.startswith("p:") for other in near)
            for node, near in self._links.items()
            if node.startswith("n:")
        }
        if encoder is not None:
            self._link_synonyms(encoder, similarity)

    def _link_synonyms(self, encoder: Encoder, similarity: float) -> None:
        """Sets the weight of the edge between synonyms to their similarity, even if a fact links them (as HippoRAG does)."""
        for name, other, weight in synonyms_of(list(self._passages), encoder, similarity=similarity):
            one, two = f"n:{name}", f"n:{other}"
            self._links[one][two] = self._links[two][one] = weight

    def rank(self, query: str, ranking: Sequence[Passage], k: int, judge: Reranker) -> list[Passage]:
        """Returns the ``k`` passages that the random walk for ``query`` visits most often.

        The walk starts at the names of the facts that match the query, and with a small weight at the passages that a search
        found. If no fact matches, the found passages are returned unchanged.

        Args:
            query: The query.
            ranking: The results of a search for it, best first.
            k: The number of passages.
            judge: Scores facts against the query.
        """
        scores = judge.score([(query, fact.text) for fact in self._facts])
        order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:MOST_FACTS]
        fitting = [(scores[place], self._facts[place]) for place in order if scores[place] > 0]
        if not fitting:
            return list(ranking[:k])
        seeds = {f"n:{name}": weight for name, weight in seed_weights(fitting, self._passages).items()}
        for place, passage in enumerate(ranking, 1):
            seeds[_passage(passage.id)] = PASSAGE_WEIGHT / place
        walked = personalised_pagerank(self._links, seeds)
        found = {node[2:]: weight for node, weight in walked.items() if node.startswith("p:")}
        best = sorted(found, key=lambda one: (-found[one], one))[:k]
        return [self._ranked_passage(one, found[one]) for one in best if one in self._documents]

    def near(self, title: str) -> list[Document]:
        """Returns the passages titled or about ``title``, then those that share names with them, most names first."""
        own = dict.fromkeys(self._titled.get(squad(title), ()))
        own |= dict.fromkeys(one[2:] for one in self._links.get(_name(title), ()) if one.startswith("p:"))
        shared: Counter[str] = Counter()
        for one in own:
            for name in self._links.get(_passage(one), ()):
                shared.update(other[2:] for other in self._links[name] if other.startswith("p:"))
        others = sorted((one for one in shared if one not in own), key=lambda one: (-shared[one], one))
        return [self._documents[one] for one in (*own, *others)]

    def _ranked_passage(self, one: str, weight: float) -> Passage:
        document = self._documents[one]
        return Passage(document.id, document.title, document.text, weight)


def _name(text: str) -> str:
    return f"n:{squad(text)}"


def _passage(document: str) -> str:
    return f"p:{document}"


@lru_cache(maxsize=2)
def fact_graph(corpus: Corpus, facts: str, synonyms: str = "", similarity: float = SIMILARITY) -> FactGraph:
    """Makes the graph of ``corpus`` over the facts of a file, or of its titles (`TITLES`); cached in the process.

    Args:
        corpus: The passages.
        facts: The file, or `TITLES`.
        synonyms: The spec of the encoder that finds synonyms; empty finds none.
        similarity: The cosine from which on two names are synonyms.

    Raises:
        DatasetError: the file cannot be read or belongs to another corpus, or there is no fact.
        UnknownName: there is no such kind of encoder.
    """
    stated = [*facts_of_titles(corpus)] if facts == TITLES else read_facts(Path(facts))
    encoder = make_encoder(synonyms) if synonyms else None
    return FactGraph(corpus, stated, encoder, similarity=similarity)
