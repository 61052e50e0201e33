"""``agentenv/LocalSearch-v0``: answer a question by searching a corpus, reading and answering (Search-R1 family).

One action is one chunk of text. Its earliest complete block decides: ``<search>`` runs each of its lines as a query,
``<read>`` shows a passage whole, ``<answer>`` ends the episode. Anything else gets a corrective observation and costs a
turn. After ``max_turns`` turns one last action is left, which must be an answer.
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
"""The outcome that pays for searches that are left out, of which its opening message speaks."""
UNSURE, SURE = "I look it up.", "I know it."
"""What an expert thinks before it searches, and before it answers."""
STOP = tuple(f"</{tag}>" for tag in TAGS)
"""Stop strings for the engine: nothing after the deciding block is sampled."""

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
"""IKEA's message in other words: its reward pays for every search that is left out."""

NATIVE_KNOWLEDGE_PROMPT = """\
Answer the question below from what you know. Look a fact up with the tools only where there is a clear gap in it: fewer \
calls are better. When you know the answer, give it with the tool answer, short and without explanation.
Question: {question}
"""


class LocalSearch(SearchEnv):
    """Search, read, answer; the reward is the score of the answer, and on demand one for the turn that shows it first."""

    call_markers: ClassVar[tuple[str, ...]] = ("<search>", "<read>")
    stop: ClassVar[tuple[str, ...]] = STOP

    def __init__(self, *, prompt: str | None = None, outcome: str = "answer", **options: Any) -> None:
        """Builds an environment over a corpus.

        Args:
            prompt: Opening message; must hold ``{question}``. None is ``PROMPT``, or ``KNOWLEDGE_PROMPT`` where the outcome
                is ``knowledge_boundary``, which pays for searches that are left out.
            outcome: As in `SearchEnv`.
            **options: Those of `SearchEnv`.

        Raises:
            ConfigurationError: no ``{question}`` in the prompt, or a bound below 1.
            UnknownName: no such outcome.
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
        """The message that asks for few searches, where the outcome pays for that (IKEA)."""
        if options.get("outcome") != FRUGAL:
            return None
        return NATIVE_KNOWLEDGE_PROMPT if native else KNOWLEDGE_PROMPT

    def expert(self) -> Sequence[str] | None:
        """One search a hop where the task carries its path, then the first accepted answer.

        Where ``queries`` names more than one a turn, those that do not wait for each other's answers go together. Each
        action begins with a thought where the outcome asks for one.
        """
        task = self.state.task
        together = as_turns(task.data.get("path", ()), self.search.queries or 1)
        searches = [written_block("search", "\n ".join(queries)) for queries in together][: self.max_turns]
        answer = written_block("answer", task.answers[0])
        if not self.expert_thinks:
            return (*searches, answer)
        return (*[thinking(UNSURE, search) for search in searches], thinking(SURE, answer))


def as_turns(path: Sequence[Mapping[str, Any]], most: int) -> list[list[str]]:
    """The queries of a path of hops in turns of at most ``most``: one waits for an answer that stands in it."""
    turns: list[list[str]] = []
    known: list[str] = []  # answers of the present turn
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
