"""``agentenv/PlannedSearch-v0``: the policy only plans searches, a frozen generator answers (AI-SearchPlanner).

A turn searches, or says ``<answer>ready</answer>`` with whatever word in it: the generator then answers from all that was
found. The reward is the generator's score, a process reward for the turn that finds the answer, less a cost a search.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentenv.core.chat import InlineFormat
from agentenv.core.grammar import earliest_block
from agentenv.core.protocols import Policy, Retriever
from agentenv.core.types import Message, Passage, Sampling, Task
from agentenv.envs.search.local_search import PROMPT as READER_PROMPT
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.outcomes import Reward
from agentenv.envs.search.page_format import as_question, format_passages, information
from agentenv.envs.search.search_env import on_small_world
from agentenv.envs.search.search_state import SearchState, ToolCall, ToolReply
from agentenv.envs.search.search_tools import answered
from agentenv.errors import ConfigurationError, EnvFault, PolicyFault
from agentenv.policies.extractive import EXTRACTIVE, ExtractivePolicy
from agentenv.policies.policy_spec import is_endpoint, make_endpoint_policy, make_policy

PROMPT = """\
Plan the search for the question below; somebody else will answer it from what your searches find.
First think between <think> and </think>. Write a query between <search> and </search>; what the search finds comes back \
between <information> and </information>. Every search has a price.
When the answer can be read from what was found, write <answer> ready </answer>.
Question: {question}
"""


class Generator:
    """Answers a question from passages with a policy that is never trained.

    Args:
        policy: Who answers; has a tokenizer.
        tokens: Bound of its answer.
    """

    def __init__(self, policy: Policy, *, tokens: int = 64) -> None:
        self._policy, self._tokens = policy, tokens
        self._chat = getattr(policy, "chat", None) or InlineFormat(policy.tokenizer)  # type: ignore[attr-defined]

    async def answer(self, question: str, passages: Sequence[Passage]) -> str | None:
        """Its answer, greedy; None where it gives none.

        Raises:
            EnvFault: it failed.
        """
        asked = READER_PROMPT.replace("{question}", as_question(question))
        page = information(format_passages(passages))
        sampling = Sampling(self._tokens, temperature=0.0, stop=("</answer>",))
        try:
            ids = self._chat.prompt((Message("user", asked + page),))
            completion = await self._policy.generate(ids, sampling)
        except PolicyFault as error:
            raise EnvFault(f"the generator: {error}") from error
        block = earliest_block(completion.text, ("answer",))
        return block.content if block else None


def make_generator(spec: str) -> Generator:
    """The generator over the policy that ``spec`` names; ``scripted:extractive`` needs no model.

    Raises:
        UnknownName: no such policy.
        MissingExtra: what it needs is not installed.
    """
    if spec == EXTRACTIVE:
        return Generator(ExtractivePolicy())
    return Generator(make_endpoint_policy(spec) if is_endpoint(spec) else make_policy(spec))


@dataclass(frozen=True)
class GeneratedAnswer:
    """Ends the episode with the generator's answer from everything that was found."""

    generator: Generator

    async def __call__(self, call: ToolCall, state: SearchState) -> ToolReply:
        """The answer; what the planner wrote between its tags is not read.

        Raises:
            EnvFault: the generator failed.
        """
        written = await self.generator.answer(state.task.question, list(state.found.values()))
        return answered(written or "", state)


def planner_reward(state: SearchState, *, answer: Reward, search_cost: float) -> dict[str, float]:
    """AI-SearchPlanner: the reward of the generator's answer and of finding it, less the price of the turn's queries."""
    result = state.last.result
    queries = len(result.data.get("ids", ())) if result is not None else 0
    return {**answer(state), "price": -search_cost * queries}


class PlannedSearch(LocalSearch):
    """`LocalSearch` in which the end of the plan asks the generator."""

    no_expert = "what a plan is worth depends on the generator"

    def __init__(
        self,
        *,
        generator: Generator | str = EXTRACTIVE,
        search_cost: float = 0.05,
        found_reward: float = 0.2,
        prompt: str = PROMPT,
        tasks: Sequence[Task] | None = None,
        retriever: Retriever | str | None = None,
        **options: Any,
    ) -> None:
        """Builds an environment.

        Args:
            generator: Who answers, or the spec of its policy.
            search_cost: Subtracted for every search.
            found_reward: Process reward of the first turn whose observation holds an accepted answer.
            prompt: Opening message; must hold ``{question}``.
            tasks: Questions with answers that a page can be searched for; None takes those of a small FictionalWorld.
            retriever: A retriever or its spec; None searches that world by word overlap.
            **options: Further arguments of `LocalSearch`.

        Raises:
            ConfigurationError: a negative cost.
        """
        tasks, retriever = on_small_world(tasks, retriever, families=("lookup", "bridge"))
        super().__init__(
            prompt=prompt, found_reward=found_reward, tasks=tasks, retriever=retriever, **options
        )
        if search_cost < 0:
            raise ConfigurationError(f"search_cost={search_cost} must not be negative")
        made = make_generator(generator) if isinstance(generator, str) else generator
        self.parts = replace(
            self.parts,
            submit=GeneratedAnswer(made),
            reward=partial(planner_reward, answer=self.answer_reward, search_cost=search_cost),
        )

    def expert(self) -> Sequence[str] | None:
        """None: what a plan is worth depends on the generator."""
        return None
