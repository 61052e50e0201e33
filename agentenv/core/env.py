"""What an environment is: a Gymnasium environment that speaks in messages and can be rewound.

A subclass keeps everything that changes in ``self.state`` (one data class) and everything shared or immutable
(task set, retriever, client) as plain attributes. Snapshot, restore and fork then work without a line from
the author.
"""

import asyncio
import contextlib
import copy
import inspect
import logging
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Generic, Self, TypeVar

import gymnasium

from agentenv.core.assistant_turns import AssistantTurn, ToolForm
from agentenv.core.concurrency.background import BackgroundLoop
from agentenv.core.concurrency.deadlines import guarded
from agentenv.core.env_options import (
    check_declarations,
    check_reset_options,
    check_signatures,
    picklable,
)
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.scene import TurnScene
from agentenv.core.snapshot import Snapshot, fork_value, resources_of
from agentenv.core.spaces import FreeText, Messages
from agentenv.core.types import (
    EndReason,
    Info,
    Observation,
    StateCapability,
    Step,
    Task,
    ToolResult,
    TurnTokens,
)
from agentenv.errors import ConfigurationError, EnvFault, EpisodeOver, SnapshotError

StateT = TypeVar("StateT")
T = TypeVar("T")

_log = logging.getLogger(__name__)


