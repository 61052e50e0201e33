"""``agentenv/PlannedSearch-v0``: the policy only plans searches, and a frozen generator answers (AI-SearchPlanner).

A turn searches, or ends the plan by ``<answer>ready</answer>`` with any word in the tags. The generator then answers from
everything that was found. The reward is the generator's score, or its gain over the generator's answers without a plan; plus
a process reward for a plan that found the answer, for the documents found, or for a plan that a model rates as rational;
minus a cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal, get_args

from agentenv.core.chat import InlineFormat
from agentenv.core.grammar import earliest_block
from agentenv.core.protocols import Policy, Retriever
from agentenv.core.scoring.scorers import Scorer
from agentenv.core.types import Message, Passage, Sampling, Task
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.envs.search.local_search import PROMPT as READER_PROMPT
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.outcomes import Reward, answer_shown
from agentenv.envs.search.page_format import as_question, format_passages, information
from agentenv.envs.search.planner_rewards import (
    LEAST_GAIN,
    AnswerJudge,
    PlanJudge,
    coverage,
    frugality,
    planning_gain,
)
from agentenv.envs.search.search_env import on_small_world
from agentenv.envs.search.search_state import SearchState, TagCall, ToolReply
from agentenv.envs.search.search_tools import SearchTool, answered
from agentenv.errors import (
    ConfigurationError,
    ContextTooSmall,
    EnvFault,
    Fault,
    PolicyFault,
    PolicyRefusal,
    check_known,
)
from agentenv.policies.extractive import EXTRACTIVE, ExtractivePolicy
from agentenv.policies.model_chat import make_chat
from agentenv.policies.policy_spec import check_reached, is_endpoint, make_endpoint_policy, make_policy

_CACHE_SIZE = 100_000  # number of cached answers of a generator
_ANSWER_TOKENS = 64  # largest number of tokens of a generator's answer
_VERDICT_TOKENS = 256  # largest number of tokens of a judge's reply

PROMPT = """\
Plan the search for the question below; somebody else will answer it from what your searches find.
First think between <think> and </think>. Write a query between <search> and </search>; what the search finds comes back \
between <information> and </information>. Every search has a price.
When the answer can be read from what was found, write <answer> ready </answer>.
Question: {question}
"""


Process = Literal["none", "coverage", "judge"]
Cost = Literal["queries", "turns"]


class Generator:
    """Answers a question from passages with a policy that is never trained; caches its answers.

    Args:
        policy: The policy that answers, with a tokenizer.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._known: dict[tuple[str, tuple[Passage, ...]], str | None] = {}
        self._chat = getattr(policy, "chat", None) or InlineFormat(policy.tokenizer)  # type: ignore[attr-defined]

    async def answer(self, question: str, passages: Sequence[Passage]) -> str | None:
        """Returns the policy's greedy answer; None if it gives none.

        It also returns None if the passages do not fit into its context or it refuses to read them: the planner chose them,
        and a failure would exclude the episode from the loss.

        Raises:
            EnvFault: the policy failed.
            ContextTooSmall: the question alone does not fit into its context.
        """
        key = (question, tuple(passages))
        if key not in self._known:
            if len(self._known) >= _CACHE_SIZE:
                self._known.clear()
            self._known[key] = await self._answer(question, passages)
        return self._known[key]

    async def _answer(self, question: str, passages: Sequence[Passage]) -> str | None:
        asked = READER_PROMPT.replace("{question}", as_question(question))
        page = information(format_passages(passages))
        sampling = Sampling(_ANSWER_TOKENS, temperature=0.0, stop=("</answer>",))
        try:
            ids = self._chat.prompt((Message("user", asked + page),))
            completion = await self._policy.generate(ids, sampling)
        except (ContextTooSmall, PolicyRefusal) as error:
            if passages:
                return None
            if isinstance(error, ContextTooSmall):
                raise
            raise EnvFault(f"the generator: {error}") from error
        except PolicyFault as error:
            raise EnvFault(f"the generator: {error}") from error
        block = earliest_block(completion.text, ("answer",))
        return block.content if block else None


@lru_cache(maxsize=4)
def make_generator(spec: str) -> Generator:
    """Makes the generator with the policy that ``spec`` names; ``scripted:extractive`` needs no model.

    Raises:
        UnknownName: there is no such policy.
        MissingExtra: a package that it needs is not installed.
    """
    if spec == EXTRACTIVE:
        return Generator(ExtractivePolicy())
    check_reached(spec)
    return Generator(make_endpoint_policy(spec) if is_endpoint(spec) else make_policy(spec))


