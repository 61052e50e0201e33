"""``agentenv/HierarchicalSearch-v0``: a planner asks agents, each with its own environment (HierSearch, Tan et al. 2025).

``<local_search_agent>``, ``<web_search_agent>`` or ``<all_search_agent>`` with a question plays an episode of each
agent asked. What its searches found is evidence for the level above, refined twice: the best share of each agent, then of
all.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentenv.core.chat import InlineFormat
from agentenv.core.grammar import shortened
from agentenv.core.protocols import ChatFormat, Policy, Retriever
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, run_episode
from agentenv.core.scoring.scorers import Scorer
from agentenv.core.types import Passage, Task, ToolResult, ToolStatus
from agentenv.envs.search.local_search import SURE, UNSURE, LocalSearch
from agentenv.envs.search.outcomes import Reward, is_one_action, score_of
from agentenv.envs.search.page_format import PageFormat, QuestionPrompt, format_passages
from agentenv.envs.search.search_env import SearchEnv, SearchParts, on_small_world, thinking
from agentenv.envs.search.search_state import SearchState, ToolCall, ToolReply
from agentenv.envs.search.search_tools import TagParser
from agentenv.errors import ConfigurationError, EnvFault
from agentenv.policies.extractive import ExtractivePolicy
from agentenv.retrievers.base import passage_text
from agentenv.retrievers.rerank import Reranker, make_reranker

PROMPT = """\
Find the answer to the question below with the help of two agents that search for you.
First think between <think> and </think>. Write a question of your own between <local_search_agent> and \
</local_search_agent> for the one that knows our documents, between <web_search_agent> and </web_search_agent> for the one \
that knows the web, or between <all_search_agent> and </all_search_agent> for both. What they find comes back between \
<information> and </information>.
When you know the answer, write it between <answer> and </answer>, short and without explanation, \
as in <answer> Beijing </answer>.
Question: {question}
"""

QUESTION_SHARE = 8
"""A question has at most a character for so many tokens of the context of the agent that is asked."""
_SUFFIX = "_search_agent"
_ALL = f"all{_SUFFIX}"
_BUDGETS = RolloutConfig(context_tokens=1 << 16, turn_tokens=500, temperature=0.0)


@dataclass(frozen=True)
class Agent:
    """Answers a question by an episode of a search environment."""

    env: SearchEnv
    """Forked for every question."""
    policy: Policy
    chat: ChatFormat
    config: RolloutConfig = _BUDGETS

    async def ask(self, question: str, seed: int) -> tuple[list[Passage], str | None]:
        """Everything that its searches found, and its answer.

        Raises:
            EnvFault: its episode met an infrastructure failure.
        """
        (env,) = self.env.fork()
        question = shortened(question, self.config.context_tokens // QUESTION_SHARE)
        task = Task(f"asked-{hashlib.sha256(question.encode()).hexdigest()[:12]}", question, ("unknown",))
        episode = f"{task.id}-{seed}"
        played = await run_episode(
            EpisodeSpec(env, task, seed), self.policy, self.chat, self.config, episode=episode
        )
        if not played.valid:
            raise EnvFault(f"the agent below failed: {played.error}")
        return list(env.state.found.values()), played.info.get("answer")


def extractive_agent(env: SearchEnv) -> Agent:
    """An agent that needs no model: one search, then a span by rules."""
    policy = ExtractivePolicy()
    return Agent(env, policy, InlineFormat(policy.tokenizer))


def refine(passages: Sequence[Passage], question: str, reranker: Reranker, share: float) -> list[Passage]:
    """The best ``share`` of ``passages`` for ``question``, one at least, in the order of their scores."""
    if not passages:
        return []
    scores = reranker.score([(question, passage_text(passage)) for passage in passages])
    order = sorted(range(len(passages)), key=lambda i: -scores[i])
    return [passages[i] for i in order[: max(1, math.ceil(share * len(passages)))]]


def is_complete(actions: Sequence[str], tools: Sequence[str]) -> bool:
    """HierSearch's format, over what the policy wrote in each turn.

    There is one answer. Thoughts are closed as often as they are opened, and there is one at least. A turn calls one tool at
    most, so that its result comes before the next call.
    """
    text = "".join(actions)
    thoughts = text.count("<think>")
    return (
        text.count("<answer>") == text.count("</answer>") == 1
        and thoughts == text.count("</think>") > 0
        and all(is_one_action(action, tools) for action in actions)
    )


def coverage_reward(score: float, used: int, offered: int, complete: bool) -> float:
    """HierSearch: 0 for a broken format or no answer, the score above 0, else a tenth of the share of tools tried.

    As published, a score between 0 and that tenth pays less than a wrong answer that tried every tool.
    """
    if not complete:
        return 0.0
    return score if score > 0 else 0.1 * used / offered


@dataclass
class HierarchicalState(SearchState):
    """All that changes within an episode."""

    used: set[str] = field(default_factory=set)
    """Tags of the tools called so far."""


@dataclass(frozen=True)
class AgentsTool:
    """Asks every one of its agents the same question and shows the refined evidence."""

    agents: Mapping[str, Agent]
    keep: float
    """Share of the evidence that refinement keeps: of each agent's, then of all of it together."""
    reranker: Reranker
    format: PageFormat

    async def __call__(self, call: ToolCall, state: HierarchicalState) -> ToolReply:
        """The evidence and the answers of the agents.

        Raises:
            EnvFault: an episode of an agent met an infrastructure failure.
        """
        evidence: dict[str, Passage] = {}
        told: list[str] = []
        for name, agent in self.agents.items():  # in turn: an episode waits for one batch at a time
            found, answer = await agent.ask(call.text, state.seed)
            best = refine(found, call.text, self.reranker, self.keep)
            evidence |= {passage.id: passage for passage in best}
            told += [f"The {name} agent answers: {answer}"] * bool(answer)
        state.used.add(call.tag)
        kept = list(evidence.values())
        if len(self.agents) > 1:
            kept = refine(kept, call.text, self.reranker, self.keep)
        state.add_passages(kept)
        ids = [[passage.id for passage in kept]]
        state.retrieved += ids
        page = self.format.page("\n".join([format_passages(kept).strip(), *told]))
        return ToolReply(page, ToolResult("search", ToolStatus.OK, call.text, data={"ids": ids}))


