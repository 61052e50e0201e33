"""The contract of an environment, as run by ``agentenv check``, and the same as a test class.

Every check plays whole episodes in environments that ``make()`` returns. The actions are the expert's, if there is one, and
random samples of the action space.
"""

import random
import re
import unittest
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env as gymnasium_check
from gymnasium.utils.passive_env_checker import env_render_passive_checker

from agentenv.core.check_time import CheckHung, in_check_time
from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.env import Env
from agentenv.core.env_contract_tasks import check_splits, check_task, require
from agentenv.core.env_outputs import checked_opening, checked_step, most_chars
from agentenv.core.error_places import place_of
from agentenv.core.floors import FLOORS, floor_action
from agentenv.core.probes import HONEST, ProbeRow, probe_env
from agentenv.core.scene import Mark
from agentenv.core.types import EndReason, StateCapability, Step, ToolResult, ToolStatus
from agentenv.errors import EpisodeOver, SnapshotError

MakeEnv = Callable[[], Env[Any]]

SEEDS = (0, 1, 2)
RANDOM_ACTIONS = 8
CHECK_S = 600.0
"""Time limit of one check in seconds."""
_CONTEXT_TOKENS = 1 << 20  # no observation is too long for the contract
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MAX_TURNS = 64  # after so many turns of a floor policy, an episode is cut


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    name: str
    status: Literal["ok", "failed", "skipped"]
    detail: str = ""
    """What the check found, what failed, or why it was skipped."""
    probes: tuple[ProbeRow, ...] = ()
    """The reward of each probe; empty for every other check."""


class ProbeEarnsReward(AssertionError):
    """A probe earns as much as the expert. The exception carries the rows of all probes."""

    def __init__(self, complaint: str, probes: Sequence[ProbeRow]) -> None:
        super().__init__(complaint)
        self.probes = tuple(probes)


def check_env(
    make: MakeEnv, waiting: Callable[[str], None] = lambda sentence: None, seconds: float = CHECK_S
) -> list[CheckResult]:
    """Runs every check of the contract. If one hangs, the checks after it are skipped.

    Args:
        make: Makes a new environment, the same each time. Every environment is closed afterwards.
        waiting: Called with a message if a check takes long; the message says where in the environment's code it is.
        seconds: The time limit of one check.
    """
    results: list[CheckResult] = []
    hung = ""
    for name in CHECKS:
        if hung:
            results.append(CheckResult(name, "skipped", f"not run, because the check {hung!r} did not end"))
            continue
        try:
            results.append(_run(name, make, waiting, seconds))
        except CheckHung as error:
            hung = name
            results.append(CheckResult(name, "failed", str(error)))
    return results


def run_check(name: str, make: MakeEnv) -> CheckResult:
    """Runs one check of ``CHECKS``. An exception or a hang inside it makes the check fail and is not raised."""
    try:
        return _run(name, make, lambda sentence: None, CHECK_S)
    except CheckHung as error:
        return CheckResult(name, "failed", str(error))


def _run(name: str, make: MakeEnv, waiting: Callable[[str], None], seconds: float) -> CheckResult:
    """Runs one check and returns its result.

    Raises:
        CheckHung: the check did not end in time; the message says where it hangs.
    """
    try:
        found = in_check_time(name, lambda: CHECKS[name](make), waiting, seconds)
        if isinstance(found, list):
            return CheckResult(name, "ok", _best_probe(found), tuple(found))
        return CheckResult(name, "ok", found or "")
    except unittest.SkipTest as reason:
        return CheckResult(name, "skipped", str(reason))
    except CheckHung:
        raise
    except ProbeEarnsReward as error:
        return CheckResult(name, "failed", str(error), error.probes)
    except Exception as error:
        place = "" if isinstance(error, AssertionError) else place_of(error)
        # Gymnasium's warnings contain colour codes
        said = _COLOUR.sub("", f"{type(error).__name__}: {error}")
        return CheckResult(name, "failed", f"{said} ({place})" if place else said)