@dataclass
class PlannedState(SearchState):
    """All that changes within an episode."""

    direct: str | None = None
    """The generator's answer without a search, if the reward needs it."""
    rag: str | None = None
    """The generator's answer from a single search for the question itself."""
    rationality: float = 0.0
    """The judge's rating of the plan's rationality."""
    judged_right: set[str] = field(default_factory=set)
    """Answers that a judge considers equivalent to an accepted one."""


def value_of(answer: str | None, state: PlannedState, scorer: Scorer) -> float:
    """Returns the value of an answer: 1 if a judge considers it right, otherwise its score; 0 without an answer."""
    if not answer or answer in state.judged_right:
        return float(bool(answer))
    return scorer(answer, state.task.answers).value


def judged_score(state: PlannedState, scorer: Scorer) -> float:
    """Returns `value_of` the answer of the episode."""
    return value_of(state.answer, state, scorer)


@dataclass(frozen=True)
class GeneratedAnswer:
    """Ends the episode with the generator's answer from everything that was found."""

    generator: Generator
    search: SearchTool
    scorer: Scorer
    """The scorer of answers."""
    compares: bool = False
    """Whether the generator also answers without the plan."""
    judge: PlanJudge | None = None
    """The judge that rates the plan."""
    answer_judge: AnswerJudge | None = None
    """The judge of answers that are not right according to ``scorer``."""

    async def __call__(self, call: TagCall, state: PlannedState) -> ToolReply:
        """Returns the answer. The planner's text in the tags is ignored.

        Raises:
            EnvFault: the generator, the judge or the search failed.
        """
        question = state.task.question
        written = await self.generator.answer(question, list(state.by_id.values()))
        if self.compares:
            state.direct = await self.generator.answer(question, [])
            (found,) = await self.search.rank([question], state)
            state.rag = await self.generator.answer(question, found)
        if self.answer_judge is not None:
            await self._ask(self.answer_judge, [written, state.direct, state.rag], state)
        if self.judge is not None:
            titles = [
                [state.by_id[one].title for one in ids if one in state.by_id] for ids in state.retrieved
            ]
            try:
                rated = await self.judge.rate(question, list(zip(state.queries, titles, strict=True)))
            except Fault as error:
                raise EnvFault(f"the judge of plans: {error}") from error
            state.rationality = rated
        return answered(written or "", state)

    async def _ask(self, judge: AnswerJudge, given: Sequence[str | None], state: PlannedState) -> None:
        """Records those of ``given`` that ``judge`` considers right."""
        task = state.task
        for answer in dict.fromkeys(given):
            if not answer or self.scorer(answer, task.answers).value >= 1:
                continue
            try:
                if await judge.is_right(task.question, task.answers, answer):
                    state.judged_right.add(answer)
            except Fault as error:
                raise EnvFault(f"the judge of answers: {error}") from error


@dataclass(frozen=True)
class PlanTerms:
    """The terms of a planner's reward.

    Raises:
        ConfigurationError: a price or a weight is negative.
        UnknownName: there is no such process or cost.
    """

    gains: bool
    """Whether the outcome is the `planning_gain`; otherwise it is the score."""
    found: float
    """The reward of a plan with a page that contains an accepted answer."""
    process: Process
    process_weight: float
    cost: Cost
    price: float

    def __post_init__(self) -> None:
        if min(self.price, self.found, self.process_weight) < 0:
            raise ConfigurationError(
                f"search_cost={self.price}, found_reward={self.found} and process_weight={self.process_weight} must not be "
                "negative"
            )
        for what, name, kind in (("process", self.process, Process), ("cost", self.cost, Cost)):
            check_known(f"{what} of a plan", name, get_args(kind))


def planner_reward(
    state: PlannedState, *, answer: Reward, scorer: Scorer, terms: PlanTerms, max_turns: int
) -> dict[str, float]:
    """AI-SearchPlanner: J = R_outcome + lambda R_process - alpha Cost.

    The outcome is the generator's score or the `planning_gain`. The process reward is the `coverage` of the documents or a
    judge's rating. The cost is the price of each query, charged with the query, or for the cost ``turns`` a part of the
    price as in `frugality`. A plan without an end has the score 0, or the least gain, so that ending it is never worse; the
    generator is not asked then. It also has no process reward: a search for the question itself often shows the answer, so
    that searching alone would be rewarded.
    """
    parts = dict(answer(state))
    result = state.last.result
    queries = len(result.data.get("ids", ())) if result is not None else 0
    if terms.cost == "queries":
        parts["price"] = -terms.price * queries
    if state.last.end is None:
        return parts
    if state.answer is None:
        return parts | ({"outcome": LEAST_GAIN} if terms.gains else {})
    golds = state.task.answers
    if terms.gains:
        plan, *others = (value_of(one, state, scorer) for one in (state.answer, state.direct, state.rag))
        parts["outcome"] = planning_gain(plan, *others)
    if terms.found and state.answer:
        parts["found"] = terms.found * answer_shown(state.record, golds)
    if terms.process == "coverage":
        parts["process"] = terms.process_weight * coverage(
            state.by_id, state.task.data.get("supporting_ids", ())
        )
    elif terms.process == "judge":
        parts["process"] = terms.process_weight * state.rationality
    if terms.cost == "turns":
        parts["price"] = terms.price * frugality(state.turns, max_turns)
    return parts