def hierarchical_reward(
    state: HierarchicalState, *, answer: Reward, scorer: Scorer, tools: Sequence[str]
) -> Mapping[str, float]:
    """HierSearch: `coverage_reward` at the end, and before it what `answer` gives for a page with an accepted answer."""
    if state.last.end is None:
        return answer(state)
    whole = state.answer is not None and not state.mistakes
    complete = whole and is_complete([turn.action for turn in state.record], tools)
    return {"coverage": coverage_reward(score_of(state, scorer), len(state.used), len(tools), complete)}


class HierarchicalSearch(SearchEnv):
    """A planner over search agents; the reward is token F1, or a little for an answer that tried them."""

    call_markers = ("<local_search_agent>", "<web_search_agent>", "<all_search_agent>")
    stop = (*(marker.replace("<", "</") for marker in call_markers), "</answer>")
    state: HierarchicalState

    def __init__(
        self,
        *,
        agents: Mapping[str, Agent] | None = None,
        keep: float = 0.3,
        reranker: Reranker | str = "overlap",
        max_turns: int = 8,
        scorer: str = "f1_hotpot",
        prompt: str = PROMPT,
        tasks: Sequence[Task] | None = None,
        retriever: Retriever | str | None = None,
        **options: Any,
    ) -> None:
        """Builds an environment.

        Args:
            agents: By name: ``local`` and ``web``, or others that the prompt names. None makes two that need no model,
                both over ``retriever``, or over a small FictionalWorld where none is given.
            keep: Share of the evidence that refinement keeps, each of its two times.
            reranker: Judges evidence: ``overlap``, or a folder with a cross-encoder.
            max_turns: Turns before the last one, in which only an answer counts.
            scorer: Name of the scorer of answers.
            prompt: Opening message; must hold ``{question}``.
            tasks: Questions with answers; None takes those of that world.
            retriever: What the default agents search, or its spec.
            **options: Further arguments of `SearchEnv`.

        Raises:
            ConfigurationError: no agents, or a share out of range.
        """
        tasks, retriever = on_small_world(tasks, retriever)
        super().__init__(tasks=tasks, retriever=retriever, max_turns=max_turns, scorer=scorer, **options)
        if agents is None:
            lower = LocalSearch(tasks=tasks, retriever=retriever, k=5, max_turns=1, observation_tokens=4000)
            agents = {name: extractive_agent(lower) for name in ("local", "web")}
        if not agents or not 0 < keep <= 1:
            raise ConfigurationError(
                f"needs agents, not {list(agents)}, and a share to keep in (0, 1], not {keep}"
            )
        judge = make_reranker(reranker) if isinstance(reranker, str) else reranker
        asked = {f"{name}{_SUFFIX}": {name: agent} for name, agent in agents.items()} | {_ALL: dict(agents)}
        self.parts = SearchParts(
            opening=QuestionPrompt(prompt),
            parser=TagParser((*asked, "answer"), filled=tuple(asked)),
            tools={tag: AgentsTool(some, keep, judge, self.search.format) for tag, some in asked.items()},
            reward=partial(
                hierarchical_reward, answer=self.answer_reward, scorer=self.scorer, tools=tuple(asked)
            ),
            state=HierarchicalState,
        )

    def expert(self) -> Sequence[str] | None:
        """Thinks and asks for every hop where the task carries its path, then answers."""
        task = self.state.task
        asked = [
            thinking(UNSURE, f"<local_search_agent>{hop['query']}</local_search_agent>")
            for hop in task.data.get("path", ())
        ]
        known = asked[: self.max_turns] if "local_search_agent" in self.parts.tools else []
        return (*known, thinking(SURE, f"<answer>{task.answers[0]}</answer>"))