class Env(gymnasium.Env[Observation, str], Generic[StateT]):
    """Base of every environment; override ``reset`` and ``step``, or for network input/output ``AsyncEnv``.

    ``reset`` poses ``options["task"]`` where one is given, and its ``info["task_id"]`` is the id of the task it posed: an
    episode whose id is another one is a failure of the environment, not a score.

    Example:
        ```python
        @dataclass
        class GuessState:
            secret: str


        class Guess(Env[GuessState]):
            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                secret = str(self.np_random.integers(10))
                task = (options or {}).get("task") or Task(secret, "Guess a digit.", (secret,))
                self.state = GuessState(secret=task.answers[0])
                return (Message("user", task.question),), {"task_id": task.id}

            def step(self, action):
                self.check_running(action)
                right = action.strip() == self.state.secret
                return self.result((), reward=float(right), end=EndReason.ANSWERED)

            def render(self):
                return "a secret digit"
        ```
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]
    capability: ClassVar[StateCapability] = StateCapability.MEMORY
    reward_floor: ClassVar[float] = 0.0
    """Outcome of a policy that does nothing useful."""
    reward_ceiling: float = 1.0
    """Outcome of the expert."""
    no_expert: ClassVar[str] = "no expert is declared"
    """Why ``expert`` gives None, where it does."""
    call_markers: ClassVar[tuple[str, ...]] = ()
    """Texts that begin a tool call in an action; what stands before the first one is reasoning. Empty where the whole
    action is the call."""
    stop: ClassVar[tuple[str, ...]] = ()
    """Texts that end an action: an engine samples nothing after the first. Empty where the end of a turn does."""
    scorers: ClassVar[tuple[str, ...]] = ("reward",)
    """Scorers that its episodes are evaluated by unless others are named, the headline first; ``reward`` is the sum of what
    the environment itself gave."""
    reward_options: ClassVar[frozenset[str]] = frozenset()
    """Options that decide what an episode earns, and nothing that the policy sees but its opening message
    (`default_prompt`). The card of a trained policy leaves them out: an evaluation measures by its own."""
    reports_searches: ClassVar[bool] = False
    """Whether the tool results of an episode hold every search that it made. If so, an episode whose results name no
    documents has made no search. If not, the searches of such an episode are unknown and left out."""
    refuses_half_escapes: ClassVar[bool] = False
    r"""Whether the environment itself handles an action that holds an escape of half a surrogate pair, such as ``\ud83d``.
    Otherwise ``step`` is given ``\ufffd`` in its place, so that no policy can make it fail by one."""
    reads_thoughts: ClassVar[bool] = False
    """Whether a thought between ``<think>`` tags is part of an action, as its messages or rewards have it. What a model has
    thought in its native form is then in the action too."""
    judges_state: ClassVar[bool] = False
    """Whether an episode is judged by what its actions have done, and not by what its last action says."""
    client_data: ClassVar[Mapping[str, Any]] = {}
    """What ``Task.data`` of a client of a server may hold, and the type of each entry. An entry must never name a file, an
    address or a class, because every client of the server may choose its value."""
    client_options: ClassVar[Mapping[str, Any]] = {}
    """Options of ``reset`` beside ``task`` that a client of a server may give, and their types, under the same rule."""
    native: bool = False
    """Whether the policy calls tools in the form that its model was trained in. The episode loop sets it before ``reset``;
    messages then say nothing of how a tool is called, and results stand in them without tags of their own."""
    sampled: TurnTokens = TurnTokens()
    """The tokens of the action that ``step`` gets, which the episode loop sets before it; outside of one, none."""
    state: StateT
    _closed = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses what would fail in every episode: a coroutine for a plain function, a wrong signature or declaration.

        Nothing would await such a coroutine, and what it closes would stay open.
        """
        super().__init_subclass__(**kwargs)
        for name in ("reset", "step", "close", "render", "expert"):
            if inspect.iscoroutinefunction(getattr(cls, name)):
                there = f", or the coroutine a{name}" if name in ("reset", "step") else ""
                raise ConfigurationError(
                    f"{cls.__name__}.{name} is a coroutine function, and nothing awaits it: write a plain function{there}"
                )
        check_declarations(cls)
        check_signatures(cls)

    def __init__(self, *, render_mode: str | None = None) -> None:
        self.observation_space = Messages()
        self.action_space = FreeText()
        self.render_mode = render_mode
        self._turn = 0
        self._over = True

    @classmethod
    def default_prompt(cls, options: Mapping[str, Any], *, native: bool = False) -> str | None:
        """The opening message under ``options`` where one of ``reward_options`` changes it; None where none does.

        The card of a trained policy leaves these options out and states the message in their place, so that an evaluation
        asks as training did.

        Args:
            options: Arguments of the constructor, ``prompt`` not among them.
            native: Whether the policy calls tools in the form that its model was trained in.
        """
        return None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Seeds ``np_random`` and the turn count; a subclass calls it first and gives its own observation.

        The resources in the state of the episode before are closed, and a state that held some is gone.

        Raises:
            UnknownName: ``options`` that a subclass hands on hold something else than ``task`` and ``client_options``.
            ConfigurationError: an option of another type.
        """
        check_reset_options(type(self).__name__, self.client_options, options)
        self._leave_episode()
        super().reset(seed=seed)
        self._turn, self._over, self._closed = 0, False, False
        return (), {}

    def step(self, action: str) -> Step:
        """Acts once.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step(); write `def step(self, action)`")

    def cut_reward(self) -> float:
        """The further reward of an episode that its policy ends and not its environment, for example by filling its context.

        Where an episode that ends without an answer loses something, it has to lose it here too, or else writing until the
        context is full would be the cheaper way to give up.
        """
        return 0.0

    def turn_stop(self, stop: tuple[str, ...]) -> tuple[str, ...]:
        """The strings of ``stop`` that end the next turn: all of them, unless one would cut off what the turn must hold."""
        return stop

    def use_policy(self, policy: Policy, chat: ChatFormat) -> None:
        """Tells the environment before ``reset`` which policy will act; only one that asks the policy itself keeps it."""

    def native_tools(self) -> Sequence[ToolForm]:
        """The tools that a model may call in its native form; empty where actions are plain text."""
        return ()

    def native_action(self, turn: AssistantTurn) -> str:
        """The action that a turn in the native form stands for: its text, with the thinking if it ``reads_thoughts``."""
        return turn.with_thinking if self.reads_thoughts else turn.content

    def held_tasks(self) -> Sequence[Task]:
        """The tasks that ``reset`` draws from, which clients may name by their ids; empty where each one is generated."""
        return ()

    def choose_task(self, options: Mapping[str, Any] | None) -> Task | None:
        """The task of ``options``, else one of ``held_tasks`` drawn by ``np_random``; None where there is neither.

        A task is drawn in either case, so that what is drawn after it does not depend on ``options``.
        """
        tasks = self.held_tasks()
        drawn = tasks[int(self.np_random.integers(len(tasks)))] if tasks else None
        return (options or {}).get("task") or drawn

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """``reset`` in a worker thread; environments with network input/output override it."""
        return await asyncio.to_thread(self.reset, seed=seed, options=options)

    async def astep(self, action: str) -> Step:
        """``step`` in a worker thread; environments with network input/output override it."""
        return await asyncio.to_thread(self.step, action)

    @property
    def awaits(self) -> bool:
        """Whether the environment is written as coroutines; the methods of a plain environment are called in threads."""
        return type(self).areset is not Env.areset or type(self).astep is not Env.astep

    def check_running(self, action: object = "") -> None:
        """Refuses an action in an episode that is over, and what is no action; ``step`` calls this first.

        Args:
            action: What ``step`` was given.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            ConfigurationError: the action is no text.
        """
        if self._closed:
            raise EpisodeOver("this environment is closed; call reset() before step()")
        if self._over:
            raise EpisodeOver("this episode is over; call reset() before step()")
        if not isinstance(action, str):
            raise ConfigurationError(
                f"an action is the text that a policy writes, and step() was given {action!r:.80} of type "
                f"{type(action).__name__}"
            )

    def result(
        self,
        observation: Observation,
        *,
        reward: float = 0.0,
        end: EndReason | None = None,
        truncated: bool = False,
        valid: bool = True,
        tool_results: Sequence[ToolResult] = (),
        **info: Any,
    ) -> Step:
        """Closes the turn: builds the ``Step`` with the entries that ``info`` always has.

        Args:
            observation: What is new since the action.
            reward: Reward of this turn.
            end: Why the episode ended, or None while it goes on.
            truncated: Whether a budget of ours ended it, rather than the task.
            valid: Whether the action could be acted on.
            tool_results: One entry a tool call.
            info: Further entries. ``reward_parts`` says of which rewards ``reward`` is the sum, by name, for credit that
                compares each by itself.

        Raises:
            EpisodeOver: the episode had ended already or was never reset.
        """
        self.check_running()
        self._turn += 1
        self._over = end is not None
        info |= {"turn": self._turn, "tool_results": tuple(tool_results), "valid": valid}
        if end is not None:
            info["end_reason"] = end
        return Step(
            observation, reward, end is not None and not truncated, end is not None and truncated, info
        )

    def snapshot(self) -> Snapshot:
        """Captures state, random generator and turn count.

        Raises:
            SnapshotRefused: a live interpreter cannot be captured as it stands.
            SnapshotError: a part could not be captured. Nothing is left behind.
        """
        return Snapshot(self, self._core())

    def restore(self, snapshot: Snapshot) -> None:
        """Goes back to ``snapshot``; the same actions then give the same observations and rewards.

        Raises:
            SnapshotError: the snapshot belongs to another environment, was released, or a resource failed.
        """
        if not isinstance(snapshot, Snapshot):
            raise SnapshotError(f"restore() takes what snapshot() gave, not {snapshot!r:.80}")
        if snapshot.owner is not self:
            raise SnapshotError(
                "this snapshot belongs to another environment; fork() makes independent copies"
            )
        self.__dict__.update(snapshot.bring_back())

    def fork(self, n: int = 1) -> list[Self]:
        """``n`` independent environments in the present state, sharing what is immutable.

        Raises:
            SnapshotError: a part could not be forked; the forks made before it have been closed.
            ValueError: ``n`` is below 0.
        """
        if n < 0:
            raise ValueError(f"an environment cannot be forked {n} times: give 0 or more")
        forks: list[Self] = []
        try:
            for _ in range(n):
                core = fork_value(self._core())
                twin = copy.copy(self)
                twin.__dict__.update(core)
                forks.append(twin)
        except SnapshotError:
            for twin in forks:
                twin.close()
            raise
        return forks

    def _core(self) -> dict[str, Any]:
        names = ("state", "_turn", "_over", "_np_random", "_np_random_seed")
        return {name: self.__dict__[name] for name in names if name in self.__dict__}

    def __getstate__(self) -> dict[str, Any]:
        """What pickle takes; raises a ``PicklingError`` that names what cannot be pickled."""
        return picklable(self)

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self)] = twin = type(self).__new__(type(self))
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
        """``n`` tasks of the environment's own making, the same for the same arguments and disjoint across splits.

        A subclass that makes tasks may take further keyword-only arguments: a run's configuration fills them.

        Raises:
            ConfigurationError: it makes none.
        """
        raise ConfigurationError(f"{cls.__name__} makes no tasks of its own: name a dataset")

    def anchor_key(self) -> str | None:
        """The state without history, equal for equal futures; None where step groups make no sense."""
        return None

    def scene(self) -> TurnScene | None:
        """The screen as it is now, for people who read the record of the episode; None where there is none."""
        return None

    def expert(self) -> Sequence[str] | None:
        """Actions that score full from the start of the present episode, or None where no expert exists."""
        return None

    def expert_gives_up(self) -> str | None:
        """The last action of the expert where this episode did not show the evidence for its answer; None where it did.

        The scripted actions come from the record of the task. It is called after all of them but the last, so that the
        expert's score is a ceiling of what can be found and not 1 by definition.

        Raises:
            ConfigurationError: the record of the task does not say what the expert would have to look for.
        """
        return None

    def close(self) -> None:
        """Closes every resource in the state; ``step`` is refused until the next reset. A second call does nothing."""
        if not self._closed:
            self._closed = True
            _close_all(self.__dict__.get("state"))
            super().close()

    def _leave_episode(self) -> None:
        """Closes the resources that the last episode has left, unless ``close`` has, and forgets the state around them.

        What cannot be closed is no failure of the episode that begins: it is logged.
        """
        held = [*resources_of(self.__dict__.get("state"))]
        if not held:
            return
        del self.state
        try:
            _close_all([] if self._closed else held)
        except Exception as error:
            what, kind = type(self).__name__, type(error).__name__
            _log.warning("what an episode of %s held could not be closed: %s: %s", what, kind, error)


