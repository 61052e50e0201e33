"""Which of several systems are worth their cost."""

from collections.abc import Sequence


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The systems that no other one beats: at most their cost, at least their score, and better in one of the two.

    Args:
        points: (cost, score) of each system.

    Returns:
        Their places, by cost; of equal points the first alone.
    """
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i))
    front: list[int] = []
    for i in order:
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return front
