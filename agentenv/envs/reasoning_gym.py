"""``agentenv/ReasoningGym-v0``: the procedural problems of reasoning-gym, with their own verifiers.

Source: Stojanovski et al. 2025, arXiv:2505.24760, and their package. A task names the data set, its seed and its place,
from which the package makes the same problem again.
"""

import inspect
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from agentenv.core.env import Env
from agentenv.core.grammar import between
from agentenv.core.io.digests import value_digest
from agentenv.core.prompt_templates import require_placeholder
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task
from agentenv.data.splits import in_split
from agentenv.envs.reasoning_gym_verifiers import EVALUATES, GUARDS, OWN_TEXTS, UNSUPPORTED, may_be_verified
from agentenv.errors import ConfigurationError, DatasetError, EnvFault, check_known, first_line, needs_extra

PROMPT = """\
{question}
Think first if you need to. Then write the final answer, and nothing else, between <answer> and </answer>.
"""
CORRECTION = "No answer stands between <answer> and </answer>. {left}\n"
WRONG = "That answer is not right. {left}\n"

_SIZE = 100_000  # problems of a data set, each of which is made when it is asked for
_FEWER = {"acre": 1_000, "word_ladder": 1_000}  # of data sets that make all of them first, or have no more
_MANY_ANSWERS = {"knight_swap", "word_ladder"}  # which of them reasoning-gym gives differs between processes
_DRAWS = 1_000  # without a new problem, after which a data set has no more of them
_HELD = 200  # tasks of an environment that was given none


@dataclass
class ReasoningGymState:
    """All that changes within an episode."""

    task: Task
    attempts: int = 0


