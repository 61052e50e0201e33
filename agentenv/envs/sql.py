"""``agentenv/SQL-v0``: answer a question with one query, after trying others on the database (ReEx-SQL family).

One action is one chunk of text; its earliest complete block decides. ``<sql>`` runs a query and shows its first rows,
or what was wrong with it; ``<submit>`` hands in the query that answers and ends the episode. Databases are read-only, so a
snapshot or a fork is a copy of a few strings.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agentenv.core.env import Env
from agentenv.core.grammar import earliest_block, shortened, unfenced
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task, ToolResult, ToolStatus
from agentenv.data.sql_tasks import LEVELS, generate_sql_tasks
from agentenv.errors import ConfigurationError, DatasetError, EnvFault
from agentenv.sandbox.sql import SqlReader, SqlResult, shared_reader
from agentenv.sandbox.sql_grading import grade_query

TAGS = ("sql", "submit")
STOP = tuple(f"</{tag}>" for tag in TAGS)
"""Stop strings for the engine: nothing after the deciding block is sampled."""

PROMPT = """\
Answer the question below with one SQLite query.
To look at the data, write a query between <sql> and </sql>; its first rows come back between <result> and </result>.
When you are sure, write the query that answers the question between <submit> and </submit>. It must give the asked columns \
in the asked order, and it is run on other data under the same schema too.
Schema:
{schema}
Question: {question}
"""
CORRECTION = "\nWrite a query between <sql> and </sql>, or the final query between <submit> and </submit>.\n"
SCHEMA = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
CELL_CHARS = 100


@dataclass
class SqlState:
    """All that changes within an episode."""

    task: Task
    turns: int = 0
    seen: set[str] = field(default_factory=set)
    """Every observation so far."""


@functools.cache
def default_tasks() -> tuple[Task, ...]:
    """The tasks of an environment that is given none, made once a process."""
    return generate_sql_tasks(200)


class Sql(Env[SqlState]):
    """Look, query, hand in; reward 1 where the query gives what the gold query gives, on every database of the task."""

    stop: ClassVar[tuple[str, ...]] = STOP

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        reader: SqlReader | None = None,
        max_turns: int = 5,
        rows: int = 5,
        observation_chars: int = 1000,
        prompt: str = PROMPT,
        render_mode: str | None = None,
    ) -> None:
        """Builds an environment over tasks.

        Args:
            tasks: Tasks with ``data["gold"]``, a query, and ``data["databases"]``, SQLite files of one schema: the first is
                what the policy sees, all count for the reward. None generates 200.
            reader: Where queries run; None is one that all environments of this process share.
            max_turns: Turns before the last one, in which only ``<submit>`` counts.
            rows: Rows of a result that are shown.
            observation_chars: Characters of a result that are shown; the middle is left out.
            prompt: Opening message; must hold ``{question}``; ``{schema}`` is filled too.
            render_mode: ``ansi`` or None.

        Raises:
            ConfigurationError: no ``{question}`` in the prompt, or a bound out of range.
        """
        super().__init__(render_mode=render_mode)
        if "{question}" not in prompt:
            raise ConfigurationError("the prompt template must hold {question}")
        if min(rows, observation_chars) < 1 or max_turns < 0:
            raise ConfigurationError(
                f"rows={rows} and observation_chars={observation_chars} must be at least 1, "
                f"max_turns={max_turns} at least 0"
            )
        self._tasks = default_tasks() if tasks is None else tuple(tasks)
        self._reader = reader or shared_reader()
        self._max_turns, self._rows, self._room, self._prompt = max_turns, rows, observation_chars, prompt

    @classmethod
    def make_tasks(
        cls,
        n: int,
        *,
        seed: int = 0,
        split: str = "train",
        levels: Sequence[int] = LEVELS,
        databases: int = 6,
    ) -> Sequence[Task]:
        """Questions over invented databases; see `generate_sql_tasks`."""
        return generate_sql_tasks(n, seed=seed, split=split, levels=levels, databases=databases)  # type: ignore[arg-type]

    def held_tasks(self) -> Sequence[Task]:
        """The tasks that it was given, or those of its default."""
        return self._tasks

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, or a task drawn by the seed.

        Raises:
            DatasetError: the task has no database or no gold query.
            SandboxFault: its database cannot be read.
        """
        super().reset(seed=seed, options=options)
        drawn = self._tasks[int(self.np_random.integers(len(self._tasks)))] if self._tasks else None
        task: Task | None = (options or {}).get("task") or drawn
        if task is None or not task.data.get("databases") or not task.data.get("gold"):
            raise DatasetError(f"task {task.id if task else None!r} has no database or no gold query")
        self.state = SqlState(task)
        tables = self._run(SCHEMA, rows=1000)
        if not tables.ok:
            raise EnvFault(f"the schema of task {task.id!r} cannot be read: {tables.message}")
        text = self._prompt.replace("{schema}", "\n".join(f"{row[0]!s};" for row in tables.rows))
        return (Message("user", text.replace("{question}", task.question)),), {"task_id": task.id}

    def step(self, action: str) -> Step:
        """Acts on the earliest complete block of ``action``.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            SandboxFault: no worker could be had, or a database cannot be read; this is never the policy's doing.
        """
        self.check_running()
        block = earliest_block(action, TAGS)
        last = self.state.turns >= self._max_turns
        self.state.turns += 1
        if block and block.tag == "submit":
            return self._submit(unfenced(block.content))
        if last:
            return self.result((), end=EndReason.TURN_LIMIT, truncated=True, valid=False)
        if block is None:
            wrong = ToolResult("none", ToolStatus.FORMAT_ERROR, error_class="no complete action")
            return self.result((Message("tool", CORRECTION),), valid=False, tool_results=(wrong,))
        found = self._run(unfenced(block.content), rows=self._rows)
        text = shortened(shown(found), self._room)
        self.state.seen.add(text)
        result = ToolResult("sql", found.status, text, found.error_class)
        return self.result((Message("tool", f"\n<result>\n{text}\n</result>\n"),), tool_results=(result,))

    def _run(self, query: str, *, rows: int) -> SqlResult:
        return self._reader.run(self.state.task.data["databases"][0], query, rows=rows)

    def _submit(self, query: str) -> Step:
        data = self.state.task.data
        grade = grade_query(self._reader, query, data["gold"], data["databases"])
        status, kind = grade.shown.status, grade.shown.error_class
        if grade.shown.ok and not grade.all_matched:
            status, kind = ToolStatus.ERROR, "WrongResult"
        result = ToolResult("submit", status, grade.shown.message, kind)
        return self.result(
            (),
            reward=float(grade.all_matched),
            end=EndReason.SUBMITTED,
            tool_results=(result,),
            passed=sum(grade.matches),
            tests=len(grade.matches),
        )

    def anchor_key(self) -> str:
        """The task and the set of results seen: the way to them does not matter."""
        parts = "\0".join([self.state.task.id, *sorted(self.state.seen)])
        return hashlib.sha256(parts.encode("utf-8", "backslashreplace")).hexdigest()[:16]

    def expert(self) -> Sequence[str]:
        """Tries the gold query out, then hands it in."""
        gold = self.state.task.data["gold"]
        return (f"<sql>{gold}</sql>", f"<submit>{gold}</submit>")[-1 - self._max_turns :]

    def render(self) -> str:
        """The question and how far the episode is."""
        return f"{self.state.task.question} [{self.state.turns} turns, {len(self.state.seen)} results]"


def shown(result: SqlResult) -> str:
    """What the policy sees of a result: names of the columns and rows, or what was wrong."""
    if not result.ok:
        return f"{result.error_class}: {result.message}"
    lines = [" | ".join(result.columns), *(" | ".join(map(_cell, row)) for row in result.rows)]
    if result.more:
        lines.append("[there are more rows]")
    return "\n".join(lines if result.rows or result.more else [*lines, "[no rows]"])


def _cell(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return shortened(f"x'{value.hex()}'", CELL_CHARS)
        case _:
            return shortened(str(value), CELL_CHARS)
