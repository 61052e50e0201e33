"""Verifiers find the first wrong step of an episode (SCOPE, arXiv:2602.24110); each is a class and a row of a registry."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol, runtime_checkable

from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import Task, ToolStatus
from agentenv.errors import ConfigurationError
from agentenv.policies.value_model import SHIPPED, load_value_model, state_pieces


class Flaw(NamedTuple):
    """The first step that was wrong."""

    turn: int
    cause: str
    """What was wrong with it."""
    advice: str
    """What a retry from there is told."""


class Verifier(Protocol):
    """Judges the steps of a finished episode."""

    async def first_flaw(self, trajectory: Trajectory, ceiling: float) -> Flaw | None:
        """The first wrong step; None where nothing was wrong.

        Args:
            trajectory: The episode.
            ceiling: The most that an episode can be rewarded with.

        Raises:
            Fault: the verifier failed.
        """


@runtime_checkable
class ChecksTasks(Protocol):
    """A verifier, or a strategy with one, that cannot judge every task; it is asked before a run begins."""

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Refuses tasks that it cannot judge.

        Raises:
            ConfigurationError: there is one.
        """


class RuleVerifier:
    """Finds the first turn that, by its tool results, failed or brought nothing new; else a wrong last turn."""

    async def first_flaw(self, trajectory: Trajectory, ceiling: float) -> Flaw | None:
        """See the class."""
        turns = trajectory.turns
        for step, turn in enumerate(turns):
            if flaw := _broken(step, turn):
                return flaw
            if step + 1 < len(turns) and _nothing_new(turn, turns[step + 1]):
                advice = f"Do not repeat this, it brings nothing new: {turn.action}"
                return Flaw(step, "the action brought nothing new", advice)
        if turns and trajectory.reward < ceiling:
            return Flaw(len(turns) - 1, "the last action was wrong", f"This was wrong: {turns[-1].action}")
        return None


