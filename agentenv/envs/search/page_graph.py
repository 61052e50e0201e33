"""A graph of the pages of a corpus: pages are linked by the titles in their texts, and ranked by random walks from seeds.

HierSearch searches a graph of HippoRAG (Gutierrez et al. 2024, arXiv:2405.14831). Here links between pages replace the facts
that a language model would extract.
"""

from collections.abc import Mapping
from functools import lru_cache

from agentenv.core.types import Document, Passage
from agentenv.data.synthesis.pages import LinkedPages
from agentenv.retrievers.storage.corpus import Corpus

_DAMPING = 0.5
_ITERATIONS = 30  # steps of the power iteration; each halves the remaining difference


def personalised_pagerank(
    links: Mapping[str, Mapping[str, float]],
    seeds: Mapping[str, float],
) -> dict[str, float]:
    """Returns the visit probabilities of a random walk that restarts at the seeds with probability 1/2, as in HippoRAG.

    Args:
        links: The neighbours of each node with the weights of the edges. A walk at a node without neighbours restarts.
        seeds: The weights of the nodes at which walks start, above 0.
    """
    total = sum(seeds.values())
    start = {node: weight / total for node, weight in seeds.items()}
    rank = dict(start)
    for _ in range(_ITERATIONS):
        following = {node: (1 - _DAMPING) * weight for node, weight in start.items()}
        for node, mass in rank.items():
            neighbours = links.get(node, {})
            weight = sum(neighbours.values())
            targets = {other: one / weight for other, one in neighbours.items()} or start
            for other, share in targets.items():
                following[other] = following.get(other, 0.0) + _DAMPING * mass * share
        rank = following
    return rank


class PageGraph:
    """The pages of a corpus with their links.

    Args:
        corpus: The documents. Documents with the same title form one page.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._documents = {document.id: document for document in corpus}
        self._pages = LinkedPages(corpus)

    def near(self, title: str) -> list[Document]:
        """Returns the passages of the page ``title``, and the first passage of each page linked with it."""
        if title not in self._pages.pages:
            return []
        own = [self._documents[i] for i in self._pages.pages[title].ids]
        linked = [self._pages.pages[other] for other in self._pages.linked(title)]
        return [*own, *(self._documents[page.ids[0]] for page in linked)]

    def rank(self, seeds: Mapping[str, float], k: int) -> list[Passage]:
        """Returns the ``k`` pages that random walks from the titles ``seeds`` visit most often, by their first passages."""
        known = {title: weight for title, weight in seeds.items() if title in self._pages.pages}
        if not known:
            return []
        reached = set(known)
        for title in known:
            reached |= {
                further for near in self._pages.linked(title) for further in (near, *self._pages.linked(near))
            }
        links = {title: dict.fromkeys(self._pages.linked(title), 1.0) for title in reached}
        scores = personalised_pagerank(links, known)
        best = sorted(scores, key=lambda title: (-scores[title], title))[:k]
        firsts = [self._documents[self._pages.pages[title].ids[0]] for title in best]
        return [Passage(d.id, d.title, d.text, scores[title]) for d, title in zip(firsts, best, strict=True)]


@lru_cache(maxsize=2)
def page_graph(corpus: Corpus) -> PageGraph:
    """Makes the graph of ``corpus``; cached, because all environments over it use the same one."""
    return PageGraph(corpus)