def _scripts(make: MakeEnv) -> Generator[tuple[int, list[str]], None, None]:
    """Yields seeds with the actions to play under each: first the expert's actions, then random ones."""
    for seed in SEEDS:
        with closing(make()) as env:
            checked_opening(env.reset(seed=seed), most_chars(_CONTEXT_TOKENS))
            if expert := env.expert():
                yield seed, list(expert)
            env.action_space.seed(seed)
            yield seed, [env.action_space.sample() for _ in range(RANDOM_ACTIONS)]


def _play(env: Env[Any], actions: Sequence[str]) -> list[Step]:
    """Plays ``actions`` until the episode ends; returns the steps.

    Raises:
        EnvFault: a step returned something that training and evaluation cannot use; the message names it.
    """
    steps: list[Step] = []
    for action in actions:
        steps.append(env.step(action))
        checked_step(steps[-1], most_chars(_CONTEXT_TOKENS))
        if steps[-1].terminated or steps[-1].truncated:
            break
    return steps


def _same(one: Sequence[Step], other: Sequence[Step], what: str) -> None:
    for turn, (a, b) in enumerate(zip(one, other, strict=False), 1):
        for field in ("observation", "reward", "terminated", "truncated"):
            left, right = getattr(a, field), getattr(b, field)
            require(left == right, f"{what}: {field} of turn {turn} differs: {left!r} and {right!r}")
        results = (a.info["tool_results"], b.info["tool_results"])
        require(results[0] == results[1], f"{what}: tool_results of turn {turn} differ: {results}")
    require(len(one) == len(other), f"{what}: {len(one)} turns and {len(other)}")


def check_gymnasium(make: MakeEnv) -> None:
    """Gymnasium's own checker reports no error and no warning."""
    with closing(make()) as env, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gymnasium_check(env.unwrapped, skip_render_check=True, skip_close_check=True)
    # A file left open causes a warning at every reset, so duplicates are removed.
    require(not caught, "; ".join(dict.fromkeys(str(warning.message) for warning in caught)))


def check_render(make: MakeEnv) -> str:
    """Every declared render mode returns what Gymnasium expects of it, and closing twice is allowed."""
    with closing(make()) as env:
        modes = env.metadata["render_modes"]
        drawn = type(env.unwrapped).render is not gymnasium.Env.render
        require(drawn or not modes, f"write render(), which returns the state as text, for the modes {modes}")
    for mode in modes:
        env = make()
        env.render_mode = mode
        env.reset(seed=0)
        env_render_passive_checker(env)
        env.close()
        env.close()
    return ", ".join(modes)


