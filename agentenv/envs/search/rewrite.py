"""``agentenv/Rewrite-v0``: rewrite the last question of a conversation so that a search finds its passage (ConvSearch-R1).

The single action consists of a thought, a newline and the rewritten question. The reward is the rank of the gold passage.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, get_args

from agentenv.core.env import AsyncEnv
from agentenv.core.grammar import written_block
from agentenv.core.protocols import Retriever
from agentenv.core.types import (
    EndReason,
    Info,
    Message,
    Observation,
    Query,
    Step,
    Task,
    ToolResult,
    ToolStatus,
)
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.data.world_grammar import RELATIONS
from agentenv.errors import ConfigurationError, DatasetError, check_known
from agentenv.retrievers.base import found_by
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.retriever_spec import shared_retriever

PROMPT = """\
Rewrite the last question of the conversation below so that a search engine understands it without the conversation: name \
what pronouns stand for, and add nothing else. Think between <think> and </think>, then on a new line write the question \
between <rewrite> and </rewrite>.
{conversation}
"""

_FORM = re.compile(
    r"\s*<think>(?:(?!</?think>).)+</think>\n<rewrite>((?:(?!</?rewrite>).)+)</rewrite>\s*", re.DOTALL
)
_MALFORMED = -0.1
_NOT_FOUND_REWARD = -0.2
RewardName = Literal["rank", "curriculum"]


def rank_reward(rank: int | None) -> float:
    """ConvSearch-R1's reward (Zhu et al. 2025) for the gold passage at ``rank`` from 1.

    19/9 - R/9 down to rank 10 (2 to 1), 10/9 - R/90 down to rank 100 (1 to 0), 0 beyond and if it was not found (None).
    """
    if rank is None or rank > 100:
        return 0.0
    return (19 - rank) / 9 if rank <= 10 else (100 - rank) / 90


def curriculum_reward(rank: int | None, paid_ranks: int = 100) -> float:
    """ConvSearch-R1's other reward, for the gold passage at ``rank`` from 1: 1 - (R - 1) / 99 down to rank ``paid_ranks``.

    It is 0 from there down to rank 100, and -.2 beyond and if it was not found (None). The published run rewards all 100
    ranks in its first quarter, and 10 afterwards.
    """
    if rank is None or rank > 100:
        return _NOT_FOUND_REWARD
    return 1 - (rank - 1) / 99 if rank <= paid_ranks else 0.0


@dataclass
class RewriteState:
    """All that changes within an episode."""

    task: Task
    rewrite: str | None = None
    """None if the action does not have the required format."""
    rank: int | None = None


def rewrite_reward(state: RewriteState, name: RewardName = "rank", paid_ranks: int = 100) -> float:
    """ConvSearch-R1: `rank_reward` of the gold passage, and -.1 for a wrong format; or `curriculum_reward`.

    With the latter, a wrong format costs as much as a search that misses, so that it is no way to avoid that.
    """
    if name == "curriculum":
        return curriculum_reward(state.rank, paid_ranks)
    return _MALFORMED if state.rewrite is None else rank_reward(state.rank)


class Rewrite(AsyncEnv[RewriteState]):
    """Rewrite one question in a single turn."""

    reward_ceiling: float = 2.0
    reports_searches: ClassVar[bool] = True
    reads_thoughts: ClassVar[bool] = True
    client_data: ClassVar[Mapping[str, Any]] = {
        "supporting_ids": tuple[str, ...],
        "history": tuple[tuple[str, str], ...],
        "rewrite": str,
    }
    stop: ClassVar[tuple[str, ...]] = ("</rewrite>",)
    scorers: ClassVar[tuple[str, ...]] = ("mrr", "recall@10", "recall@100", "reward")
    reward_options: ClassVar[frozenset[str]] = frozenset({"reward", "paid_ranks"})

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        retriever: Retriever | str | None = None,
        depth: int = 100,
        reward: RewardName = "rank",
        paid_ranks: int = 100,
        prompt: str = PROMPT,
        count_tokens: Callable[[str], int] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Makes an environment.

        Args:
            tasks: Questions with ``data["supporting_ids"]``, of which the first one found counts, and with the earlier pairs
                of question and answer in ``data["history"]``. For a question with a ``path``, the last document has to be
                found. None makes conversations about a small FictionalWorld.
            retriever: A retriever or its spec; None searches that world by word overlap.
            depth: The number of results in which the gold passage is searched.
            reward: ``rank`` uses `rank_reward`, ``curriculum`` uses `curriculum_reward`.
            paid_ranks: Number of rewarded ranks for the latter, 1 to 100. The task sampler ``curriculum`` changes it over
                the steps.
            prompt: The opening message. It must contain ``{conversation}``.
            count_tokens: Not used, because there are no observations to limit.
            render_mode: ``ansi`` or None.

        Raises:
            UnknownName: there is no such reward.
            ConfigurationError: ``paid_ranks`` is out of range.
        """
        super().__init__(render_mode=render_mode)
        check_known("reward", reward, get_args(RewardName))
        if not 1 <= paid_ranks <= 100:
            raise ConfigurationError(f"paid_ranks={paid_ranks} must be 1 to 100")
        if reward == "curriculum":
            self.reward_ceiling = 1.0
        self._reward = partial(rewrite_reward, name=reward, paid_ranks=paid_ranks)
        if tasks is None or retriever is None:
            world = FictionalWorld.generate(WorldConfig(documents=200, questions=50, families=("bridge",)))
            words = InMemoryRetriever(world.documents)
            tasks = tasks or [task for task in world.questions if _is_found(task, words)]
            retriever = retriever or words
        self._tasks = tuple(as_conversation(task) for task in tasks)
        self._retriever = shared_retriever(retriever) if isinstance(retriever, str) else retriever
        self._depth = depth
        self._prompt = prompt

    def held_tasks(self) -> Sequence[Task]:
        """Returns the tasks given to the constructor, or the default ones."""
        return self._tasks

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Shows the conversation of ``options["task"]``, or of a task drawn with the seed.

        Raises:
            DatasetError: the task names no gold passage.
        """
        await super().areset(seed=seed, options=options)
        drawn = self._tasks[int(self.np_random.integers(len(self._tasks)))]
        given: Task | None = (options or {}).get("task")
        task = as_conversation(given) if given else drawn
        if not task.data.get("supporting_ids"):
            raise DatasetError(f"task {task.id!r} names no gold passage in data['supporting_ids']")
        self.state = RewriteState(task)
        lines = [f"Q: {question}\nA: {answer}" for question, answer in task.data.get("history", ())]
        conversation = "\n".join([*lines, f"Q: {task.question}"])
        return (Message("user", self._prompt.replace("{conversation}", conversation)),), {"task_id": task.id}

    async def astep(self, action: str) -> Step:
        """Searches for the rewritten question and ends the episode.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            RetrieverFault: the search failed.
        """
        self.check_running(action)
        match = _FORM.fullmatch(action)
        if match is None or not match[1].strip():
            return self.result(
                (), reward=self._reward(self.state), end=EndReason.PARSE_ERROR, valid=False, answer=None
            )
        rewrite = " ".join(match[1].split())
        (found,) = await found_by(self._retriever, [Query(rewrite)], self._depth)
        gold = _gold(self.state.task)
        ids = [passage.id for passage in found]
        ranks = [rank for rank, one in enumerate(ids, 1) if one in gold]
        self.state.rewrite, self.state.rank = rewrite, min(ranks, default=None)
        result = ToolResult("search", ToolStatus.OK, rewrite, data={"ids": [ids]})
        return self.result(
            (),
            reward=self._reward(self.state),
            end=EndReason.SUBMITTED,
            tool_results=(result,),
            answer=rewrite,
            rank=self.state.rank,
        )

    def expert(self) -> Sequence[str] | None:
        """Returns the search of the last hop if the task has its path, or else a human's rewriting if there is one."""
        data = self.state.task.data
        path, rewrite = data.get("path", ()), data.get("rewrite")
        if path:
            thought, rewrite = f"It is {path[-1]['entity']}.", path[-1]["query"]
        else:
            thought = "The question without its conversation."
        return (f"<think>{thought}</think>\n" + written_block("rewrite", rewrite),) if rewrite else None

    def render(self) -> str:
        """Shows the question, its rewriting and the rank."""
        state = self.state
        return f"{state.task.question} -> {state.rewrite} (rank {state.rank})"


def _gold(task: Task) -> tuple[str, ...]:
    """Returns the passages that answer the last question; the best rank of any of them counts."""
    path = task.data.get("path", ())
    return (path[-1]["document"],) if path else tuple(task.data["supporting_ids"])


def _is_found(task: Task, retriever: InMemoryRetriever) -> bool:
    """Whether the search of the last hop finds its passage first."""
    ((row, _),) = retriever.rank([task.data["path"][-1]["query"]], 1)[0]
    return retriever.corpus[row].id in _gold(task)


_SEARCHES = {relation.name: relation.search for relations in RELATIONS.values() for relation in relations}


def as_conversation(task: Task) -> Task:
    """Converts a question with several hops to a conversation: one turn per hop, the last one about "it"."""
    path = task.data.get("path", ())
    if len(path) < 2 or "history" in task.data:
        return task
    history = tuple((f"{hop['query']}?", hop["answer"]) for hop in path[:-1])
    question = f"{_SEARCHES[path[-1]['relation']].format(s='it')}?"
    return replace(task, question=question, data={**task.data, "history": history})
