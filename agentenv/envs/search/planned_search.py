"""``agentenv/PlannedSearch-v0``: the policy only plans searches, a frozen generator answers (AI-SearchPlanner).

A turn searches, or says ``<answer>ready</answer>`` with whatever word in it: the generator then answers from all that was
found. The reward is the generator's score, or what that gains over its answers without a plan; a process reward for a plan
that found the answer, for the documents found, or for a plan that a model calls rational; less a cost.
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

_MEMORY = 100_000  # answers that a generator remembers
_ANSWER_TOKENS = 64  # of a generator
_VERDICT_TOKENS = 256  # of a judge

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
    """Answers a question from passages with a policy that is never trained; of equal questions it remembers the answer.

    Args:
        policy: The policy that answers; has a tokenizer.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._known: dict[tuple[str, tuple[Passage, ...]], str | None] = {}
        self._chat = getattr(policy, "chat", None) or InlineFormat(policy.tokenizer)  # type: ignore[attr-defined]

    async def answer(self, question: str, passages: Sequence[Passage]) -> str | None:
        """The answer that the policy gives greedily; None where it gives none.

        Passages that do not fit its context or that it refuses to read are the planner's choice, so there is no answer then:
        a failure would take the episode out of the loss.

        Raises:
            EnvFault: it failed.
            ContextTooSmall: the question alone does not fit its context.
        """
        key = (question, tuple(passages))
        if key not in self._known:
            if len(self._known) >= _MEMORY:
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
    """The generator over the policy that ``spec`` names; ``scripted:extractive`` needs no model.

    Raises:
        UnknownName: no such policy.
        MissingExtra: what it needs is not installed.
    """
    if spec == EXTRACTIVE:
        return Generator(ExtractivePolicy())
    check_reached(spec)
    return Generator(make_endpoint_policy(spec) if is_endpoint(spec) else make_policy(spec))


@dataclass
class PlannedState(SearchState):
    """All that changes within an episode."""

    direct: str | None = None
    """The generator's answer without a search, where the reward asks for it."""
    rag: str | None = None
    """The generator's answer from one search for the question as it stands."""
    rationality: float = 0.0
    """How rational the judge rates the plan."""
    judged_right: set[str] = field(default_factory=set)
    """Answers that a judge takes for the accepted one in other words."""


def value_of(answer: str | None, state: PlannedState, scorer: Scorer) -> float:
    """What an answer scores: 1 where a judge takes it for right, else by ``scorer``; 0 without one."""
    if not answer or answer in state.judged_right:
        return float(bool(answer))
    return scorer(answer, state.task.answers).value


def judged_score(state: PlannedState, scorer: Scorer) -> float:
    """`value_of` the answer of the episode."""
    return value_of(state.answer, state, scorer)


@dataclass(frozen=True)
class GeneratedAnswer:
    """Ends the episode with the generator's answer from everything that was found."""

    generator: Generator
    search: SearchTool
    scorer: Scorer
    """Of answers."""
    compares: bool = False
    """Whether the generator answers without the plan as well."""
    judge: PlanJudge | None = None
    """Rates the plan."""
    answer_judge: AnswerJudge | None = None
    """Asked about answers that are not right by ``scorer``."""

    async def __call__(self, call: TagCall, state: PlannedState) -> ToolReply:
        """The answer; what the planner wrote between its tags is not read.

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
        """Notes those of ``given`` that ``judge`` takes for right."""
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
    """What a plan is paid for.

    Raises:
        ConfigurationError: a negative price or weight.
        UnknownName: no such process or cost.
    """

    gains: bool
    """Whether the outcome is a gain; otherwise it is a score."""
    found: float
    """For a plan of which a page holds an accepted answer."""
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

    The outcome is the generator's score or the `planning_gain`; the process is the `coverage` of the documents or a judge's
    rating; the cost is the price of each query, paid when it is asked, or for a plan of few turns a part of the price, see
    `frugality`. A plan without an end has the score 0, or the least gain, so that an end never pays less; nobody asks the
    generator then. It has no process reward: a search for the question as it stands often shows the answer, so that
    searching alone would pay.
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
    """The model that ``spec`` names, which decides greedily."""
    check_reached(spec)
    return ModelWriter(make_chat(spec), temperature=0.0, tokens=_VERDICT_TOKENS)


def _make_judge(process: Process, judge: PlanJudge | Generator | str) -> PlanJudge | None:
    """The judge of plans that is given, or over the model that a spec names; none where ``process`` asks for none."""
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
        """Builds an environment.

        Args:
            generator: What answers, or the spec of its policy.
            search_cost: Subtracted for every search; under the cost ``turns`` the most that a plan of few turns earns.
            found_reward: Process reward of a plan that has found a page with an accepted answer, paid at its end.
            gain: Whether the outcome is 1/2 more than what the generator's answer has over the better of its answer without
                a search and its answer from one search for the question, and -1/2 for a plan without an end; otherwise it
                is the score of its answer.
            process: ``coverage`` is the share of the supporting documents that the plan has found, ``judge`` what a model
                thinks of the plan; both are paid at the end.
            process_weight: Times the process reward (lambda).
            cost: ``queries`` have a price each; ``turns`` pays for those that a plan of at most ``max_turns`` has saved.
            judge: What rates plans, or the spec of a model; empty takes the generator, as in the paper.
            answer_judge: Decides whether an answer that is not right by the scorer says the same as an accepted one, or the
                spec of a model that does, as in the paper; empty asks nobody.
            prompt: Opening message; must hold ``{question}``.
            tasks: Questions with answers that a page can be searched for; None takes those of a small FictionalWorld.
            retriever: A retriever or its spec; None searches that world by word overlap.
            **options: Further arguments of `LocalSearch`.

        Raises:
            ConfigurationError: a negative cost or weight, or no model that could rate plans.
            UnknownName: no such process or cost.
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
            native=None,  # the message explains the tags, in which a plan ends without an answer
        )

    @classmethod
    def default_prompt(cls, options: Mapping[str, Any], *, native: bool = False) -> str | None:
        """None: the message is its own under every outcome."""
        return None

    def expert(self) -> Sequence[str] | None:
        """None: what a plan is worth depends on the generator."""
        return None