class EvidenceVerifier:
    """Checks each step of a search against the passages that the question needs (``Task.data["supporting_ids"]``).

    A search is right if it finds a needed passage that was not found before, and an answer is right if it comes after all of
    them and earns the full reward. The first step that is not right is the flaw. These are labels of steps that a process
    reward model would have to predict; they are exact where a question says what it needs.

    Where the question also says by which steps it is answered (``Task.data["path"]``, as questions about worlds do), the
    advice names what to look up: the entity of the first step whose passage is missing, or that of the last step where
    all were found and the answer is wrong. Such a name stands in the question or on a page that was found already. The
    advice never names an accepted answer; where that would be the entity, and without a path, it says what was wrong.
    """

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Refuses questions that do not say which passages they need.

        Raises:
            ConfigurationError: there is one.
        """
        silent = [task.id for task in tasks if not task.data.get("supporting_ids")]
        if silent:
            raise ConfigurationError(
                f"the verifier 'evidence' needs the passages that a question is answered from, and {len(silent)} of "
                f"{len(tasks)} tasks have no data['supporting_ids'] in the corpus that is searched, first "
                f"{silent[0]!r}: take 'rule', or leave them out"
            )

    async def first_flaw(self, trajectory: Trajectory, ceiling: float) -> Flaw | None:
        """See the class.

        Raises:
            ConfigurationError: as ``check_tasks``.
        """
        self.check_tasks([trajectory.task])
        needed = set(trajectory.task.data["supporting_ids"])
        missing, last = set(needed), len(trajectory.turns) - 1
        for step, turn in enumerate(trajectory.turns):
            if flaw := _broken(step, turn):
                return flaw
            found, name = _found(turn), _next_name(trajectory.task, missing)
            said = looking_up(name) if missing else reading_on(name)
            if found is not None and not missing & found:
                advice = f"This finds nothing that is needed and not known already: {turn.action}"
                return Flaw(step, "the search found no further evidence", said or advice)
            if found is None and trajectory.reward < ceiling and missing:
                cause = f"{len(missing)} of {len(needed)} needed passages were not found"
                return Flaw(step, cause, said or "Look up what is missing before you answer.")
            if step == last and trajectory.reward < ceiling:
                return Flaw(step, "the last action was wrong", said or f"This was wrong: {turn.action}")
            missing -= found or set()
        return None


def _next_name(task: Task, missing: AbstractSet[str]) -> str:
    """The entity of the first step of a task's path whose passage is missing, of the last one if none is.

    Empty where the task has no path, and where the entity is an answer.
    """
    path = task.data.get("path") or ()
    step = next((step for step in path if step.get("document") in missing), path[-1] if path else {})
    name = str(step.get("entity", ""))
    return "" if name.lower() in {answer.strip().lower() for answer in task.answers} else name


def looking_up(name: str) -> str:
    """The advice to look ``name`` up; empty where there is no name."""
    return f"Look up {name}." if name else ""


def reading_on(name: str) -> str:
    """The advice to read the passage on ``name`` again; empty where there is no name."""
    return f"The answer stands in the passage on {name}." if name else ""


_CLEARLY_LESS = 0.1  # the smallest fall of the predicted reward that is a flaw


def first_drop(values: Sequence[float], margin: float) -> int | None:
    """The first step t with V_(t + 1) - V_t < -margin, V_t the value of the state before it; None where there is none.

    V_(t + 1) - V_t is the progress of a step (Setlur et al. 2024, arXiv:2410.08146, where it is an advantage). The
    threshold of SCOPE was not found; this rule is this project's.
    """
    falls = (t for t in range(len(values) - 1) if values[t + 1] - values[t] < -margin)
    return next(falls, None)


class ProcessVerifier:
    """A process reward model: the first step of a failure after which a value model expects clearly less reward than before.

    A value model that learned from the outcomes of recorded episodes is a process reward model whose labels are Monte Carlo
    estimates (Math-Shepherd, Wang et al. 2023, arXiv:2312.08935). Where no step lowers the value by .1 the last one
    is the flaw. An episode with the full reward has none.

    Args:
        value: The value model: a file of ``agentenv value``, or ``tiny``, which is shipped.
    """

    def __init__(self, value: str = SHIPPED) -> None:
        self._value = value

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Loads the value model, so that a run without one ends before it begins.

        Raises:
            CheckpointMismatch: there is no such value model.
        """
        load_value_model(self._value)

    async def first_flaw(self, trajectory: Trajectory, ceiling: float) -> Flaw | None:
        """See the class.

        Raises:
            PolicyFault: the value model predicts numbers that are not finite.
            CheckpointMismatch: there is no such value model.
        """
        turns = trajectory.turns
        if not turns or trajectory.reward >= ceiling:
            return None
        values = load_value_model(self._value).values(state_pieces(trajectory.task.question, turns))
        step = first_drop(values, _CLEARLY_LESS)
        if step is None:
            last = len(turns) - 1
            return Flaw(last, "the last action was wrong", f"This was wrong: {turns[last].action}")
        cause = f"the expected reward fell from {values[step]:.2f} to {values[step + 1]:.2f}"
        return Flaw(step, cause, f"This made success less likely: {turns[step].action}")


def _found(turn: Turn) -> set[str] | None:
    """Ids of the passages that the calls of a turn returned; None where it called no search."""
    lists = [result.data["ids"] for result in turn.tool_results if "ids" in result.data]
    return {str(id) for ids in lists for one in ids for id in one} if lists else None


def _broken(step: int, turn: Turn) -> Flaw | None:
    result = next((r for r in turn.tool_results if r.status is not ToolStatus.OK), None)
    if result is not None and result.status is not ToolStatus.FORMAT_ERROR:
        cause = result.error_class or str(result.status)
        return Flaw(
            step, f"{result.name} failed: {cause}", f"A call of {result.name} failed ({cause}): avoid it."
        )
    if result is not None or not turn.valid:
        return Flaw(step, "the action could not be acted on", "Write one complete action in the given form.")
    return None


def _nothing_new(turn: Turn, after: Turn) -> bool:
    """Whether the state after ``turn`` is the one before it."""
    return turn.anchor_key is not None and turn.anchor_key == after.anchor_key


VERIFIERS: dict[str, Callable[..., Verifier]] = {
    "rule": RuleVerifier,
    "evidence": EvidenceVerifier,
    "process": ProcessVerifier,
}
"""By the name under which a strategy takes them as its reflector."""

NAMES_A_MODEL = "process:"
"""What stands before the value model in the name of a verifier that is not the shipped one."""


def find_verifier(name: str) -> Verifier | None:
    """The verifier of ``name``, a row of ``VERIFIERS`` or ``process:FILE``; None where there is none."""
    if name.startswith(NAMES_A_MODEL) and name != NAMES_A_MODEL:
        return ProcessVerifier(name.removeprefix(NAMES_A_MODEL))
    return VERIFIERS[name]() if name in VERIFIERS else None
