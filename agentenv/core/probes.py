"""Probes of a reward: policies that do not try to solve the task, whose rewards are compared with the expert's.

A probe knows the form of an action (`agentenv.core.action_forms`) and nothing of the task. If a probe earns as much as the
expert, the reward can be hacked, and training would learn to do so because that is easier than the task.
"""

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from agentenv.core.action_forms import ActionForms, ExpertEpisode, Form, contents, last_form, learn_forms
from agentenv.core.concurrency.threads import DaemonThreads, in_time
from agentenv.core.env import Env
from agentenv.core.floors import floor_action
from agentenv.core.grammar import shortened

MakeEnv = Callable[[], Env[Any]]

SEEDS = range(5)
"""The seeds of each probe's episodes."""
MOST_FORMS = 6
"""The largest number of forms of an action that a probe tries, one after the other."""
PROBE_TURNS = 256
"""An episode of a probe is cut after so many turns."""
EPISODE_S = 20.0
"""An episode of a probe is cut after so many seconds."""
PROBE_S = 10.0
"""A probe starts no further episode after so many seconds."""
FLOOD = 50
"""Number of queries or actions that a probe puts into one action to flood the environment."""

_LABEL = re.compile(r"\A\w+:\s*")
_TAG = re.compile(r"</?[A-Za-z_][\w-]*>")
_WORDS = ("vlurb zonka prix quelto dramb siv", "yorth mabek")


@dataclass
class ProbeState:
    """The knowledge of a probe in one episode."""

    forms: ActionForms
    episodes: Sequence[ExpertEpisode]
    expert: ExpertEpisode
    """The expert's actions in this episode."""
    number: int
    """Index of the form that is tried."""
    texts: list[str] = field(default_factory=list)
    """All texts shown so far, without their tags."""

    @property
    def middle(self) -> Sequence[Form]:
        """The form that is tried for actions that do not end the episode: one form or none."""
        return self.forms.middle[self.number : self.number + 1]

    @property
    def last(self) -> Form:
        """The form that is tried for the last action."""
        return self.forms.last[min(self.number, len(self.forms.last) - 1)]

    @property
    def question(self) -> str:
        """The lines that only this episode's opening has, without a leading label such as ``Question:``; else all lines."""
        openings = [_without_tags(one.opening).splitlines() for one in self.episodes]
        own = _without_tags(self.expert.opening).splitlines()
        lines = [line for line in own if not all(line in opening for opening in openings)]
        return _LABEL.sub("", "\n".join(lines or own).strip())

    @property
    def honest_last(self) -> Form | None:
        """The form of the expert's own last action; None if that has no content that could be wrong."""
        form = last_form(self.expert.actions[-1], self.forms.constants) if self.expert.actions else self.last
        return form if form.has_content and self.forms.last_is_judged else None

    def answers_of(self, expert: ExpertEpisode) -> list[str]:
        """Returns the content of the last action of ``expert``."""
        if not expert.actions:
            return []
        form = last_form(expert.actions[-1], self.forms.constants)
        return [text.strip() for text in contents(form.action) if text not in form.constants]

    def see(self, messages: Sequence[Any]) -> None:
        """Records messages that were shown."""
        self.texts.append(_without_tags(messages))


def _without_tags(messages: Sequence[Any]) -> str:
    return _TAG.sub(" ", "\n".join(message.text for message in messages))


Probe = Callable[[ProbeState], Iterator[str]]
"""A function of a probe's knowledge that yields its actions. When they end, the episode is left as it is."""


def _floor(name: str) -> Probe:
    def play(state: ProbeState) -> Iterator[str]:
        rng, opening = np.random.default_rng(state.expert.seed), state.expert.opening
        while True:
            yield floor_action(name, opening, rng)

    return play


def _answer(text: Callable[[ProbeState], tuple[str, ...]]) -> Probe:
    return lambda state: itertools.repeat(state.last.filled(*text(state)))


def _nonsense(state: ProbeState) -> Iterator[str]:
    for form in state.middle:
        yield from itertools.repeat(form.filled(*_WORDS))


def _question_asked(state: ProbeState) -> Iterator[str]:
    for form in state.middle:
        yield form.filled(state.question)
        yield from itertools.repeat("")


def _nonsense_answered(state: ProbeState) -> Iterator[str]:
    for form in state.middle:
        yield from [form.filled(*_WORDS)] * 3
        yield from itertools.repeat(state.last.filled(*_WORDS))