class ReasoningGym(Env[ReasoningGymState]):
    """Poses a problem; the last text between ``<answer>`` tags is verified as reasoning-gym does it."""

    stop: ClassVar[tuple[str, ...]] = ("</answer>",)
    scorers: ClassVar[tuple[str, ...]] = ("solved", "reward")
    reward_options: ClassVar[frozenset[str]] = frozenset({"partial_credit"})
    no_expert: ClassVar[str] = (
        "reasoning-gym gives no answer to the problems of some data sets, which it verifies alone"
    )

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        attempts: int = 1,
        partial_credit: bool = False,
        prompt: str = PROMPT,
        render_mode: str | None = None,
    ) -> None:
        """Builds an environment over tasks.

        Args:
            tasks: Tasks of ``make_tasks``; None makes some of its default.
            attempts: Answers that may be given. After a wrong one the next message says that it is wrong.
            partial_credit: Whether a wrong last answer earns what the verifier gives it, below 1. Many verifiers pay
                something for any answer, or for a long text that holds the right one. By default only a right answer earns.
            prompt: Opening message; must hold ``{question}``.
            render_mode: ``ansi`` or None.

        Raises:
            MissingExtra: reasoning-gym is not installed.
            ConfigurationError: a bad prompt, or less than one attempt.
        """
        super().__init__(render_mode=render_mode)
        require_placeholder(prompt, "question")
        if attempts < 1:
            raise ConfigurationError(f"attempts={attempts} must be at least 1")
        self._tasks = tuple(self.make_tasks(_HELD) if tasks is None else tasks)
        self._attempts, self._partial, self._prompt = attempts, partial_credit, prompt

    @classmethod
    def make_tasks(
        cls,
        n: int,
        *,
        seed: int = 0,
        split: str = "train",
        datasets: str | Sequence[str] = ("chain_sum",),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Sequence[Task]:
        """Problems of one or several data sets in turn; the text of a problem decides its split.

        Args:
            n: How many.
            seed: Of the data sets.
            split: ``train``, ``dev`` or ``test``.
            datasets: Names of reasoning-gym, as a list or a text with commas.
            settings: Difficulty by the name of a data set, as in ``{"chain_sum": {"min_terms": 4}}``; the keys are those of
                the data set's configuration in reasoning-gym.

        Raises:
            MissingExtra: reasoning-gym is not installed.
            UnknownName: no such data set or split.
            ConfigurationError: a data set that is refused, or settings that it does not take.
            DatasetError: a data set has not so many different problems.
        """
        named = (
            [name.strip() for name in datasets.split(",")] if isinstance(datasets, str) else list(datasets)
        )
        chosen = dict(settings or {})
        for name in chosen:
            check_known("data set with settings", name, named)
        sources = [_drawn(name, chosen.get(name, {}), seed % 2**31, split) for name in dict.fromkeys(named)]
        if not sources:
            raise ConfigurationError("datasets is empty: name at least one data set of reasoning-gym")
        return [next(sources[place % len(sources)]) for place in range(n)]

    def held_tasks(self) -> Sequence[Task]:
        """The tasks that it was given, or those of its default."""
        return self._tasks

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, or a task drawn by the seed.

        Raises:
            DatasetError: the task is not one of ``make_tasks``.
        """
        super().reset(seed=seed, options=options)
        task = self.choose_task(options)
        if task is None:
            raise DatasetError("this environment was given no task: give it tasks of ReasoningGym.make_tasks")
        _problem_of(task)
        self.state = ReasoningGymState(task)
        return (Message("user", self._prompt.replace("{question}", task.question)),), {"task_id": task.id}

    def step(self, action: str) -> Step:
        """Verifies the last answer of ``action``.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            EnvFault: the verifier fails on the answer of reasoning-gym itself.
        """
        self.check_running(action)
        self.state.attempts += 1
        given = between(action, "<answer>", "</answer>")
        answer = given[-1].strip().replace("\r\n", "\n") if given else None
        score = 0.0 if answer is None else verify(self.state.task, answer)
        solved = score == 1.0
        left = self._attempts - self.state.attempts
        if solved or not left:
            end = EndReason.ANSWERED if given else EndReason.PARSE_ERROR
            reward = score if solved or self._partial else 0.0
            return self.result((), reward=reward, end=end, valid=bool(given), answer=answer, solved=solved)
        said = (WRONG if given else CORRECTION).replace("{left}", _attempts_left(left))
        return self.result((Message("user", said),), valid=bool(given))

    def expert(self) -> Sequence[str] | None:
        """The answer of reasoning-gym; None for a data set that only verifies."""
        answer = _problem_of(self.state.task)[1]["answer"]
        return (f"<answer>{answer}</answer>",) if isinstance(answer, str) else None

    def render(self) -> str:
        """The problem and how many answers were given."""
        return f"{self.state.task.question} [{self.state.attempts} answers]"


def verify(task: Task, answer: str) -> float:
    """What the verifier of the task's data set gives for ``answer``, in [0, 1]; 0 where odd text makes it fail.

    Raises:
        DatasetError: the task is not one of ``ReasoningGym.make_tasks``.
        EnvFault: the verifier fails on the answer of reasoning-gym too, or gives a number beyond [0, 1] for it.
    """
    dataset, entry = _problem_of(task)
    if not may_be_verified(task.data["dataset"], answer, entry):
        return 0.0
    try:
        return _score(dataset, entry, answer)
    except Exception:
        _require_sound(task, dataset, entry)
        return 0.0


def _score(dataset: Any, entry: Mapping[str, Any], answer: str) -> float:
    """What the verifier gives.

    Raises:
        ValueError: it gives a number beyond [0, 1], as some do for wrong answers.
        Exception: whatever the verifier raises.
    """
    score = float(dataset.score_answer(answer, entry))
    if not 0 <= score <= 1:
        raise ValueError(f"it gave {score}, which is not in [0, 1]")
    return score


def _require_sound(task: Task, dataset: Any, entry: Mapping[str, Any]) -> None:
    """Refuses a verifier that fails on its own answer: then the text of a policy is not to blame."""
    try:
        if entry["answer"] is not None:
            _score(dataset, entry, entry["answer"])
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        raise EnvFault(f"the verifier of {task.data['dataset']} fails on its own answer ({said})") from error


def _attempts_left(left: int) -> str:
    return "One attempt is left." if left == 1 else f"{left} attempts are left."


def _drawn(name: str, settings: Mapping[str, Any], seed: int, split: str) -> Iterator[Task]:
    """Different problems of a data set that belong to ``split``, without an end.

    Raises:
        DatasetError: there is no further one.
    """
    sort_of = name if not settings else f"{name}-{value_digest(settings)[:8]}"
    chosen = json.dumps(settings, sort_keys=True)
    _dataset(name, chosen, seed)  # refused before anything is drawn
    texts, place, last, failed = set[str](), 0, 0, ""
    while place - last < _DRAWS and place < _size(name):
        try:
            entry = _problem(name, chosen, seed, place)[1]
        except (ValueError, RuntimeError, IndexError) as error:  # some data sets give a problem up
            failed, place = f" (the last one failed: {first_line(error)})", place + 1
            continue
        if entry["question"] not in texts and in_split(entry["question"], split):
            texts.add(entry["question"])
            last = place
            is_known = isinstance(entry["answer"], str) and name not in _MANY_ANSWERS
            answers = (entry["answer"],) if is_known else ()
            data = {"dataset": name, "settings": dict(settings), "seed": seed, "place": place}
            yield Task(f"{sort_of}-{seed}-{place}", entry["question"], answers, split, data)
        place += 1
    raise DatasetError(
        f"the data set {name} has {len(texts)} different problems of the split {split} under seed {seed} and these "
        f"settings{failed}: ask for fewer, or make the problems larger by settings"
    )


def _size(name: str) -> int:
    return _FEWER.get(name, _SIZE)


def _problem_of(task: Task) -> tuple[Any, Mapping[str, Any]]:
    """The data set of a task and its problem, made again.

    Raises:
        DatasetError: the task is not one of ``ReasoningGym.make_tasks``, or another release of reasoning-gym made it.
    """
    try:
        name, seed, place = (task.data[key] for key in ("dataset", "seed", "place"))
        settings = json.dumps(task.data["settings"], sort_keys=True)
    except KeyError as error:
        raise DatasetError(
            f"task {task.id!r} is none of ReasoningGym.make_tasks: its data has no entry {error}"
        ) from error
    dataset, entry = _problem(name, settings, seed, place)
    if entry["question"] != task.question:
        raise DatasetError(
            f"task {task.id!r} is another problem in the installed release of reasoning-gym: install the one that made it, "
            "or make the tasks again"
        )
    return dataset, entry


class _Letters(set[str]):
    """A set in alphabetical order: that of an ordinary one differs between processes, and data sets draw letters from it."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))

    def __sub__(self, other: Set[object]) -> "_Letters":
        return _Letters(self.difference(other))


@lru_cache(maxsize=4096)
def _problem(name: str, settings: str, seed: int, place: int) -> tuple[Any, Mapping[str, Any]]:
    dataset = _dataset(name, settings, seed)
    return dataset, dataset[place]


@lru_cache(maxsize=64)
def _dataset(name: str, settings: str, seed: int) -> Any:
    """A data set of reasoning-gym, whose verifier does not execute what a policy writes.

    Raises:
        MissingExtra: reasoning-gym is not installed.
        UnknownName: no such data set.
        ConfigurationError: it is refused, or does not take these settings.
    """
    with needs_extra("reasoning-gym"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of its modules hold invalid escapes
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    check_known("data set of reasoning-gym", name, DATASETS)
    if name in UNSUPPORTED:
        raise ConfigurationError(
            f"the data set {name} of reasoning-gym cannot be used here: {UNSUPPORTED[name]}"
        )
    try:
        dataset: Any = reasoning_gym.create_dataset(name, seed=seed, size=_size(name), **json.loads(settings))
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(
            f"the data set {name} of reasoning-gym does not take the settings {settings}: {first_line(error)}"
        ) from error
    source = inspect.getsource(inspect.getmodule(type(dataset)) or type(dataset))
    if EVALUATES.search(source) and name not in {*GUARDS, *OWN_TEXTS}:
        raise ConfigurationError(
            f"the data set {name} of the installed release of reasoning-gym may execute an answer as Python: use another one"
        )
    if isinstance(getattr(dataset, "letters", None), set):
        dataset.letters = _Letters(dataset.letters)
    return dataset
