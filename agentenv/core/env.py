"""The base class of environments: Gymnasium environments that exchange messages and can be rewound.

A subclass keeps everything that changes in ``self.state`` (one data class), and everything shared or immutable (task set,
retriever, client) in other attributes. Snapshot, restore and fork then work without any further code.
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
    """Base class of every environment. Override ``reset`` and ``step``; with network access derive from ``AsyncEnv``.

    If ``options["task"]`` is given, ``reset`` poses that task. ``info["task_id"]`` of ``reset`` is the id of the posed task;
    an episode with another id than the given task's counts as a failure of the environment, and not as a score.

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
    """The reward of a policy that does nothing useful."""
    reward_ceiling: float = 1.0
    """The reward of the expert."""
    no_expert: ClassVar[str] = "no expert is declared"
    """The reason why ``expert`` returns None, if it does."""
    call_markers: ClassVar[tuple[str, ...]] = ()
    """Texts that begin a tool call in an action; the text before the first one is reasoning. Empty if the whole action is
    the call."""
    stop: ClassVar[tuple[str, ...]] = ()
    """Stop strings: the engine stops sampling after the first one. Empty if only the end of the turn ends an action."""
    scorers: ClassVar[tuple[str, ...]] = ("reward",)
    """The default scorers of its episodes, the main one first; ``reward`` is the sum of the environment's own rewards."""
    reward_options: ClassVar[frozenset[str]] = frozenset()
    """Options that change only the reward and the opening message (`default_prompt`), nothing else that the policy sees.
    They are left out of the card of a trained policy, because each evaluation sets its own."""
    reports_searches: ClassVar[bool] = False
    """Whether the tool results of an episode record every search that it made. If True, an episode whose results name no
    documents made no search. If False, the searches of such an episode are unknown and left out of statistics."""
    refuses_half_escapes: ClassVar[bool] = False
    r"""Whether the environment handles an action with an escaped lone surrogate, such as ``\ud83d``, itself. Otherwise
    ``step`` gets ``\ufffd`` in its place, so that no policy can make the environment fail."""
    reads_thoughts: ClassVar[bool] = False
    """Whether a thought between ``<think>`` tags is part of an action for this environment's messages or rewards. If so, the
    native thinking of a model is included in the action too."""
    judges_state: ClassVar[bool] = False
    """Whether an episode is scored by the effects of its actions, and not by the text of the last action."""
    client_data: ClassVar[Mapping[str, Any]] = {}
    """The entries that ``Task.data`` may hold if a client of a server sends the task, and their types. An entry must never
    name a file, an address or a class, because every client of the server chooses its value."""
    client_options: ClassVar[Mapping[str, Any]] = {}
    """Options of ``reset`` besides ``task`` that a client of a server may give, and their types; the same rule holds."""
    native: bool = False
    """Whether the policy calls tools in its model's native form. The episode loop sets it before ``reset``. The messages of
    the environment then do not explain how to call a tool, and contain results without tags around them."""
    sampled: TurnTokens = TurnTokens()
    """The token counts of the action that ``step`` is about to get. The episode loop sets it; otherwise it is zero."""
    state: StateT
    _closed = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses declarations that would fail in every episode: a coroutine for a plain method, or a wrong signature.

        Nothing would await such a coroutine, and resources that it should close would stay open.
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
        """Returns the opening message that results from ``options`` if one of ``reward_options`` changes it; otherwise None.

        The card of a trained policy omits these options and contains the message instead, so that an evaluation asks the
        policy in the same way as its training did.

        Args:
            options: Arguments of the constructor, without ``prompt``.
            native: Whether the policy calls tools in its model's native form.
        """
        return None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Seeds ``np_random`` and resets the turn count. A subclass calls it first and returns its own observation and info.

        The resources in the state of the previous episode are closed. A state that held resources is deleted.

        Raises:
            UnknownName: a subclass passed ``options`` on, and they contain a key other than ``task`` and ``client_options``.
            ConfigurationError: an option has the wrong type.
        """
        check_reset_options(type(self).__name__, self.client_options, options)
        self._leave_episode()
        super().reset(seed=seed)
        self._turn, self._over, self._closed = 0, False, False
        return (), {}

    def step(self, action: str) -> Step:
        """Executes one action.

        Raises:
            EpisodeOver: the episode has ended, or the environment was never reset.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step(); write `def step(self, action)`")

    def cut_reward(self) -> float:
        """Returns the additional reward of an episode that ends early, for example because the policy filled its context.

        If the environment penalises an episode without an answer, this method has to return the same penalty. Otherwise
        filling the context would be the cheaper way to give up.
        """
        return 0.0

    def turn_stop(self, stop: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the strings of ``stop`` that may end the next turn; by default all of them."""
        return stop

    def use_policy(self, policy: Policy, chat: ChatFormat) -> None:
        """Tells the environment before ``reset`` which policy will act. Only environments that query the policy keep it."""

    def native_tools(self) -> Sequence[ToolForm]:
        """Returns the tools that a model may call in its native form; empty if actions are plain text."""
        return ()

    def native_action(self, turn: AssistantTurn) -> str:
        """Converts a native turn to an action: its content, preceded by its thinking if the class ``reads_thoughts``."""
        return turn.with_thinking if self.reads_thoughts else turn.content

    def held_tasks(self) -> Sequence[Task]:
        """Returns the tasks from which ``reset`` draws, which clients may name by id; empty if each task is generated."""
        return ()

    def choose_task(self, options: Mapping[str, Any] | None) -> Task | None:
        """Returns the task of ``options``, or else draws one of ``held_tasks`` by ``np_random``; None if there is neither.

        A task is drawn in both cases, so that later draws do not depend on ``options``.
        """
        tasks = self.held_tasks()
        drawn = tasks[int(self.np_random.integers(len(tasks)))] if tasks else None
        return (options or {}).get("task") or drawn

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Runs ``reset`` in a worker thread. Environments with network input and output override it."""
        return await asyncio.to_thread(self.reset, seed=seed, options=options)

    async def astep(self, action: str) -> Step:
        """Runs ``step`` in a worker thread. Environments with network input and output override it."""
        return await asyncio.to_thread(self.step, action)

    @property
    def awaits(self) -> bool:
        """Whether the environment is written as coroutines. The methods of other environments are called in threads."""
        return type(self).areset is not Env.areset or type(self).astep is not Env.astep

    def check_running(self, action: object = "") -> None:
        """Checks that the episode is running and that ``action`` is text. ``step`` calls this first.

        Args:
            action: The argument of ``step``.

        Raises:
            EpisodeOver: the episode has ended, or the environment was never reset.
            ConfigurationError: the action is not text.
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
        """Ends the turn: builds the ``Step`` and the entries that its ``info`` always has.

        Args:
            observation: The new messages since the action.
            reward: The reward of this turn.
            end: The reason why the episode ended, or None if it continues.
            truncated: Whether a budget ended the episode and not the task itself.
            valid: Whether the action could be executed.
            tool_results: One result for each tool call.
            info: Further entries of ``info``. ``reward_parts`` names the parts that sum up to ``reward``, for credit
                assignment that compares each part separately.

        Raises:
            EpisodeOver: the episode had already ended, or the environment was never reset.
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
        """Captures the state, the random generator and the turn count.

        Raises:
            SnapshotRefused: a live interpreter cannot be captured in its present state.
            SnapshotError: a part could not be captured. Parts captured before it have been released.
        """
        return Snapshot(self, self._core())

    def restore(self, snapshot: Snapshot) -> None:
        """Returns to ``snapshot``. The same actions then give the same observations and rewards.

        Raises:
            SnapshotError: the snapshot belongs to another environment or was released, or a resource could not be restored.
        """
        if not isinstance(snapshot, Snapshot):
            raise SnapshotError(f"restore() takes what snapshot() gave, not {snapshot!r:.80}")
        if snapshot.owner is not self:
            raise SnapshotError(
                "this snapshot belongs to another environment; fork() makes independent copies"
            )
        self.__dict__.update(snapshot.bring_back())

    def fork(self, n: int = 1) -> list[Self]:
        """Makes ``n`` independent environments in the present state, which share everything immutable.

        Raises:
            SnapshotError: a part could not be forked. Forks made before it have been closed.
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
        """Returns the attributes to pickle; raises a ``PicklingError`` that names an attribute that cannot be pickled."""
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
        """Generates ``n`` tasks. Equal arguments give equal tasks, and different splits share no task.

        A subclass that generates tasks may take further keyword-only arguments, which the configuration of a run sets.

        Raises:
            ConfigurationError: the environment does not generate tasks.
        """
        raise ConfigurationError(f"{cls.__name__} makes no tasks of its own: name a dataset")

    def anchor_key(self) -> str | None:
        """Returns a key of the state without its history, equal for equal futures; None if it has no such key."""
        return None

    def scene(self) -> TurnScene | None:
        """Returns the present screen, for people who view the record of the episode; None if there is none."""
        return None

    def expert(self) -> Sequence[str] | None:
        """Returns actions that earn the full reward from the start of the present episode; None without an expert."""
        return None

    def expert_gives_up(self) -> str | None:
        """Returns a last action that gives up, if this episode did not show the evidence for the expert's answer; else None.

        The expert's actions are derived from the task's record. This method is called after all of them except the last, so
        that the expert's score is the share of answers that can be found, and not 1 by definition.

        Raises:
            ConfigurationError: the task's record does not contain the evidence that the expert would need.
        """
        return None

    def close(self) -> None:
        """Closes every resource in the state. ``step`` raises until the next ``reset``. A second call does nothing."""
        if not self._closed:
            self._closed = True
            _close_all(self.__dict__.get("state"))
            super().close()

    def _leave_episode(self) -> None:
        """Closes the resources of the previous episode, unless ``close`` has done so, and deletes the state that held them.

        A resource that cannot be closed must not fail the new episode, so the error is only logged.
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
    """Closes every resource in ``state``. If some fail, the others are closed first, and then the error is raised."""
    with contextlib.ExitStack() as stack:
        for resource in resources_of(state):
            stack.callback(resource.close)


class AsyncEnv(Env[StateT]):
    """An environment written as coroutines. Override ``areset`` and ``astep``; ``reset`` and ``step`` call them."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses a class that overrides ``reset`` or ``step``, which training and evaluation would not call."""
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
        """Seeds ``np_random`` and resets the turn count. A subclass calls it first."""
        if next(resources_of(self.__dict__.get("state")), None) is not None:
            # In a thread, because closing resources may take time and the event loop is shared.
            await asyncio.to_thread(self._leave_episode)
        return Env.reset(self, seed=seed, options=options)

    async def astep(self, action: str) -> Step:
        """Executes one action."""
        raise NotImplementedError(
            f"{type(self).__name__} has no astep(); write `async def astep(self, action)`"
        )


_background = BackgroundLoop("agentenv-loop")


def in_background(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Starts ``coroutine`` on an event loop that lives as long as the process; for work that outlives the caller's loop."""
    return _background.submit(coroutine)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs ``coroutine`` on the background event loop and waits for it, also from inside a running loop.

    Raises:
        RuntimeError: it was called on the background loop itself, which would wait for itself for ever.
    """
    if _background.is_current():
        coroutine.close()
        raise RuntimeError("run_sync on the background loop would wait for itself: await the coroutine there")
    # Guarded, because an exception such as SystemExit would stop the loop that all environments of the process share.
    return in_background(guarded(coroutine, EnvFault("a coroutine of the environment"))).result()