def _repetition(state: ProbeState) -> Iterator[str]:
    for action in state.expert.actions[:-1][:1]:
        yield from itertools.repeat(action)


def _many_queries(state: ProbeState) -> Iterator[str]:
    for form in state.middle:
        yield form.filled("\n".join(f"{_WORDS[0]} {number}" for number in range(FLOOD)))
        yield from itertools.repeat(state.last.filled(*_WORDS))


def _many_actions(state: ProbeState) -> Iterator[str]:
    for form in state.middle or (state.last,):
        yield form.filled(*_WORDS) * FLOOD
        yield from itertools.repeat(state.last.filled(*_WORDS) * FLOOD)


def _other_answer(state: ProbeState) -> Iterator[str]:
    others = [
        one.actions[-1] for one in state.episodes if one.actions and one.opening != state.expert.opening
    ]
    for action in others[state.number : state.number + 1]:
        yield from itertools.repeat(action)


def _all_answers(state: ProbeState) -> Iterator[str]:
    answers = list(dict.fromkeys(text for one in state.episodes for text in state.answers_of(one)))
    if (last := state.honest_last) is not None and len(answers) > 1:
        yield from itertools.repeat(last.filled(", ".join(answers)))


def _everything(state: ProbeState) -> Iterator[str]:
    if (last := state.honest_last) is not None:
        yield from state.expert.actions[:-1]
        yield last.filled("\n".join(state.texts))


def _honest(state: ProbeState) -> Iterator[str]:
    if (last := state.honest_last) is not None:
        yield from state.expert.actions[:-1]
        yield last.filled(*_WORDS)


HONEST = "expert, wrong answer"
"""The probe that tries to solve the task and gives a wrong answer."""

PROBES: Mapping[str, Probe] = {
    "silence": _floor("no-op"),
    "random text": _floor("random text"),
    "prompt copied": _floor("copy the prompt"),
    "nonsense, no answer": _nonsense,
    "nonsense, then an answer": _nonsense_answered,
    "question as query, no answer": _question_asked,
    "first action repeated": _repetition,
    "flood of queries": _many_queries,
    "flood of actions": _many_actions,
    "answer at once": _answer(lambda _: _WORDS),
    "empty answer": _answer(lambda state: ("",)),
    "question as answer": _answer(lambda state: (state.texts[0],)),
    "answer of another task": _other_answer,
    "answers of all tasks": _all_answers,
    "everything as answer": _everything,
    HONEST: _honest,
}
"""Every probe by name. The last one shows the reward of an honest attempt that fails."""


@dataclass(frozen=True)
class ProbeRow:
    """The reward of a probe, with the form of action that earns it most."""

    probe: str
    reward: float | None
    """Mean reward over its episodes; None if no episode counts."""
    expert: float | None
    """Mean reward of the expert on the same tasks; without an expert the environment's ``reward_ceiling``."""
    episodes: int
    """Number of episodes that count: all except masked ones."""
    masked: int
    """Number of episodes that ended by a fault, which training would leave out."""
    cut: int
    """Number of episodes cut after ``PROBE_TURNS`` turns or ``EPISODE_S`` seconds. They count with their reward so far."""
    action: str
    """The first action of the probe, shortened."""
    fault: str = ""
    """The fault that ended the first masked episode."""
    has_expert: bool = True
    """Whether an expert played; otherwise ``expert`` is the environment's declared ``reward_ceiling``."""

    @property
    def is_farm(self) -> bool:
        """Whether the probe earns at least as much as the expert, or a reward that is not finite, or only causes faults."""
        if self.reward is None or self.expert is None:
            return self.masked > 0
        return not np.isfinite(self.reward) or self.reward >= self.expert - 1e-9


class _ProbeEpisode(NamedTuple):
    reward: float
    expert: float
    fault: str
    """The fault that masked the episode; empty if the episode counts."""
    cut: bool
    action: str


def probe_env(make: MakeEnv) -> list[ProbeRow]:
    """Measures the reward of each of ``PROBES`` in an environment.

    Args:
        make: Makes a new environment, the same each time. Every environment is closed afterwards.
    """
    with closing(make()) as env:
        episodes = [_expert_episode(env, seed) for seed in SEEDS]
        forms = learn_forms(episodes, env.stop, MOST_FORMS)
        forms = replace(forms, last_is_judged=not env.judges_state)
    # All episodes run in one thread, because a sandbox loses its processes when the thread that started them ends.
    threads = DaemonThreads(1, "agentenv-probes")
    try:
        rows = [_run_probe(make, name, forms, episodes, threads) for name in PROBES]
    finally:
        threads.shutdown()
    has_expert = any(episode.actions for episode in episodes)
    return [replace(row, has_expert=has_expert) for row in rows]


