"""Weakness-driven synthesis (SwS): which concepts a new question combines, when it is kept, and what its answer is.

SwS (Liang et al. 2025, arXiv:2506.08989). Pure functions; `agentenv.data.synthesis.sws_model` asks the models.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, get_args

from agentenv.core.scoring.normalize import squad

Rating = Literal["perfect", "acceptable", "bad"]
RATINGS: tuple[Rating, ...] = get_args(Rating)
Likeness = Callable[[str, str], float]
"""Cosine of the embeddings of two concepts."""


def concept_scores(
    chosen: Sequence[str], questions: Sequence[Sequence[str]], likeness: Likeness
) -> dict[str, float]:
    """How well each further concept goes with those that are chosen: co-occurrence plus likeness, means over them.

    The co-occurrence of two concepts is the number of questions that need both, over that of the pair that is met most
    often. How the published program scales it was not found; so both parts lie between 0 and 1 here.

    Args:
        chosen: At least one concept.
        questions: The concepts of each failed question.
        likeness: Of two concepts.
    """
    sets = [set(concepts) for concepts in questions]
    known = dict.fromkeys(concept for concepts in questions for concept in concepts)
    pairs = Counter(frozenset((a, b)) for one in sets for a in one for b in one if a < b)
    most = max(pairs.values(), default=1)
    return {
        concept: sum(pairs[frozenset((concept, other))] / most + likeness(concept, other) for other in chosen)
        / len(chosen)
        for concept in known
        if concept not in chosen
    }


def softmax(scores: Sequence[float], temperature: float) -> list[float]:
    """exp(s / T) over their sum."""
    highest = max(scores)
    weights = [math.exp((score - highest) / temperature) for score in scores]
    return [weight / sum(weights) for weight in weights]


def sample_concepts(
    questions: Sequence[Sequence[str]],
    likeness: Likeness,
    rng: Random,
    *,
    size: int = 5,
    temperature: float = 0.2,
) -> list[str]:
    """The concepts of a new question: the first by its frequency, each further one by softmax(score / T) (SwS).

    Args:
        questions: The concepts of each failed question of one category; one at least has a concept.
        likeness: Of two concepts.
        rng: Draws.
        size: Concepts of a question, fewer where there are no more.
        temperature: T; .2 in the paper.
    """
    counts = Counter(concept for concepts in questions for concept in dict.fromkeys(concepts))
    (first,) = rng.choices(list(counts), weights=list(counts.values()))
    chosen = [first]
    while len(chosen) < min(size, len(counts)):
        scores = concept_scores(chosen, questions, likeness)
        chosen += rng.choices(list(scores), weights=softmax(list(scores.values()), temperature))
    return chosen


def is_accepted(first: Rating, second: Rating) -> bool:
    """Whether two judges accept a question: one says perfect, and the other perfect or acceptable (SwS)."""
    return "bad" not in (first, second) and "perfect" in (first, second)


def agreed_answer(answers: Sequence[str], asked: int) -> str | None:
    """The answer that more than half of the ``asked`` samples give, as it was written first; None without one (SwS).

    Answers are compared as SQuAD's exact match does. What could not be read counts as asked. The share was not found.
    """
    counts = Counter(squad(answer) for answer in answers)
    if not counts:
        return None
    answer, votes = counts.most_common(1)[0]
    if not answer or votes <= asked / 2:
        return None
    return next(one for one in answers if squad(one) == answer)


def share_right(answers: Sequence[str], gold: str, asked: int) -> float:
    """The share of ``asked`` answers that are ``gold`` by exact match; what could not be read is wrong."""
    return sum(squad(answer) == squad(gold) for answer in answers) / asked
