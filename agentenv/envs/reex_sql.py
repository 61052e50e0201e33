"""``agentenv/ReExSQL-v0``: the format of ReEx-SQL (arXiv:2505.12768), in which queries are run during the reasoning.

A thought comes before the first block. ``<intermediate_sql>`` runs a query and shows the column names and at most three
rows, or the error. ``<final_sql>`` submits a query. The reward has parts for the format, the tokens, the result, the tables
and columns, and for intermediate queries.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentenv.envs.sql import Sql

PROMPT = """\
Answer the question below with one SQLite query.
First reason between <think> and </think>. To look at the data, write a query between <intermediate_sql> and \
</intermediate_sql>; its first rows come back between <result> and </result>. Look as often as you need to, then write \
the query that answers the question between <final_sql> and </final_sql>. It must give the asked columns in the asked \
order, and it is run on other data under the same schema too.
Schema:
{schema}
Question: {question}
"""


class ReExSQL(Sql):
    """Reason, run queries, and submit one, with the tags and the reward of ReEx-SQL."""

    tags: ClassVar[tuple[str, str]] = ("intermediate_sql", "final_sql")
    call_markers: ClassVar[tuple[str, ...]] = ("<intermediate_sql>",)
    stop: ClassVar[tuple[str, ...]] = ("</intermediate_sql>", "</final_sql>")

    def __init__(
        self,
        *,
        reward: str | dict[str, float] = "reex",
        max_turns: int = 10,
        rows: int = 3,
        prompt: str = PROMPT,
        **options: Any,
    ) -> None:
        """Makes an environment over tasks. ``options`` are the other arguments of `Sql`.

        Args:
            reward: As in `Sql`.
            max_turns: Number of turns before the last one, in which only the final query counts; 10 in the paper.
            rows: Number of result rows that are shown; 3 in the paper.
            prompt: As in `Sql`.
            options: As in `Sql`.
        """
        super().__init__(reward=reward, max_turns=max_turns, rows=rows, prompt=prompt, **options)

    @classmethod
    def default_prompt(cls, options: Mapping[str, Any], *, native: bool = False) -> str | None:
        """Returns None, because the environment has the same message for every reward."""
        return None

    def expert(self) -> Sequence[str]:
        """Counts the rows of the result, shows them, and submits the gold query."""
        gold, (probe, final) = self.state.task.data["gold"], self.tags
        count = f"SELECT count(*) FROM ({gold.rstrip().rstrip(';')})"
        thought = f"<think>{self.state.task.question}</think>"
        blocks = (
            f"<{probe}>{count}</{probe}>",
            f"<{probe}>{gold}</{probe}>",
            f"<{final}>{gold}</{final}>",
        )
        first, *others = blocks[-1 - self._max_turns :]
        return (thought + first, *others)