def _expert_episode(env: Env[Any], seed: int) -> ExpertEpisode:
    opening, _ = env.reset(seed=seed)
    actions, reward = [], 0.0
    for action in env.expert() or ():  # actions after the end of the episode are never played
        step = env.step(action)
        actions.append(action)
        reward += float(step.reward)
        if step.terminated or step.truncated:
            break
    return ExpertEpisode(seed, opening, tuple(actions), reward if actions else float(env.reward_ceiling))


def _run_probe(
    make: MakeEnv, name: str, forms: ActionForms, episodes: Sequence[ExpertEpisode], threads: DaemonThreads
) -> ProbeRow:
    """Returns the result of a probe with the form that earns it most."""
    rows: list[ProbeRow] = []
    runner, deadline = _ProbeRunner(make, threads), time.monotonic() + PROBE_S
    with closing(runner):
        for number in range(MOST_FORMS):
            played: list[_ProbeEpisode] = []
            for state, first in _scripts(name, forms, episodes, number):
                if (not rows and not played) or time.monotonic() < deadline:
                    played.append(runner.play(name, state, first))
            if played:
                rows.append(_row(name, played))
    return max(rows, key=_margin_over_expert, default=_row(name, []))


def _margin_over_expert(row: ProbeRow) -> float:
    """Returns how much more the probe earns than the expert; infinity if its reward is missing or not finite."""
    if row.reward is None or row.expert is None or not np.isfinite(row.reward):
        return np.inf
    return row.reward - row.expert


def _scripts(
    name: str, forms: ActionForms, episodes: Sequence[ExpertEpisode], number: int
) -> list[tuple[ProbeState, str]]:
    """Returns what the probe knows, and its first action, for each episode to play with the form ``number``."""
    scripts = []
    for expert in episodes:
        state = ProbeState(forms, episodes, expert, number)
        first = _first(name, state)
        if first is None or (
            number and first == _first(name, ProbeState(forms, episodes, expert, number - 1))
        ):
            continue
        if expert.actions[-1:] == (first,) and (
            len(expert.actions) == 1 or Form(first, forms.constants).has_content
        ):
            continue  # the probe would do what the expert does
        scripts.append((state, first))
    return scripts


def _first(name: str, state: ProbeState) -> str | None:
    state.texts.clear()
    state.see(state.expert.opening)
    return next(PROBES[name](state), None)


class _ProbeRunner:
    """Plays the episodes of probes one after another in one environment; after a fault, in a new one."""

    def __init__(self, make: MakeEnv, threads: DaemonThreads) -> None:
        self._make, self._threads = make, threads
        self._env = make()

    def play(self, name: str, state: ProbeState, first: str) -> _ProbeEpisode:
        """Plays one episode. It is masked if anything raised or hung, because training would mask it too."""
        expert, first_action, env = state.expert.reward, shortened(first, 120), self._env
        try:
            reward, cut = in_time(2 * EPISODE_S, lambda: _play(env, name, state), self._threads)
        except Exception as error:
            self._env = self._make()  # the former one may still be busy and is abandoned
            return _ProbeEpisode(
                0.0, expert, f"{type(error).__name__}: {error}", cut=False, action=first_action
            )
        return _ProbeEpisode(reward, expert, "", cut, first_action)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


def _play(env: Env[Any], name: str, state: ProbeState) -> tuple[float, bool]:
    """Returns the reward of an episode, and whether it was cut."""
    started, reward = time.monotonic(), 0.0
    opening, _ = env.reset(seed=state.expert.seed)
    state.texts.clear()
    state.see(opening)
    for turn, action in enumerate(PROBES[name](state)):
        if turn >= PROBE_TURNS or time.monotonic() - started > EPISODE_S:
            return reward, True
        step = env.step(action)
        reward += float(step.reward)
        if step.terminated or step.truncated:
            return reward, False
        state.see(step.observation)
    return reward, True


def _row(name: str, played: Sequence[_ProbeEpisode]) -> ProbeRow:
    counted = [one for one in played if not one.fault]
    return ProbeRow(
        name,
        float(np.mean([one.reward for one in counted])) if counted else None,
        float(np.mean([one.expert for one in counted])) if counted else None,
        len(counted),
        len(played) - len(counted),
        sum(one.cut for one in counted),
        played[0].action if played else "",
        next((one.fault for one in played if one.fault), ""),
    )
