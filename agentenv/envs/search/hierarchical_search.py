"""``agentenv/HierarchicalSearch-v0``: a planner asks agents, each with its own environment (HierSearch, Tan et al. 2025).

``<local_search_agent>``, ``<web_search_agent>`` or ``<all_search_agent>`` with a question plays an episode of each agent
that is asked. The planner sees a selection of what their searches found: the best share of each search, and of the rest of
each agent's evidence.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentenv.core.chat import InlineFormat
from agentenv.core.grammar import shortened, written_block
from agentenv.core.options import bind_options
from agentenv.core.protocols import ChatFormat, Policy, Retriever
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, run_episode
from agentenv.core.types import Passage, Task, ToolResult, ToolStatus
from agentenv.envs.search.agent_search import LOCAL_TOOLS, OBSERVATION_TOKENS, PASSAGES, AgentSearch
from agentenv.envs.search.agent_search import PROMPT as AGENT_PROMPT
from agentenv.envs.search.evidence import FoundEvidence, Refiner, thought_of
from agentenv.envs.search.hierarchical_rewards import HierarchicalState, hierarchical_parts
from agentenv.envs.search.local_search import SURE, UNSURE, LocalSearch
from agentenv.envs.search.page_format import PageFormat, QuestionPrompt, format_passages
from agentenv.envs.search.search_env import SearchEnv, on_small_world, thinking
from agentenv.envs.search.search_state import TagCall, ToolReply
from agentenv.envs.search.synonyms import SIMILARITY
from agentenv.errors import ConfigurationError, EnvFault
from agentenv.policies.card import read_card
from agentenv.policies.extractive import EXTRACTIVE, ExtractivePolicy
from agentenv.policies.policy_spec import (
    check_reached,
    is_endpoint,
    make_endpoint_policy,
    make_policy,
    policy_folder,
)
from agentenv.retrievers.part import PartRetriever
from agentenv.retrievers.rerank import Reranker, make_reranker
from agentenv.retrievers.retriever_spec import shared_retriever

PROMPT = """\
Find the answer to the question below with the help of two agents that search for you.
First think between <think> and </think>. Write a question of your own between <local_search_agent> and \
</local_search_agent> for the one that knows our documents, between <web_search_agent> and </web_search_agent> for the one \
that knows the web, or between <all_search_agent> and </all_search_agent> for both. What they find comes back between \
<information> and </information>. Where our documents and the web disagree, trust our documents more.
When you know the answer, write it between <answer> and </answer>, short and without explanation, \
as in <answer> Beijing </answer>.
Question: {question}
"""

QUESTION_SHARE = 8
"""A question may have one character for each so many tokens of the asked agent's context."""
_SUFFIX = "_search_agent"
_ALL = f"all{_SUFFIX}"
_BUDGETS = RolloutConfig(context_tokens=1 << 16, turn_tokens=500, temperature=0.0)


@dataclass(frozen=True)
class Agent:
    """Answers questions by episodes of a search environment."""

    env: SearchEnv
    """The environment, which is forked for every question."""
    policy: Policy
    chat: ChatFormat
    config: RolloutConfig = _BUDGETS

    async def ask(self, question: str, seed: int) -> tuple[list[FoundEvidence], str | None]:
        """Plays an episode; returns what each search found, and the answer.

        Raises:
            EnvFault: the episode ended by an infrastructure failure.
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
        known: dict[str, Passage] = env.state.by_id
        searches = [
            FoundEvidence(thought_of(turn.action), tuple(known[i] for i in ids if i in known))
            for turn in played.turns
            for result in turn.tool_results
            for ids in result.data.get("ids", ())
        ]
        return searches, played.info.get("answer")


def extractive_agent(env: SearchEnv) -> Agent:
    """Makes an agent without a model: one search, then an answer span selected by rules."""
    policy = ExtractivePolicy()
    return Agent(env, policy, InlineFormat(policy.tokenizer))


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The settings of an agent in a configuration."""

    policy: str = EXTRACTIVE
    """The policy: ``hf:PATH``, ``openai:MODEL@URL`` or ``tiny``; by default rules, which search once with the question."""
    tools: tuple[str, ...] = LOCAL_TOOLS
    """The tools of `AgentSearch` that it may call; rules have only a search."""
    retriever: str = ""
    """The retriever of its local tools; empty uses that of the planner's environment."""
    web: str = ""
    """The retriever of its web tools; empty uses the same."""
    part: tuple[int, ...] = ()
    """The part of the documents that it searches, and the number of parts, such as [1, 2] for the first of two, so that
    agents over one corpus know different documents. Empty searches all. Not for web tools with their own retriever."""
    facts: str = ""
    """What its graph tools search; see `AgentSearch`."""
    synonyms: str = ""
    """The encoder that finds synonyms for these; see `AgentSearch`."""
    synonym_similarity: float = SIMILARITY
    """The cosine from which on two names are synonyms."""
    fact_judge: str = "overlap"
    """Scores facts against a query; see `AgentSearch`."""
    prompt: str = AGENT_PROMPT
    """The opening message of the agent."""
    frame: str = "information"
    """The tags around its pages; see `AgentSearch`."""
    k: int = PASSAGES
    """Number of passages per query."""
    max_turns: int = 8
    observation_tokens: int = OBSERVATION_TOKENS
    """Largest size of one observation."""
    turn_tokens: int = 500
    context_tokens: int = 1 << 16
    temperature: float = 0.9
    """The temperature with which HierSearch serves its agents; rules do not sample."""