def _model_writer(spec: str) -> ModelWriter:
    """Makes the model that ``spec`` names, with greedy decoding."""
    check_reached(spec)
    return ModelWriter(make_chat(spec), temperature=0.0, tokens=_VERDICT_TOKENS)


def _make_judge(process: Process, judge: PlanJudge | Generator | str) -> PlanJudge | None:
    """Returns the given judge of plans, or makes one from a spec; None if ``process`` needs none."""
    if process != "judge":
        return None
    if isinstance(judge, PlanJudge):
        return judge
    if not isinstance(judge, str) or judge == EXTRACTIVE:
        raise ConfigurationError(
            "process='judge' needs a language model that rates plans: name judge='openai:MODEL@URL' or 'hf:PATH'"
        )
    return PlanJudge(_model_writer(judge))


def _make_answer_judge(judge: AnswerJudge | str) -> AnswerJudge | None:
    if isinstance(judge, AnswerJudge):
        return judge
    return AnswerJudge(_model_writer(judge)) if judge else None


class PlannedSearch(LocalSearch):
    """`LocalSearch` in which the end of the plan asks the generator."""

    no_expert = "what a plan is worth depends on the generator"
    reward_options = LocalSearch.reward_options | {"search_cost", "gain", "process", "process_weight", "cost"}

    def __init__(
        self,
        *,
        generator: Generator | str = EXTRACTIVE,
        search_cost: float = 0.05,
        found_reward: float = 0.2,
        gain: bool = False,
        process: Process = "none",
        process_weight: float = 0.5,
        cost: Cost = "queries",
        judge: PlanJudge | str = "",
        answer_judge: AnswerJudge | str = "",
        prompt: str = PROMPT,
        tasks: Sequence[Task] | None = None,
        retriever: Retriever | str | None = None,
        **options: Any,
    ) -> None:
        """Makes an environment.

        Args:
            generator: The generator, or the spec of its policy.
            search_cost: The cost of every search; for the cost ``turns``, the most that a plan of few turns can earn.
            found_reward: The process reward of a plan that found a page with an accepted answer, given at its end.
            gain: Whether the outcome is 1/2 plus the difference of the score with the plan from the better of the scores
                without a search and with a single search for the question, and -1/2 for a plan without an end. Otherwise it
                is the score.
            process: ``coverage`` is the share of the supporting documents that the plan found, ``judge`` the rating of the
                plan by a model. Both are given at the end.
            process_weight: The weight of the process reward (lambda).
            cost: With ``queries``, each query has a price. With ``turns``, unused turns of the ``max_turns`` are rewarded.
            judge: The judge of plans, or the spec of a model; empty uses the generator, as in the paper.
            answer_judge: Decides whether an answer that is not right according to the scorer is equivalent to an accepted
                one; or the spec of a model that does, as in the paper. Empty uses no judge.
            prompt: The opening message. It must contain ``{question}``.
            tasks: Questions with answers that pages can contain; None uses those of a small FictionalWorld.
            retriever: A retriever or its spec; None searches that world by word overlap.
            **options: Further arguments of `LocalSearch`.

        Raises:
            ConfigurationError: a cost or weight is negative, or there is no model that can rate plans.
            UnknownName: there is no such process or cost.
        """
        tasks, retriever = on_small_world(tasks, retriever, families=("lookup", "bridge"))
        super().__init__(prompt=prompt, tasks=tasks, retriever=retriever, **options)
        terms = PlanTerms(gain, found_reward, process, process_weight, cost, search_cost)
        made = make_generator(generator) if isinstance(generator, str) else generator
        rater, asked = _make_judge(process, judge or generator), _make_answer_judge(answer_judge)
        self.parts = replace(
            self.parts,
            submit=GeneratedAnswer(made, self.search, self.scorer, gain, rater, asked),
            reward=partial(
                planner_reward,
                answer=partial(self.answer_reward, score=judged_score),
                scorer=self.scorer,
                terms=terms,
                max_turns=self.max_turns,
            ),
            state=PlannedState,
            native=None,  # the prompt explains the tags, by which a plan ends without an answer
        )

    @classmethod
    def default_prompt(cls, options: Mapping[str, Any], *, native: bool = False) -> str | None:
        """Returns None, because the environment has the same message for every outcome."""
        return None

    def expert(self) -> Sequence[str] | None:
        """Returns None, because the value of a plan depends on the generator."""
        return None
