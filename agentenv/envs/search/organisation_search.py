"""``agentenv/OrganisationSearch-v0``: questions about an organisation with mail, chat and tickets (after OrgForge).

A search may be restricted to a channel and a time: ``mail before day 5: INC-2``. Results can be opened by their id. Some
questions ask for something that does not exist, and the right answer says so. The reward is the score of the answer; a right
answer also earns a part for the evidence that was shown.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from agentenv.core.grammar import written_block
from agentenv.core.types import Passage, Task, ToolResult, ToolStatus
from agentenv.data.organisation import invent_organisation
from agentenv.data.organisation_log import OrganisationConfig
from agentenv.data.organisation_questions import FOLLOWUPS, organisation_tasks
from agentenv.envs.search.outcomes import Reward, score_of
from agentenv.envs.search.page_format import PageFormat, QuestionPrompt, format_addresses
from agentenv.envs.search.planner_rewards import coverage
from agentenv.envs.search.search_env import SearchEnv, SearchParts
from agentenv.envs.search.search_state import SearchState, TagCall, ToolReply
from agentenv.envs.search.search_tools import SearchTool, TagParser
from agentenv.errors import ConfigurationError
from agentenv.retrievers.fakes import InMemoryRetriever

PROMPT = """\
Answer a question about an organisation from its mail, its chat and its tickets. A mail is seen by those to whom it goes, a \
message or a ticket by the team, and nobody sees what is written after leaving.
First think between <think> and </think>. Write a query between <search> and </search>; a channel and a time may stand \
before it, as in <search>mail before day 5, 12:00: INC-2</search>. What is found comes with its id in brackets; to see one \
whole, write its id between <open> and </open>.
When you know the answer, write it between <answer> and </answer>, short and without explanation; write \
<answer> nobody </answer> where what is asked for does not exist.
Question: {question}
"""
_QUERY = re.compile(
    r"(?P<channel>mail|chat|tickets)?"
    r"(?:\s*before day (?P<day>\d{1,9})(?:, (?P<hour>\d\d):(?P<minute>\d\d))?)?\s*:\s*(?P<text>\S.*)",
    re.DOTALL,
)
# Adjacent repetitions of spaces are avoided, and the number of digits is limited, so any query is parsed in linear time.
_TITLE = re.compile(r"\[(mail|chat|tickets)\] day (\d+), (\d\d):(\d\d):")


@dataclass(frozen=True, slots=True)
class Restriction:
    """The restrictions of a search."""

    text: str
    channel: str | None = None
    before: tuple[int, int] | None = None
    """Business day and minute of the day; only earlier artefacts are admitted."""

    @classmethod
    def of(cls, query: str) -> "Restriction":
        """Parses ``query``. Without a channel and a time it is unrestricted."""
        match = _QUERY.fullmatch(query.strip())
        if match is None or not (match["channel"] or match["day"]):
            return cls(query.strip())
        minute = 60 * int(match["hour"] or 0) + int(match["minute"] or 0)
        before = (int(match["day"]), minute) if match["day"] else None
        return cls(match["text"].strip(), match["channel"], before)

    def admits(self, passage: Passage) -> bool:
        """Whether ``passage`` satisfies the restrictions."""
        match = _TITLE.match(passage.title)
        if match is None:
            return self.channel is None and self.before is None
        time = (int(match[2]), 60 * int(match[3]) + int(match[4]))
        return self.channel in (None, match[1]) and (self.before is None or time < self.before)


@lru_cache(maxsize=16)
def _cached_retriever(config: OrganisationConfig) -> InMemoryRetriever:
    return InMemoryRetriever(invent_organisation(config).documents)


def organisation_of(task: Task) -> OrganisationConfig:
    """Returns the organisation that a task is about."""
    return OrganisationConfig(**task.data["organisation"], split=task.split or "test")  # type: ignore[arg-type]


@dataclass(frozen=True)
class ChannelSearch:
    """Searches the task's organisation, within a channel and before a time if the query names them."""

    search: SearchTool

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Returns the page of results."""
        asked = Restriction.of(call.text)
        retriever = _cached_retriever(organisation_of(state.task))
        (ranking,) = await retriever.search([asked.text], len(retriever.corpus))
        found = [passage for passage in ranking if asked.admits(passage)][: self.search.k]
        ids = [[passage.id for passage in found]]
        state.retrieved += ids
        state.queries.append(call.text)
        state.add_passages(found)
        result = ToolResult("search", ToolStatus.OK, call.text, data={"ids": ids})
        return ToolReply(self.search.format.page(self.search.format.passages(found)), result)


@dataclass(frozen=True)
class OpenTool:
    """Shows a whole artefact of the task's organisation by its id."""

    format: PageFormat

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Returns the artefact; a notice if there is none with this id."""
        corpus = _cached_retriever(organisation_of(state.task)).corpus
        try:
            document = corpus[corpus.row_of(call.text)]
        except KeyError:
            page = self.format.page(f"No artefact has the id {call.text!r}.")
            return ToolReply(page, ToolResult("open", ToolStatus.ERROR, call.text, "UnknownId"))
        passage = Passage(document.id, document.title, document.text, 0.0)
        state.add_passages([passage])
        result = ToolResult("open", ToolStatus.OK, call.text, data={"ids": [[passage.id]]})
        return ToolReply(self.format.page(format_addresses([passage])), result)


def organisation_reward(
    state: SearchState, *, answer: Reward, scorer: Any, evidence: float
) -> dict[str, float]:
    """Returns the reward of the answer and, if it is right, ``evidence`` times the share of its documents that were shown.

    Evidence without a right answer earns nothing, because searching for everything would earn it.
    """
    parts = dict(answer(state))
    if state.last.end is not None and score_of(state, scorer) >= 1:
        parts["evidence"] = evidence * coverage(state.by_id, state.task.data.get("supporting_ids", ()))
    return parts


class OrganisationSearch(SearchEnv):
    """Search by channel and time in an organisation whose facts and gaps are known."""

    call_markers = ("<search>", "<open>")
    stop = ("</search>", "</open>", "</answer>")
    reward_options = SearchEnv.reward_options | {"evidence_reward"}

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        k: int = 5,
        max_turns: int = 6,
        observation_tokens: int = 500,
        snippet_words: int | None = None,
        scorer: str = "em_squad",
        evidence_reward: float = 0.2,
        prompt: str = PROMPT,
        count_tokens: Any = None,
        render_mode: str | None = None,
    ) -> None:
        """Makes an environment.

        Args:
            tasks: Questions made by `organisation_tasks`; None uses those of one organisation.
            k: Number of artefacts that a search shows.
            max_turns: Number of turns before the last one, in which only an answer counts.
            observation_tokens: Largest size of one observation.
            snippet_words: Number of words of each artefact that a search shows; ``<open>`` shows the rest. None shows all.
            scorer: The name of the scorer of answers.
            evidence_reward: The additional reward of a right answer if all of its evidence was shown.
            prompt: The opening message. It must contain ``{question}``.
            count_tokens: Returns the length of a text in tokens; None counts words.
            render_mode: ``ansi`` or None.

        Raises:
            ConfigurationError: a negative reward, or a bound below 1.
        """
        given = tasks if tasks is not None else self.make_tasks(24)
        super().__init__(
            tasks=given,
            retriever=_cached_retriever(organisation_of(given[0])),
            k=k,
            max_turns=max_turns,
            observation_tokens=observation_tokens,
            snippet_words=snippet_words,
            scorer=scorer,
            count_tokens=count_tokens,
            render_mode=render_mode,
        )
        if evidence_reward < 0:
            raise ConfigurationError(f"evidence_reward={evidence_reward} must not be negative")
        page_format = replace(self.search.format, write=format_addresses)
        self.search = replace(self.search, queries=1, format=page_format)
        self.parts = SearchParts(
            opening=QuestionPrompt(prompt),
            parser=TagParser(("search", "open", "answer"), filled=("search", "open")),
            tools={"search": ChannelSearch(self.search), "open": OpenTool(page_format)},
            reward=partial(
                organisation_reward, answer=self.answer_reward, scorer=self.scorer, evidence=evidence_reward
            ),
        )

    @classmethod
    def make_tasks(
        cls,
        n: int,
        *,
        seed: int = 0,
        split: str = "train",
        people: int = 12,
        days: int = 22,
        followups: int = FOLLOWUPS,
        social: bool = False,
    ) -> Sequence[Task]:
        """Generates questions about as many organisations as are needed.

        Args:
            n: The number of questions.
            seed: The seed of the first organisation is this number times 1000; the others follow.
            split: The split, which decides the invented words.
            people: Number of people in each organisation.
            days: Number of business days of each.
            followups: Largest number of incidents that follow from an incident. Questions trace these back, and ask what
                would not have happened without them.
            social: Whether incidents recur, people burn out and complaints are passed on, with questions about these.
        """
        return organisation_tasks(
            n,
            seed=1000 * seed,
            split=split,
            people=people,
            days=days,
            followups=followups,
            social=social,
        )

    def expert(self) -> Sequence[str] | None:
        """Makes the search of the task's path, then answers."""
        task = self.state.task
        searches = [written_block("search", hop["query"]) for hop in task.data["path"]]
        return (*searches[: self.max_turns], written_block("answer", task.answers[0]))
