r"""``agentenv/HybridSearch-v0``: parallel queries between special tokens (HybridDeepSearcher, Ko et al. 2025).

Queries are written between ``<|begin_search_queries|>`` and ``<|end_search_queries|>``, and their results are returned
between ``<|begin_search_results|>`` and ``<|end_search_results|>``. A text without queries ends the episode, and its last
``\boxed{...}`` is the answer. Without one, or once the searches are used up, the environment itself opens the box, and the
policy completes it. Use the inline format, so that the policy continues where the environment stopped.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentenv.core.scoring.evidence import holds_answer, is_yes_or_no
from agentenv.core.types import EndReason, ToolResult, ToolStatus
from agentenv.envs.search.local_search import as_turns
from agentenv.envs.search.page_format import QuestionPrompt
from agentenv.envs.search.page_summaries import SummarizedSearch, Summarizer, make_summarizer
from agentenv.envs.search.search_env import SearchEnv, SearchParts
from agentenv.envs.search.search_state import SearchState, TagCall, ToolReply
from agentenv.envs.search.search_tools import SearchTool, answered

BEGIN_QUERIES, END_QUERIES = "<|begin_search_queries|>", "<|end_search_queries|>"
BEGIN_RESULTS, END_RESULTS = "<|begin_search_results|>", "<|end_search_results|>"
FINAL = "\n</think>\n\n**Final Answer:**\n\\boxed{"
"""The text that the environment writes to force an answer."""

PROMPT = """\
Find the answer to the question below with a search engine.
First say which facts you need. Then write your queries in this form, each on a line of its own with ";" behind it:
<|begin_search_queries|>
first query;
second query
<|end_search_queries|>
Put queries that do not wait for each other's results into one search. What they find comes back between \
<|begin_search_results|> and <|end_search_results|>. Search again as long as facts are missing.
When you know the answer, give it as \\boxed{YOUR ANSWER}, short and without explanation.
Question: {question}
"""

_BOX = "\\boxed{"
_BRACES = re.compile(r"\\boxed\{|[{}]")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_MOST_QUERIES = 8
"""The largest number of queries in one turn of the expert."""


def results(body: str) -> str:
    """Puts the result tokens around a page, followed by the beginning of the next thought."""
    return f"\n\n{BEGIN_RESULTS}\n{body.strip()}\n{END_RESULTS}\n\n<think>\n"


def queries_in(action: str) -> list[str] | None:
    """Returns the queries of ``action``: one per line, or separated by ";" on a single line; None without a search.

    As published, an action with several tokens that begin queries counts as none.
    """
    if action.count(BEGIN_QUERIES) != 1:
        return None
    text, end, _ = action.partition(BEGIN_QUERIES)[2].partition(END_QUERIES)
    if not end:
        return None
    lines = [line.strip().strip(";").strip() for line in text.strip().split("\n")]
    parts = lines[0].split(";") if len(lines) == 1 else lines
    return [part.strip() for part in parts if part.strip()]


def boxed_answer(action: str) -> str | None:
    r"""Returns the content of the last ``\boxed{...}`` in ``action``, without ``\text``; None without a closed box."""
    opened: list[re.Match[str]] = []
    last: tuple[int, int] | None = None
    for brace in _BRACES.finditer(action):
        if brace[0] != "}":
            opened.append(brace)
        elif opened and (opening := opened.pop())[0] == _BOX:
            last = max(last or (0, 0), (opening.end(), brace.start()))
    return None if last is None else _TEXT.sub(r"\1", action[slice(*last)]).strip()


def completed(text: str) -> str | None:
    r"""Returns what ``text`` writes into an open box, without ``\text``; None if it does not close the box."""
    depth = 1
    for brace in _BRACES.finditer(text):
        depth += -1 if brace[0] == "}" else 1
        if not depth:
            return _TEXT.sub(r"\1", text[: brace.start()]).strip()
    return None


def read_action(action: str) -> TagCall:
    """Parses ``action`` as a search, or otherwise as the end of the episode."""
    queries = queries_in(action)
    if queries is None:
        return TagCall("answer", boxed_answer(action) or "", action, "")
    return TagCall("search", "\n".join(queries), action, action.partition(END_QUERIES)[2])


def is_due(state: SearchState) -> bool:
    """Whether the environment has opened the box for the answer."""
    return bool(state.record) and state.last.page == FINAL


async def end_with_box(call: TagCall, state: SearchState) -> ToolReply:
    """Ends the episode with the boxed answer; without one, opens the box once."""
    answer = boxed_answer(call.action)
    if answer is None and is_due(state):
        inside = completed(call.action)
        return answered(call.action.strip() if inside is None else inside, state)
    return opened() if answer is None else answered(answer, state)


def opened() -> ToolReply:
    """Returns the beginning of the answer, which the policy completes."""
    return ToolReply(FINAL, ToolResult("final_answer", ToolStatus.OK, data={"ids": ()}))


@dataclass(frozen=True)
class BoundedSearch:
    """Searches, and opens the box for the answer once the searches are used up."""

    search: SearchTool
    most: int
    """Number of turns that may search."""

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Returns the page of results, or the beginning of the answer.

        Raises:
            RetrieverFault: the search failed; the policy cannot cause this.
        """
        if is_due(state):
            return ToolReply(end=EndReason.TURN_LIMIT, info={"answer": None})
        return opened() if state.turns >= self.most else await self.search(call, state)


