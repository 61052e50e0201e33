"""``agentenv/LocalSearch-v0``: answer a question by searching a corpus, reading and answering (Search-R1 family).

Of each action, the first complete block counts: ``<search>`` runs each of its lines as a query, ``<read>`` shows a whole
passage, ``<answer>`` ends the episode. Anything else is answered with a correction and costs a turn. After ``max_turns``
turns there is one last action, which must be an answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentenv.core.grammar import written_block
from agentenv.envs.search.native_tools import NATIVE_PROMPT, NativeActions
from agentenv.envs.search.page_format import QuestionPrompt
from agentenv.envs.search.search_env import SearchEnv, SearchParts, thinking
from agentenv.envs.search.search_tools import ReadTool, TagParser

TAGS = ("search", "read", "answer")
FRUGAL = "knowledge_boundary"
"""The outcome that rewards fewer searches; its opening message says so."""
UNSURE, SURE = "I look it up.", "I know it."
"""The expert's thoughts before a search and before the answer."""
STOP = tuple(f"</{tag}>" for tag in TAGS)
"""Stop strings for the engine: nothing is sampled after the first block."""

PROMPT = """\
Find the answer to the question below.
Whenever you have learned something new, first think about it between <think> and </think>.
When you lack a fact, write a query between <search> and </search>; several queries go on lines of their own. What the \
search finds comes back between <information> and </information>. To see one of the found documents in full, write its \
title between <read> and </read>. You may search as often as you need.
When you know the answer, write it between <answer> and </answer>, short and without explanation, \
as in <answer> Beijing </answer>.
Question: {question}
"""

KNOWLEDGE_PROMPT = """\
Answer the question below as an expert who relies on what he knows, and who searches only where there is a clear gap in it.
First think between <think> and </think>: take the question apart, and say what you know and what you are not sure of. \
Where a fact is missing, write a query for it between <search> and </search>; what the search finds comes back between \
<information> and </information>, and you think again. A search is optional: leave it out where you know enough.
When you know the answer, write it between <answer> and </answer>, short and without explanation, \
as in <answer> Beijing </answer>. An answer takes one of these forms.
With several searches:
<think> ... </think><search> ... </search><information> ... </information>
<think> ... </think><search> ... </search><information> ... </information>
<think> ... </think><answer> ... </answer>
With one search:
<think> ... </think><search> ... </search><information> ... </information>
<think> ... </think><answer> ... </answer>
Without a search:
<think> ... </think><answer> ... </answer>
Fewer searches are better, and each is for one fact.
Question: {question}
"""
"""A paraphrase of IKEA's message, whose reward is higher with fewer searches."""

NATIVE_KNOWLEDGE_PROMPT = """\
Answer the question below from what you know. Look a fact up with the tools only where there is a clear gap in it: fewer \
calls are better. When you know the answer, give it with the tool answer, short and without explanation.
Question: {question}
"""


class LocalSearch(SearchEnv):
    """Search, read and answer; the reward is the answer's score, optionally with one for the turn that first shows it."""

    call_markers: ClassVar[tuple[str, ...]] = ("<search>", "<read>")
    stop: ClassVar[tuple[str, ...]] = STOP

    def __init__(self, *, prompt: str | None = None, outcome: str = "answer", **options: Any) -> None:
        """Makes an environment over a corpus.

        Args:
            prompt: The opening message. It must contain ``{question}``. None is ``PROMPT``, or ``KNOWLEDGE_PROMPT`` if the
                outcome is ``knowledge_boundary``, which rewards fewer searches.
            outcome: As in `SearchEnv`.
            **options: Those of `SearchEnv`.

        Raises:
            ConfigurationError: the prompt lacks ``{question}``, or a limit is below 1.
            UnknownName: there is no such outcome.
        """
        super().__init__(outcome=outcome, **options)
        frugal = outcome == FRUGAL
        usual = KNOWLEDGE_PROMPT if frugal else PROMPT
        prompt = usual if prompt is None else prompt
        self.parts = SearchParts(
            opening=QuestionPrompt(prompt),
            parser=TagParser(TAGS),
            tools={"search": self.search, "read": ReadTool(self.search.format)},
            reward=self.answer_reward,
            native=NativeActions.of(
                TAGS, prompt, usual, NATIVE_KNOWLEDGE_PROMPT if frugal else NATIVE_PROMPT
            ),
        )

    @classmethod
    def default_prompt(cls, options: Mapping[str, Any], *, native: bool = False) -> str | None:
        """Returns the message that asks for few searches, if the outcome rewards that (IKEA)."""
        if options.get("outcome") != FRUGAL:
            return None
        return NATIVE_KNOWLEDGE_PROMPT if native else KNOWLEDGE_PROMPT

    def expert(self) -> Sequence[str] | None:
        """Searches once per hop, if the task has its path, and then gives the first accepted answer.

        If ``queries`` allows several per turn, queries that do not depend on each other's answers go together. Each action
        begins with a thought if the outcome requires one.
        """
        task = self.state.task
        together = as_turns(task.data.get("path", ()), self.search.queries or 1)
        searches = [written_block("search", "\n ".join(queries)) for queries in together][: self.max_turns]
        answer = written_block("answer", task.answers[0])
        if not self.expert_thinks:
            return (*searches, answer)
        return (*[thinking(UNSURE, search) for search in searches], thinking(SURE, answer))


def as_turns(path: Sequence[Mapping[str, Any]], most: int) -> list[list[str]]:
    """Groups the queries of a path of hops into turns of at most ``most``; a query waits for an answer that it contains."""
    turns: list[list[str]] = []
    known: list[str] = []  # answers found in the present turn
    for hop in path:
        waits = any(answer in hop["query"] for answer in known)
        if turns and not waits and len(turns[-1]) < most:
            turns[-1].append(hop["query"])
        else:
            turns.append([hop["query"]])
            known = []
        if "answer" in hop:
            known.append(hop["answer"])
    return turns