_CARD_SETTINGS = ("prompt", "k", "max_turns", "observation_tokens", "turn_tokens", "context_tokens")
"""Settings of an agent that are on the card of its policy, besides its tools and other options of its episodes."""


@lru_cache(maxsize=8)
def _shared_policy(policy: str) -> tuple[Policy, ChatFormat]:
    """Opens a policy and its chat format, which all environments of this process share."""
    if is_endpoint(policy):
        check_reached(policy)
        served = make_endpoint_policy(policy)
        return served, served.chat
    opened = make_policy(policy)
    return opened, read_card(policy_folder(policy)).chat_format(opened.tokenizer, opened.ends)


def _trained_settings(policy: object) -> dict[str, Any]:
    """Returns the settings with which an agent was trained in `AgentSearch`, from its card; empty for other policies."""
    if not isinstance(policy, str) or policy == EXTRACTIVE or is_endpoint(policy):
        return {}
    card = read_card(policy_folder(policy)).of("agentenv/AgentSearch-v0")
    if card.env != "agentenv/AgentSearch-v0":
        return {}
    stated = {name: getattr(card, name) for name in _CARD_SETTINGS}
    known = AgentSettings.__dataclass_fields__
    shaped = {name: value for name, value in card.options.items() if name in known}
    return shaped | {name: value for name, value in stated.items() if value is not None}


def configured_agent(
    name: str, settings: Mapping[str, Any], tasks: Sequence[Task], retriever: Retriever | str
) -> Agent:
    """Makes the agent that a table of a configuration describes.

    Prompt and budgets that the table does not set are those with which the agent was trained, if its card says so.

    Args:
        name: The name of the agent.
        settings: Fields of `AgentSettings`.
        tasks: The tasks of the planner's environment; the agent itself is asked other questions.
        retriever: The retriever to search if the settings name none.

    Raises:
        UnknownName: there is no such field, tool or policy.
        ConfigurationError: a value has the wrong type or is out of range.
    """
    settings = _trained_settings(settings.get("policy", EXTRACTIVE)) | dict(settings)
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    made: AgentSettings = bind_options("agent", name, AgentSettings, settings)()
    own = _part_of(made.retriever or retriever, made.part)
    bounds: dict[str, Any] = {
        "tasks": tasks,
        "retriever": own,
        "k": made.k,
        "observation_tokens": made.observation_tokens,
    }
    if made.policy == EXTRACTIVE:
        return extractive_agent(LocalSearch(max_turns=1, **bounds))
    env = AgentSearch(
        tools=made.tools,
        web=made.web or None,
        facts=made.facts,
        synonyms=made.synonyms,
        synonym_similarity=made.synonym_similarity,
        fact_judge=made.fact_judge,
        prompt=made.prompt,
        frame=made.frame,
        max_turns=made.max_turns,
        **bounds,
    )
    policy, chat = _shared_policy(made.policy)
    context = min(made.context_tokens, getattr(policy, "context_tokens", made.context_tokens))
    config = RolloutConfig(
        context_tokens=context,
        turn_tokens=made.turn_tokens,
        temperature=made.temperature,
        stop=env.stop,
        deterministic=False,
    )
    return Agent(env, policy, chat, config)


def _part_of(retriever: Retriever | str, part: Sequence[int]) -> Retriever | str:
    """Returns the retriever, or the part of it that an agent searches.

    Raises:
        ConfigurationError: ``part`` is not an index with a number of parts, or there is no such part.
    """
    if not part:
        return retriever
    if len(part) != 2:
        raise ConfigurationError(
            f"part={list(part)} must be two numbers, such as [1, 2] for the first of two parts"
        )
    whole = shared_retriever(retriever) if isinstance(retriever, str) else retriever
    return PartRetriever(whole, *part)


def _agents(
    given: Mapping[str, Any] | None, tasks: Sequence[Task], retriever: Retriever | str
) -> dict[str, Agent]:
    """Returns the given or configured agents; by default two that need no model."""
    if given is None:
        lower = LocalSearch(tasks=tasks, retriever=retriever, k=5, max_turns=1, observation_tokens=4000)
        return {name: extractive_agent(lower) for name in ("local", "web")}
    return {
        name: configured_agent(name, agent, tasks, retriever) if isinstance(agent, Mapping) else agent
        for name, agent in given.items()
    }


