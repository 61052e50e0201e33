"""``agentenv/SimulatedSearch-v0``: search and answer where a language model plays the search engine (ZeroSearch).

The environment is `LocalSearch` with the published budgets. What is simulated is the retriever behind it: training may
change to a real one by schedule, and the same policy is evaluated in `LocalSearch` over a real corpus.
"""

from collections.abc import Sequence
from typing import Any

from agentenv.core.protocols import Retriever
from agentenv.core.types import Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.local_search import LocalSearch


class SimulatedSearch(LocalSearch):
    """`LocalSearch` over a simulator, rewarded with token F1."""

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
        """Builds an environment over a simulator.

        Args:
            tasks: Questions of the training split; None takes one-hop questions of a small FictionalWorld. Other splits need
                a simulator that is not told the answers (``simulated:gold=no@...``).
            retriever: The simulator as a retriever, or its spec ``simulated:SPEC``.
            k: Documents a query.
            max_turns: Turns before the last one, in which only an answer counts.
            observation_tokens: Bound of one observation.
            scorer: Name of the scorer that gives the reward.
            **options: Further arguments of `LocalSearch`.

        Raises:
            ConfigurationError: what the spec names is not there, or a bound below 1.
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
