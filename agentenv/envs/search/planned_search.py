"""``agentenv/PlannedSearch-v0``: the policy only plans searches, a frozen generator answers (AI-SearchPlanner).

A turn searches, or says ``<answer>ready</answer>`` with whatever word in it: the generator then answers from all that was
found. The reward is the generator's score, a process reward for the turn that finds the answer, less a cost a search.
"""

from collections.abc import Sequence
from typing import Any

from agentenv.core.chat import InlineFormat
from agentenv.core.grammar import earliest_block
from agentenv.core.protocols import Policy, Retriever
from agentenv.core.types import Message, Passage, Sampling, Step, Task
from agentenv.envs.search.local_search import PROMPT as READER_PROMPT
from agentenv.envs.search.local_search import (
    LocalSearch,
    as_question,
    format_passages,
    information,
    on_small_world,
)
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
        self._generator = make_generator(generator) if isinstance(generator, str) else generator
        self._search_cost = search_cost

    async def astep(self, action: str) -> Step:
        """Acts on ``action``; an answer of the planner is replaced by the generator's.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            RetrieverFault: the search failed.
            EnvFault: the generator failed.
        """
        self.check_running()
        block = earliest_block(action, self.tags)
        if block and block.tag == "answer":
            passages = list(self.state.found.values())
            written = await self._generator.answer(self.state.task.question, passages)
            return self._answer(written or "")
        step = await super().astep(action)
        searches = sum(len(result.data.get("ids", ())) for result in step.info["tool_results"])
        return step._replace(reward=step.reward - self._search_cost * searches)

    def expert(self) -> Sequence[str] | None:
        """None: what a plan is worth depends on the generator."""
        return None
