"""``agentenv/SimulatedSearch-v0``: search and answer, with a language model in the role of the search engine (ZeroSearch).

The environment is `LocalSearch` with the published budgets; only its retriever is simulated. Training may switch to a real
retriever by a schedule, and the same policy can be evaluated in `LocalSearch` over a real corpus.
"""

from collections.abc import Sequence
from typing import Any

from agentenv.core.protocols import Retriever
from agentenv.core.types import Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.local_search import LocalSearch


class SimulatedSearch(LocalSearch):
    """`LocalSearch` with a simulated retriever; the reward is token F1."""

    scorers = (*LocalSearch.scorers, "em_cover")

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        retriever: Retriever | str = "simulated:grammar",
        k: int = 5,
        max_turns: int = 5,
        observation_tokens: int = 2048,
        scorer: str = "f1_squad",
        **options: Any,
    ) -> None:
        """Makes an environment with a simulator.

        Args:
            tasks: Questions of the training split; None uses one-hop questions of a small FictionalWorld. Other splits need
                a simulator that does not see the answers (``simulated:gold=no@...``).
            retriever: The simulator as a retriever, or its spec ``simulated:SPEC``.
            k: Number of documents per query.
            max_turns: Number of turns before the last one, in which only an answer counts.
            observation_tokens: Largest size of one observation.
            scorer: The name of the scorer that gives the reward.
            **options: Further arguments of `LocalSearch`.

        Raises:
            ConfigurationError: what the spec names does not exist, or a limit is below 1.
        """
        if tasks is None:
            config = WorldConfig(documents=200, questions=50, families=("lookup",), split="train")
            tasks = FictionalWorld.generate(config).questions
        super().__init__(
            tasks=tasks,
            retriever=retriever,
            k=k,
            max_turns=max_turns,
            observation_tokens=observation_tokens,
            scorer=scorer,
            **options,
        )
