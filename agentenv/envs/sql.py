"""``agentenv/SQL-v0``: answer a question with one query, after trying others on the database (ReEx-SQL family).

Of each action, the first complete block counts. ``<sql>`` runs a query and shows its first rows or its error. ``<submit>``
submits the final query and ends the episode. `agentenv.envs.sql_rewards` lists the rewards. Databases are read-only, so a
snapshot or a fork copies only a few strings.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from agentenv.core.env import Env
from agentenv.core.grammar import earliest_block, shortened, unfenced
from agentenv.core.prompt_templates import require_placeholder
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task, ToolResult, ToolStatus
from agentenv.data.sql_tasks import LEVELS, generate_sql_tasks
from agentenv.envs.search.page_format import count_words
from agentenv.envs.sql_rewards import SqlEnding, get_reward, is_well_formed, tag_share
from agentenv.errors import ConfigurationError, DatasetError, EnvFault
from agentenv.sandbox.sql import SqlReader, SqlResult, shared_reader
from agentenv.sandbox.sql_grading import SqlGrade, gold_result, grade_query, time_limit
from agentenv.sandbox.sql_tokens import tokens

PROMPT = """\
Answer the question below with one SQLite query.
To look at the data, write a query between <sql> and </sql>; its first rows come back between <result> and </result>.
When you are sure, write the query that answers the question between <submit> and </submit>. It must give the asked columns \
in the asked order, and it is run on other data under the same schema too.
Schema:
{schema}
Question: {question}
"""
CORRECTION = (
    "\nWrite a query between <{probe}> and </{probe}>, or the final query between <{final}> and </{final}>.\n"
)
FORM = "Begin your first reply with a thought between <think> and </think>, and write nothing outside of the tags.\n"
NOTES = "Notes on its columns:\n{notes}\n"
SCHEMA = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
CELL_CHARS = 100


@dataclass
class SqlState:
    """All that changes within an episode."""

    task: Task
    turns: int = 0
    seen: set[str] = field(default_factory=set)
    """Every observation so far."""
    probed: set[tuple[str, ...]] = field(default_factory=set)
    """The tokens of every intermediate query that ran and read a table."""
    well_formed: bool = True
    """Whether every action so far had the right format."""
    length: int = 0
    """Number of tokens of the actions so far."""
    limit_s: float = 0.0
    """Processor time limit of an intermediate query; 0 until the first one."""


@functools.cache
def default_tasks() -> tuple[Task, ...]:
    """Returns the default tasks, which are made once per process."""
    return generate_sql_tasks(200)


class Sql(Env[SqlState]):
    """Try queries, then submit one; by default the reward is 1 if it equals the gold query on every database of the task."""

    tags: ClassVar[tuple[str, str]] = ("sql", "submit")
    """The tags of an intermediate query and of the submitted one."""
    call_markers: ClassVar[tuple[str, ...]] = ("<sql>",)
    reads_thoughts: ClassVar[bool] = True
    stop: ClassVar[tuple[str, ...]] = ("</sql>", "</submit>")
    scorers: ClassVar[tuple[str, ...]] = ("solved", "reward")
    """Right queries are the main score: most rewards also depend on form, parts or length."""
    reward_options: ClassVar[frozenset[str]] = frozenset({"reward"})

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        reader: SqlReader | None = None,
        reward: str | dict[str, float] = "execution",
        max_turns: int = 5,
        rows: int = 5,
        observation_chars: int = 1000,
        query_s: float | None = None,
        prompt: str = PROMPT,
        count_tokens: Callable[[str], int] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Makes an environment over tasks.

        Args:
            tasks: Tasks with ``data["gold"]``, a query, and ``data["databases"]``, SQLite files with one schema. The policy
                sees the first one; all count for the reward. ``data["notes"]`` is shown below the schema. None generates 200
                tasks.
            reader: Runs the queries; None uses one that all environments of this process share.
            reward: A name of `agentenv.envs.sql_rewards.REWARDS`, or a mapping of its ``PARTS`` to weights.
            max_turns: Number of turns before the last one, in which only the final query counts.
            rows: Number of result rows that are shown.
            observation_chars: Number of characters of a result that are shown; the middle of a longer one is left out.
            query_s: Processor time limit of a query of the policy on one database. None is 1.2 t + 10 if the gold query
                takes t there, as in Think2SQL. The gold query itself has 120 seconds; beyond that the episode is an
                infrastructure failure.
            prompt: The opening message. It must contain ``{question}``, and may contain ``{schema}``, which includes the
                task's notes. The default gets a further sentence if the reward depends on the form of actions.
            count_tokens: Returns the length of a text in tokens, for a reward that depends on it; None counts words.
            render_mode: ``ansi`` or None.

        Raises:
            UnknownName: there is no such reward, or no such part.
            ConfigurationError: the prompt lacks ``{question}``, or a limit or weight is out of range.
        """
        super().__init__(render_mode=render_mode)
        require_placeholder(prompt, "question")
        lasts = query_s is None or (query_s > 0 and math.isfinite(query_s))
        if min(rows, observation_chars) < 1 or max_turns < 0 or not lasts:
            raise ConfigurationError(
                f"rows={rows} and observation_chars={observation_chars} must be at least 1, "
                f"max_turns={max_turns} at least 0 and query_s={query_s} a finite number above 0"
            )
        self._tasks = default_tasks() if tasks is None else tuple(tasks)
        self._reader, self._reward = reader or shared_reader(), get_reward(reward)
        self._max_turns, self._rows, self._room = max_turns, rows, observation_chars
        self._query_s = query_s
        self._count = count_tokens or count_words
        self._prompt = prompt + FORM if self._reward.needs_form and prompt is PROMPT else prompt

    @classmethod
    def default_prompt(cls, options: Mapping[str, Any], *, native: bool = False) -> str | None:
        """Returns the message with the sentence about the form of actions, if the reward depends on it."""
        return PROMPT + FORM if get_reward(options.get("reward", "execution")).needs_form else None

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
        """Generates questions about invented databases; see `generate_sql_tasks`."""
        return generate_sql_tasks(n, seed=seed, split=split, levels=levels, databases=databases)  # type: ignore[arg-type]

    def held_tasks(self) -> Sequence[Task]:
        """Returns the tasks given to the constructor, or the default ones."""
        return self._tasks

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, or a task drawn with the seed.

        Raises:
            DatasetError: the task has no database or no gold query.
            SandboxFault: its database cannot be read.
        """
        super().reset(seed=seed, options=options)
        task = self.choose_task(options)
        if task is None or not task.data.get("databases") or not task.data.get("gold"):
            whose = f"task {task.id!r} has" if task else "this environment was given no task, so there is"
            raise DatasetError(
                f"{whose} no database or no gold query: give it tasks with data['databases'] and data['gold']"
            )
        self.state = SqlState(task)
        tables = self._reader.run(task.data["databases"][0], SCHEMA)
        if not tables.ok:
            raise EnvFault(f"the schema of task {task.id!r} cannot be read: {tables.message}")
        shown_schema = "\n".join(f"{row[0]!s};" for row in tables.rows)
        if notes := task.data.get("notes"):
            shown_schema += "\n" + NOTES.format(notes=notes).rstrip("\n")
        text = self._prompt.replace("{schema}", shown_schema)
        return (Message("user", text.replace("{question}", task.question)),), {"task_id": task.id}

    def step(self, action: str) -> Step:
        """Executes the first complete block of ``action``.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            SandboxFault: no worker is available, or a database cannot be read; the policy cannot cause this.
        """
        self.check_running(action)
        probe, final = self.tags
        block, state = earliest_block(action, self.tags), self.state
        last = state.turns >= self._max_turns
        state.well_formed &= is_well_formed(action, self.tags, thinks=state.turns == 0)
        state.turns += 1
        state.length += self._count(action)
        if block and block.tag == final:
            return self._submit(block.content, tag_share(action, final))
        if last:
            reward = self._reward(self._ending_without_answer())
            return self.result((), reward=reward, end=EndReason.TURN_LIMIT, truncated=True, valid=False)
        if block is None:
            wrong = ToolResult("none", ToolStatus.FORMAT_ERROR, error_class="no complete action")
            correction = CORRECTION.format(probe=probe, final=final)
            return self.result((Message("tool", correction),), valid=False, tool_results=(wrong,))
        query = unfenced(block.content)
        found = self._reader.run(
            state.task.data["databases"][0], query, rows=self._rows, cpu_s=self._probe_limit()
        )
        if found.ok and found.reads:
            state.probed.add(tokens(query))
        text = shortened(result_table(found), self._room)
        self.state.seen.add(text)
        result = ToolResult("sql", found.status, text, found.error_class)
        return self.result((Message("tool", f"\n<result>\n{text}\n</result>\n"),), tool_results=(result,))

    def _probe_limit(self) -> float:
        """Returns the processor time limit of an intermediate query: that of a final query on the first database."""
        state, data = self.state, self.state.task.data
        if not state.limit_s:
            gold_s = (
                0.0 if self._query_s else gold_result(self._reader, data["gold"], data["databases"][0]).cpu_s
            )
            state.limit_s = self._query_s or time_limit(gold_s)
        return state.limit_s

    def _ending_without_answer(self) -> SqlEnding:
        """Returns the ending of an episode in which nothing has been submitted."""
        state, data = self.state, self.state.task.data
        return SqlEnding(
            data["gold"], well_formed=state.well_formed, length=state.length, probes=len(state.probed)
        )

    def _submit(self, written: str, share: float) -> Step:
        data, query = self.state.task.data, unfenced(written)
        grade = grade_query(self._reader, query, data["gold"], data["databases"], query_s=self._query_s)
        status, kind = grade.first_result.status, grade.first_result.error_class
        if grade.first_result.ok and not grade.all_matched:
            status, kind = ToolStatus.ERROR, "WrongResult"
        result = ToolResult("submit", status, grade.first_result.message, kind)
        ending = replace(
            self._ending_without_answer(),
            query=query,
            results=grade.results,
            matches=grade.matches,
            tag_share=share,
            query_share=len(query) / max(1, len(written)),
        )
        return self.result(
            (),
            reward=float(self._reward(ending)),
            end=EndReason.SUBMITTED,
            tool_results=(result,),
            reward_parts=self._reward.parts(ending),
            passed=sum(grade.matches),
            tests=len(grade.matches),
            answer=query,
            solved=grade.all_matched,
            vote=vote_of(grade),
        )

    def cut_reward(self) -> float:
        """Returns the reward of an episode without a submission; below 0 if the reward penalises this."""
        return float(self._reward(self._ending_without_answer()))

    def anchor_key(self) -> str:
        """Returns a key of the task and the set of results seen; their order does not matter."""
        parts = "\0".join([self.state.task.id, *sorted(self.state.seen)])
        return hashlib.sha256(parts.encode("utf-8", "backslashreplace")).hexdigest()[:16]

    def expert(self) -> Sequence[str]:
        """Returns a try of the gold query, followed by its submission."""
        gold, (probe, final) = self.state.task.data["gold"], self.tags
        actions = (f"<{probe}>{gold}</{probe}>", f"<{final}>{gold}</{final}>")[-1 - self._max_turns :]
        thought = f"<think>{self.state.task.question}</think>" if self._reward.needs_form else ""
        return (thought + actions[0], *actions[1:])

    def render(self) -> str:
        """Shows the question and the progress of the episode."""
        return f"{self.state.task.question} [{self.state.turns} turns, {len(self.state.seen)} results]"


def vote_of(grade: SqlGrade) -> str | None:
    """Returns a query's result on the first database, for a majority vote; None for a query that does not run.

    It depends neither on the gold query nor on other databases, so it may decide which query is submitted.
    """
    if not grade.first_result.ok:
        return None
    rows = sorted(map(repr, grade.first_result.rows))
    return hashlib.sha256("\0".join(rows).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def result_table(result: SqlResult) -> str:
    """Returns what the policy sees of a result: column names and rows, or the error."""
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