def _close_all(state: object) -> None:
    """Closes every resource in ``state``; one that fails does not keep the others, and is raised after them."""
    with contextlib.ExitStack() as stack:
        for resource in resources_of(state):
            stack.callback(resource.close)


class AsyncEnv(Env[StateT]):
    """An environment written as coroutines: override ``areset`` and ``astep``, which ``reset`` and ``step`` call."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses a plain ``reset`` or ``step``, which training and evaluation would not call."""
        super().__init_subclass__(**kwargs)
        for name in {"reset", "step"} & set(vars(cls)):
            if f"a{name}" not in vars(cls):
                raise ConfigurationError(
                    f"{cls.__name__}.{name} would not be called in training and evaluation: in an environment with tools or "
                    f"coroutines write `async def a{name}`, and `await super().a{name}(...)` where it calls the original"
                )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Runs ``areset`` and waits for it."""
        return run_sync(self.areset(seed=seed, options=options))

    def step(self, action: str) -> Step:
        """Runs ``astep`` and waits for it."""
        return run_sync(self.astep(action))

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Seeds ``np_random`` and starts the turn count; a subclass calls it first."""
        if next(resources_of(self.__dict__.get("state")), None) is not None:
            # In a thread: what is closed may take its time, and the loop is for all.
            await asyncio.to_thread(self._leave_episode)
        return Env.reset(self, seed=seed, options=options)

    async def astep(self, action: str) -> Step:
        """Acts once."""
        raise NotImplementedError(
            f"{type(self).__name__} has no astep(); write `async def astep(self, action)`"
        )


_background = BackgroundLoop("agentenv-loop")


def in_background(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Starts ``coroutine`` on one event loop that lives as long as the process, for what must outlive any other loop."""
    return _background.submit(coroutine)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs ``coroutine`` on the background event loop and waits for it, also from inside a running loop.

    Raises:
        RuntimeError: called on the background loop itself, which would wait for itself for ever.
    """
    if _background.is_current():
        coroutine.close()
        raise RuntimeError("run_sync on the background loop would wait for itself: await the coroutine there")
    # Guarded, because what is no `Exception` would end the loop that all environments of the process share.
    return in_background(guarded(coroutine, EnvFault("a coroutine of the environment"))).result()
