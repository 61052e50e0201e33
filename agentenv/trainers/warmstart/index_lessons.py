"""Lessons on pages that a run will show: worlds as large as its own, searched with its sentence encoder.

In a small world hardly two names begin alike. A sentence encoder over a thousand documents finds a second page whose name
shares syllables with the one that was asked for and that states the same relation in the same words, and a policy that has
not read such pages takes the wrong one of the two.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count as numbers
from random import Random

from agentenv.core.types import Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_solver import Solver
from agentenv.retrievers.encoder import Encoder
from agentenv.trainers.warmstart.demonstrations import (
    Demo,
    DemonstrationContext,
    Demonstrator,
    Library,
    exercise,
    lookups_of,
    questions_by_document,
    searches_in_a_row,
)


@dataclass(frozen=True)
class IndexedWorld:
    """One world with its index, and the questions that lessons ask about it."""

    library: Library
    questions: Sequence[Task]
    """Questions of the kinds that a run asks."""
    lookups: Sequence[Task]
    """Questions of one hop about every fact that is stated."""
    asked: Mapping[str, Sequence[Task]]
    """``lookups`` by the document that answers them."""
    solver: Solver

    @classmethod
    def generate(cls, config: WorldConfig, encoder: Encoder, k: int) -> "IndexedWorld":
        """Makes the world of ``config`` and encodes its documents and every query of an expert."""
        world = FictionalWorld.generate(config)
        lookups = FictionalWorld.generate(lookups_of(config)).questions
        queries = {hop["query"] for task in (*world.questions, *lookups) for hop in task.data["path"]}
        library = Library(world.documents, encoder, k, sorted(queries))
        asked = questions_by_document(lookups)
        return cls(library, world.questions, lookups, asked, Solver(generate_facts(config)))

    def context(self, task: Task, rng: Random) -> DemonstrationContext:
        """What a demonstrator of ``task`` may look at."""
        return DemonstrationContext(task, self.library, self.questions, self.solver, rng)

    def lesson(self, mixture: Mapping[Demonstrator, float], count: int, rng: Random) -> list[Demo]:
        """About ``count`` demonstrations: a quarter exercises, a quarter rows of three searches, half episodes.

        Episodes whose demonstrator gives up are left out.
        """
        quarter = count // 4
        exercises = [
            exercise(task, self.library, self.asked, rng) for task in rng.sample(self.lookups, quarter)
        ]
        rows = [
            searches_in_a_row([self.context(task, rng) for task in rng.sample(self.lookups, 3)])
            for _ in range(quarter)
        ]
        names, shares = list(mixture), list(mixture.values())
        tasks = rng.sample(self.questions, count - 2 * quarter)
        episodes = [rng.choices(names, shares)[0](self.context(task, rng)) for task in tasks]
        return [demo for demo in (*exercises, *rows, *episodes) if demo]


def index_lessons(
    mixture: Mapping[Demonstrator, float],
    *,
    seed: int,
    worlds: WorldConfig,
    k: int,
    encoder: Encoder,
    count: int,
    uses: int,
) -> Iterator[list[Demo]]:
    """Endless lessons, ``uses`` of them about each world.

    Args:
        mixture: Share of each demonstrator among the episodes.
        seed: The worlds take the seeds after it.
        worlds: Dials of the worlds; the seed in it is replaced.
        k: Documents a search.
        encoder: Makes the vectors of documents and queries.
        count: Demonstrations a lesson.
        uses: Lessons about one world, because encoding its documents takes as long as several optimiser steps.
    """
    for number in numbers(seed + 1):
        world = IndexedWorld.generate(replace(worlds, seed=number), encoder, k)
        rng = Random(number)
        for _ in range(uses):
            yield world.lesson(mixture, count, rng)