def check_determinism(make: MakeEnv) -> None:
    """Equal seeds and actions give equal episodes, and the global random generators stay unchanged."""
    for seed, actions in _scripts(make):
        before = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
        with closing(make()) as env, closing(make()) as other:
            openings = [env.reset(seed=seed), other.reset(seed=seed)]
            require(openings[0] == openings[1], f"two environments open seed {seed} differently")
            first = _play(env, actions)
            _same(first, _play(other, actions), f"seed {seed} in two environments")
            require(env.reset(seed=seed) == openings[0], f"a second reset with seed {seed} opens differently")
            _same(first, _play(env, actions), f"seed {seed} after a second reset")
        after = (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
        require(before == after, "a global random generator was used; draw from self.np_random")


def check_async(make: MakeEnv) -> None:
    """``areset`` and ``astep`` return what ``reset`` and ``step`` return."""

    async def play(env: Env[Any], seed: int, actions: Sequence[str]) -> list[Step]:
        await env.areset(seed=seed)
        steps: list[Step] = []
        while len(steps) < len(actions) and not (steps and (steps[-1].terminated or steps[-1].truncated)):
            steps.append(await env.astep(actions[len(steps)]))
        return steps

    for seed, actions in _scripts(make):
        with closing(make()) as env, closing(make()) as other:
            env.reset(seed=seed)
            _same(
                _play(env, actions),
                run_to_completion(play(other, seed, actions)),
                f"sync and async, seed {seed}",
            )


def check_capability(make: MakeEnv) -> str:
    """The environment declares how much of its state a snapshot captures."""
    with closing(make()) as env:
        require(isinstance(env.capability, StateCapability), f"capability is {env.capability!r}")
        return env.capability.name.lower()


def _skip_without_time_travel(make: MakeEnv) -> None:
    with closing(make()) as env:
        if env.capability is StateCapability.NONE:
            raise unittest.SkipTest("the declared capability is none")


def check_restore(make: MakeEnv) -> str:
    """After a restore at any turn, the same actions give the same rest of the episode, twice."""
    _skip_without_time_travel(make)
    restored, seconds = 0, 0.0
    for seed, actions in _scripts(make):
        with closing(make()) as env:
            env.reset(seed=seed)
            for turn in range(len(actions)):
                snapshot = env.snapshot()
                seconds = max(seconds, snapshot.seconds)
                rest = _play(env, actions[turn:])
                for _ in range(2):
                    env.restore(snapshot)
                    _same(rest, _play(env, actions[turn:]), f"seed {seed} restored before turn {turn + 1}")
                    restored += 1
                env.restore(snapshot)
                snapshot.release()
                if (step := env.step(actions[turn])).terminated or step.truncated:
                    break
    return f"{restored} restores, slowest snapshot {seconds * 1000:.1f} ms"


def check_fork(make: MakeEnv) -> None:
    """Forks continue as the original would, and steps of one fork affect neither the original nor other forks."""
    _skip_without_time_travel(make)
    for seed, actions in _scripts(make):
        for turn in range(len(actions)):
            with closing(make()) as env:
                env.reset(seed=seed)
                head = _play(env, actions[:turn])
                if head and (head[-1].terminated or head[-1].truncated):
                    break
                forks = env.fork(3)
                ends = [_play(one, actions[turn:]) for one in (*forks[:2], env, forks[2])]
                for end in ends[1:]:
                    _same(ends[0], end, f"seed {seed} forked before turn {turn + 1}")
                for fork in forks:
                    fork.close()


def check_snapshot(make: MakeEnv) -> None:
    """A released snapshot is refused, a second release is harmless, and snapshots of other environments are refused."""
    _skip_without_time_travel(make)
    with closing(make()) as env, closing(make()) as other:
        env.reset(seed=0)
        other.reset(seed=0)
        snapshot = env.snapshot()
        _refuses(SnapshotError, lambda: other.restore(snapshot), "restoring another environment's snapshot")
        snapshot.release()
        snapshot.release()
        _refuses(SnapshotError, lambda: env.restore(snapshot), "restoring a released snapshot")


def _refuses(expected: type[Exception], act: Callable[[], object], what: str) -> None:
    try:
        act()
    except expected:
        return
    except Exception as error:
        raise AssertionError(f"{what} must raise {expected.__name__}, not {error!r}") from error
    raise AssertionError(f"{what} must raise {expected.__name__}")


def check_observations(make: MakeEnv) -> None:
    """Every observation is a new tuple of messages that no later step changes, and every info is a new dict."""
    for seed, actions in _scripts(make):
        with closing(make()) as env:
            opening, info = env.reset(seed=seed)
            require(len(opening) > 0, "reset gives no message")
            steps = _play(env, actions)
            observations = [opening, *(step.observation for step in steps)]
            for observation in observations:
                require(observation in env.observation_space, f"{observation!r} is no tuple of Message")
            # The empty tuple is a singleton in Python, so it is left out of the comparison.
            kept = [id(observation) for observation in observations if observation]
            require(
                len(set(kept)) == len(kept),
                "an observation object is used twice; build a new tuple each step",
            )
            infos = [id(entry) for entry in (info, *(step.info for step in steps))]
            require(len(set(infos)) == len(infos), "an info dict is used twice; build a new one each step")


def check_info(make: MakeEnv) -> None:
    """``turn``, ``tool_results`` and ``valid`` are always in the info; ``end_reason`` is there at the end and only then."""
    for seed, actions in _scripts(make):
        with closing(make()) as env:
            env.reset(seed=seed)
            for turn, step in enumerate(_play(env, actions), 1):
                info, over = step.info, step.terminated or step.truncated
                require(info.get("turn") == turn, f"info['turn'] is {info.get('turn')!r} in turn {turn}")
                require(isinstance(info.get("valid"), bool), f"info['valid'] is {info.get('valid')!r}")
                results = info.get("tool_results")
                typed = isinstance(results, tuple) and all(isinstance(r, ToolResult) for r in results)
                require(typed, f"info['tool_results'] is {results!r}, not a tuple of ToolResult")
                reason = info.get("end_reason")
                require(
                    isinstance(reason, EndReason) if over else reason is None, f"end_reason is {reason!r}"
                )
                require(not (step.terminated and step.truncated), "terminated and truncated are both true")
                require(np.isfinite(step.reward), f"the reward of turn {turn} is {step.reward}")


def check_episode_over(make: MakeEnv) -> None:
    """``step`` raises ``EpisodeOver`` before ``reset`` and after the end; ``reset`` starts a new episode."""
    with closing(make()) as env:
        _refuses(EpisodeOver, lambda: env.step(""), "step() before reset()")
    ended = False
    for seed, actions in _scripts(make):
        with closing(make()) as env:
            env.reset(seed=seed)
            steps = _play(env, actions)
            if steps[-1].terminated or steps[-1].truncated:
                ended = True
                _refuses(EpisodeOver, lambda: env.step(actions[0]), "step() after the end")  # noqa: B023
                env.reset(seed=seed)
                _same(steps, _play(env, actions), "an episode after the end of another")
    if not ended:
        raise unittest.SkipTest(f"no episode ended within {RANDOM_ACTIONS} actions")


def check_scene(make: MakeEnv) -> str:
    """If there is a screen, it can be drawn before every action, and the action can be marked on it."""
    with closing(_scripts(make)) as scripts, closing(make()) as env:
        seed, actions = next(scripts)
        env.reset(seed=seed)
        for number, action in enumerate(actions):
            scene = env.scene()
            if scene is None:
                return "no screen"
            require(min(scene.size) > 0, f"the screen before action {number} has the size {scene.size}")
            try:
                ElementTree.fromstring(scene.svg())
            except ElementTree.ParseError as error:
                raise AssertionError(f"the drawing before action {number} is no SVG: {error}") from None
            wrong = [mark for mark in scene.marks(action) if not isinstance(mark, Mark)]
            require(not wrong, f"action {number} is marked by {wrong[:1]}, which is no Mark")
            if _play(env, [action])[0].info.get("end_reason"):
                break
    return f"{number + 1} screens"


def check_expert(make: MakeEnv) -> str:
    """The expert's actions end the episode and earn ``reward_ceiling``. Its failed calls are named."""
    failed: list[str] = []
    for seed in SEEDS:
        with closing(make()) as env:
            env.reset(seed=seed)
            actions = env.expert()
            if actions is None:
                raise unittest.SkipTest(env.no_expert)
            steps = _play(env, actions)
            score = sum(step.reward for step in steps)
            results = [result for step in steps for result in step.info.get("tool_results", ())]
            failed += [
                f"{result.name}: {result.text}" for result in results if result.status != ToolStatus.OK
            ]
            over = bool(steps) and (steps[-1].terminated or steps[-1].truncated)
            require(over, f"seed {seed}: the expert's {len(actions)} actions do not end the episode")
            wanted = env.reward_ceiling
            require(
                score >= wanted - 1e-9,
                f"seed {seed}: the expert scores {score:g}, not {wanted:g}; where no more can be earned, declare it as "
                "reward_ceiling of the class",
            )
    calls = f", but {len(failed)} of its tool calls failed, the first with {failed[0]:.120}" if failed else ""
    return f"{len(SEEDS)} episodes at {wanted:g}{calls}"


def check_floors(make: MakeEnv) -> str:
    """Policies that know nothing of the task earn at most ``reward_floor``."""
    for floor in FLOORS:
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            with closing(make()) as env:
                opening, _ = env.reset(seed=seed)
                steps = _play(env, [floor_action(floor, opening, rng) for _ in range(MAX_TURNS)])
                score = sum(step.reward for step in steps)
                limit = env.reward_floor
                require(
                    score <= limit + 1e-9,
                    f"seed {seed}: {floor!r} scores {score:g}, above {limit:g}; where this is meant, declare it as "
                    "reward_floor of the class",
                )
    return ", ".join(FLOORS)


def check_probes(make: MakeEnv) -> list[ProbeRow]:
    """No probe that does not try to solve the task earns as much as the expert, or causes a fault in every episode."""
    rows = probe_env(make)
    if farms := [row for row in rows if row.is_farm]:
        raise ProbeEarnsReward("; ".join(_complaint(row) for row in farms), rows)
    return rows


def _complaint(row: ProbeRow) -> str:
    if row.reward is None:
        return f"{row.probe!r} ends each of {row.masked} episodes by a fault ({row.fault}), by {row.action!r}"
    return f"{row.probe!r} earns {row.reward:g} where {_bound_in_words(row)}, by {row.action!r}"


def _bound_in_words(row: ProbeRow) -> str:
    """Describes the reward that a probe has to stay below."""
    if row.has_expert:
        return f"the expert earns {row.expert:.3g}"
    return f"there is no expert and reward_ceiling declares {row.expert:.3g}"


def _best_probe(rows: Sequence[ProbeRow]) -> str:
    """Describes the best of ``rows`` that does not try to solve the task, next to the expert and the honest wrong answer."""
    earning = {row.probe: row for row in rows if row.reward is not None}
    honest = earning.pop(HONEST, None)
    best = max(earning.values(), key=lambda row: (row.reward or 0.0) - (row.expert or 0.0))
    wrong = "" if honest is None else f", and {honest.reward:.3g} with a wrong answer"
    return f"{best.probe!r} earns most: {best.reward:.3g} where {_bound_in_words(best)}{wrong}"


CHECKS: dict[str, Callable[[MakeEnv], str | list[ProbeRow] | None]] = {
    "gymnasium": check_gymnasium,
    "render": check_render,
    "determinism": check_determinism,
    "async": check_async,
    "capability": check_capability,
    "restore": check_restore,
    "fork": check_fork,
    "snapshot": check_snapshot,
    "observations": check_observations,
    "info": check_info,
    "episode_over": check_episode_over,
    "task": check_task,
    "splits": check_splits,
    "scene": check_scene,
    "expert": check_expert,
    "floors": check_floors,
    "probes": check_probes,
}
"""Every check by name, in the order in which they run."""


class EnvContract:
    """The contract as a test class for pytest: inherit from it and define how the environment is made.

    Example:
        ```python
        class TestGuess(EnvContract):
            def make(self) -> Env:
                return Guess()
        ```
    """

    def make(self) -> Env[Any]:
        """Makes a new environment, the same each time."""
        raise NotImplementedError


def _as_test(name: str) -> Callable[[EnvContract], None]:
    def test(self: EnvContract) -> None:
        result = run_check(name, self.make)
        if result.status == "skipped":
            raise unittest.SkipTest(result.detail)
        assert result.status == "ok", result.detail

    test.__doc__ = CHECKS[name].__doc__
    return test


for _name in CHECKS:
    setattr(EnvContract, f"test_{_name}", _as_test(_name))