class HybridSearch(SearchEnv):
    """Parallel queries between special tokens, and a boxed answer that is forced at the end; its score is the reward."""

    call_markers = (BEGIN_QUERIES,)
    stop = (END_QUERIES,)
    scorers = (*SearchEnv.scorers, "f1_plain", "em_plain", "em_cover_plain")

    def __init__(
        self,
        *,
        k: int = 5,
        max_turns: int = 10,
        observation_tokens: int = 4096,
        repeat_notice: bool = True,
        summarizer: Summarizer | str = "",
        prompt: str = PROMPT,
        **options: Any,
    ) -> None:
        """Makes an environment over a corpus.

        Args:
            k: Number of passages per query; 10 on BrowseComp, as published.
            max_turns: Number of turns that may search. After them the answer is forced, which takes one more turn.
            observation_tokens: Largest size of one observation. Its body is cut such that both tokens remain.
            repeat_notice: Whether a repeated query of the episode is answered with a notice.
            summarizer: Summarises the pages of each query instead of showing its passages: ``openai:MODEL@URL`` or
                ``hf:PATH`` is a language model, as published; ``extractive`` takes the sentence of each page that is most
                similar to the query; empty shows the passages.
            prompt: The opening message. It must contain ``{question}``.
            **options: Further arguments of `SearchEnv`.

        Raises:
            ConfigurationError: the prompt lacks ``{question}``, a limit is below 1, or the summariser's address is not
                valid.
            UnknownName: there is no such kind of summariser.
        """
        super().__init__(
            k=k,
            max_turns=max_turns + 1,  # the last one opens the box
            observation_tokens=observation_tokens,
            repeat_notice=repeat_notice,
            **options,
        )
        self.search = replace(self.search, format=replace(self.search.format, wrap=results))
        self.summarizer = (
            make_summarizer(summarizer) if summarizer and isinstance(summarizer, str) else summarizer
        )
        if not isinstance(self.summarizer, str):
            blocks = ((BEGIN_QUERIES, END_QUERIES), (BEGIN_RESULTS, END_RESULTS))
            self.search = SummarizedSearch(**vars(self.search), summarizer=self.summarizer, blocks=blocks)
        self.parts = SearchParts(
            opening=QuestionPrompt(prompt),
            parser=read_action,
            tools={"search": BoundedSearch(self.search, max_turns)},
            submit=end_with_box,
            reward=self.answer_reward,
        )

    def expert(self) -> Sequence[str] | None:
        """Searches in one turn for all queries that do not depend on each other, if the task has its path; then answers."""
        task = self.state.task
        turns = as_turns(task.data.get("path", ()), self.search.queries or _MOST_QUERIES)[
            : self.max_turns - 1
        ]
        searches = [f"{BEGIN_QUERIES}\n" + ";\n".join(queries) + f"\n{END_QUERIES}" for queries in turns]
        return (*searches, f"{_BOX}{task.answers[0]}}}")

    def expert_gives_up(self) -> str | None:
        """Returns an empty box instead of the empty answer of `SearchEnv`; with summaries, if no page contains an answer."""
        if not self.summarizer:
            return None if super().expert_gives_up() is None else f"{_BOX}}}"
        state = self.state
        shown = holds_answer("\n".join(state.pages), state.task.answers)
        return None if shown or (is_yes_or_no(state.task.answers) and state.by_id) else f"{_BOX}}}"