@dataclass(frozen=True)
class AgentsTool:
    """Asks each of its agents the same question and shows the selected evidence."""

    agents: Mapping[str, Agent]
    refiner: Refiner
    format: PageFormat

    async def __call__(self, call: TagCall, state: HierarchicalState) -> ToolReply:
        """Returns the evidence and the answers of the agents.

        Raises:
            EnvFault: an episode of an agent ended by an infrastructure failure.
        """
        # One after another, because an episode may wait for only one batch at a time.
        asked = [(name, *await agent.ask(call.text, state.seed)) for name, agent in self.agents.items()]
        state.calls.append(call.tag)
        kept = self.refiner.of_all([(searches, answer or "") for _, searches, answer in asked])
        answers = [f"The {name} agent answers: {answer}" for name, _, answer in asked if answer]
        state.add_passages(kept)
        ids = [[passage.id for passage in kept]]
        state.retrieved += ids
        evidence = format_passages(kept).strip()
        # The agents' answers are the last and shortest part, so that they remain if the evidence does not fit.
        page = self.format.page(evidence, "".join(f"\n{answer}" for answer in answers))
        return ToolReply(page, ToolResult("search", ToolStatus.OK, call.text, data={"ids": ids}))


class HierarchicalSearch(SearchEnv):
    """A planner that asks search agents; the reward is token F1, or a small one for trying all agents."""

    call_markers = ("<local_search_agent>", "<web_search_agent>", "<all_search_agent>")
    stop = (*(marker.replace("<", "</") for marker in call_markers), "</answer>")
    scorers = (*SearchEnv.scorers, "f1_squad_guard")
    reward_options = SearchEnv.reward_options | {"local_first"}
    state: HierarchicalState

    def __init__(
        self,
        *,
        agents: Mapping[str, Any] | None = None,
        keep: float = 0.3,
        keep_rest: float | None = None,
        cut_again: bool = False,
        local_first: bool = False,
        reranker: Reranker | str = "overlap",
        max_turns: int = 8,
        scorer: str = "f1_squad_guard",
        frame: str = "information",
        prompt: str = PROMPT,
        tasks: Sequence[Task] | None = None,
        retriever: Retriever | str | None = None,
        **options: Any,
    ) -> None:
        """Makes an environment.

        Args:
            agents: The agents by name: ``local`` and ``web``, or others that the prompt names; each is an `Agent`, or a
                table with the fields of `AgentSettings`. None makes two agents without a model, both over ``retriever``, or
                over a small FictionalWorld if none is given.
            keep: The share of each search that refinement keeps, by the thought before it.
            keep_rest: The share of the rest of an agent's evidence that it keeps, by the conclusions; None uses ``keep``.
            cut_again: Whether the evidence of all agents together is selected from again; see `Refiner`.
            local_first: Whether an early call of an agent not named ``local`` costs the `local_first_penalty`.
            reranker: Scores evidence: ``overlap``, ``encoder:SPEC``, or a folder with a cross-encoder.
            max_turns: Number of turns before the last one, in which only an answer counts.
            scorer: The name of the scorer of answers.
            frame: The tags around a page: ``information`` or, as published, ``result``. The prompt names them.
            prompt: The opening message. It must contain ``{question}``.
            tasks: Questions with answers; None uses those of that world.
            retriever: The retriever of the default agents, or its spec.
            **options: Further arguments of `SearchEnv`.

        Raises:
            ConfigurationError: there are no agents, or a share is out of range.
            UnknownName: there is no such frame.
        """
        tasks, retriever = on_small_world(tasks, retriever)
        super().__init__(tasks=tasks, retriever=retriever, max_turns=max_turns, scorer=scorer, **options)
        agents = _agents(agents, tasks, retriever)
        if not agents:
            raise ConfigurationError(f"agents={list(agents)} must name at least one agent")
        far = tuple(f"{name}{_SUFFIX}" for name in (*agents, "all") if name != "local") if local_first else ()
        judge = make_reranker(reranker) if isinstance(reranker, str) else reranker
        refiner = Refiner(judge, keep, keep if keep_rest is None else keep_rest, cut_again)
        asked = {f"{name}{_SUFFIX}": {name: agent} for name, agent in agents.items()} | {_ALL: dict(agents)}
        pages = self.search.format.framed(frame)
        tools = {tag: AgentsTool(some, refiner, pages) for tag, some in asked.items()}
        opening = QuestionPrompt(prompt.replace("information>", f"{frame}>"))
        self.parts = hierarchical_parts(self, opening, tools, tuple(tools), far)

    def expert(self) -> Sequence[str] | None:
        """Thinks, and asks an agent for every hop, if the task has its path; then answers.

        The web agent is asked only for what the local agent did not find.
        """
        (twin,) = self.fork()
        task = self.state.task
        agents = [name for name in (f"local{_SUFFIX}", f"web{_SUFFIX}") if name in self.parts.tools]
        asked: list[str] = []
        for hop in task.data.get("path", ()):
            for name in agents:
                if len(asked) == self.max_turns:
                    break
                asked.append(thinking(UNSURE, written_block(name, hop["query"])))
                twin.step(asked[-1])
                if hop.get("document") is None or any(hop["document"] in ids for ids in twin.state.retrieved):
                    break
        return (*asked, thinking(SURE, written_block("answer", task.answers[0])))
