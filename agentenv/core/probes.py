"""Probes of a reward: what a policy earns that does not try to solve the task, beside what the expert earns.

A probe knows the form of an action (`agentenv.core.action_forms`) and nothing of the task. A reward by which one of them
earns what the expert earns can be farmed: training would find that way, because it is the shorter one.
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
"""Seeds of the episodes of each probe."""
MOST_FORMS = 6
"""Most forms of an action that a probe tries one after the other."""
PROBE_TURNS = 256
"""Turns after which an episode of a probe is cut."""
EPISODE_S = 20.0
"""Seconds after which an episode of a probe is cut."""
PROBE_S = 10.0
"""Seconds after which a probe begins no further episode."""
FLOOD = 50
"""Queries, or actions, that a flood puts into one action."""

_LABEL = re.compile(r"\A\w+:\s*")
_TAG = re.compile(r"</?[A-Za-z_][\w-]*>")
_WORDS = ("vlurb zonka prix quelto dramb siv", "yorth mabek")


@dataclass
class Seen:
    """What a probe knows while it plays one episode."""

    forms: ActionForms
    episodes: Sequence[ExpertEpisode]
    expert: ExpertEpisode
    """What the expert does in this episode."""
    number: int
    """Number of the form that is tried."""
    texts: list[str] = field(default_factory=list)
    """Everything that was shown so far, without tags."""

    @property
    def middle(self) -> Sequence[Form]:
        """The one form that is tried of an action after which the episode goes on, or none."""
        return self.forms.middle[self.number : self.number + 1]

    @property
    def last(self) -> Form:
        """The form that is tried of the last action."""
        return self.forms.last[min(self.number, len(self.forms.last) - 1)]

    @property
    def question(self) -> str:
        """What the opening has in lines of its own, without a word and a colon before it; all of it where there are none."""
        openings = [_without_tags(one.opening).splitlines() for one in self.episodes]
        own = _without_tags(self.expert.opening).splitlines()
        lines = [line for line in own if not all(line in opening for opening in openings)]
        return _LABEL.sub("", "\n".join(lines or own).strip())

    @property
    def honest_last(self) -> Form | None:
        """The form of the expert's own last action; None where it has no content that could be wrong."""
        form = last_form(self.expert.actions[-1], self.forms.constants) if self.expert.actions else self.last
        return form if form.has_content and self.forms.last_is_judged else None

    def answers_of(self, expert: ExpertEpisode) -> list[str]:
        """What the last action of ``expert`` holds besides its form."""
        if not expert.actions:
            return []
        form = last_form(expert.actions[-1], self.forms.constants)
        return [text.strip() for text in contents(form.action) if text not in form.constants]

    def see(self, messages: Sequence[Any]) -> None:
        """Notes what was shown."""
        self.texts.append(_without_tags(messages))


def _without_tags(messages: Sequence[Any]) -> str:
    return _TAG.sub(" ", "\n".join(message.text for message in messages))


Probe = Callable[[Seen], Iterator[str]]
"""From what an episode goes by to its actions; where they run out, the episode is left there."""


def _floor(name: str) -> Probe:
    def play(seen: Seen) -> Iterator[str]:
        rng, opening = np.random.default_rng(seen.expert.seed), seen.expert.opening
        while True:
            yield floor_action(name, opening, rng)

    return play


def _answer(text: Callable[[Seen], tuple[str, ...]]) -> Probe:
    return lambda seen: itertools.repeat(seen.last.filled(*text(seen)))


def _nonsense(seen: Seen) -> Iterator[str]:
    for form in seen.middle:
        yield from itertools.repeat(form.filled(*_WORDS))


def _question_asked(seen: Seen) -> Iterator[str]:
    for form in seen.middle:
        yield form.filled(seen.question)
        yield from itertools.repeat("")


def _nonsense_answered(seen: Seen) -> Iterator[str]:
    for form in seen.middle:
        yield from [form.filled(*_WORDS)] * 3
        yield from itertools.repeat(seen.last.filled(*_WORDS))


def _repetition(seen: Seen) -> Iterator[str]:
    for action in seen.expert.actions[:-1][:1]:
        yield from itertools.repeat(action)


def _many_queries(seen: Seen) -> Iterator[str]:
    for form in seen.middle:
        yield form.filled("\n".join(f"{_WORDS[0]} {number}" for number in range(FLOOD)))
        yield from itertools.repeat(seen.last.filled(*_WORDS))


def _many_actions(seen: Seen) -> Iterator[str]:
    for form in seen.middle or (seen.last,):
        yield form.filled(*_WORDS) * FLOOD
        yield from itertools.repeat(seen.last.filled(*_WORDS) * FLOOD)


def _other_answer(seen: Seen) -> Iterator[str]:
    others = [one.actions[-1] for one in seen.episodes if one.actions and one.opening != seen.expert.opening]
    for action in others[seen.number : seen.number + 1]:
        yield from itertools.repeat(action)


def _all_answers(seen: Seen) -> Iterator[str]:
    answers = list(dict.fromkeys(text for one in seen.episodes for text in seen.answers_of(one)))
    if (last := seen.honest_last) is not None and len(answers) > 1:
        yield from itertools.repeat(last.filled(", ".join(answers)))


def _everything(seen: Seen) -> Iterator[str]:
    if (last := seen.honest_last) is not None:
        yield from seen.expert.actions[:-1]
        yield last.filled("\n".join(seen.texts))


def _honest(seen: Seen) -> Iterator[str]:
    if (last := seen.honest_last) is not None:
        yield from seen.expert.actions[:-1]
        yield last.filled(*_WORDS)


HONEST = "expert, wrong answer"
"""The probe that tries and fails."""

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
    "empty answer": _answer(lambda seen: ("",)),
    "question as answer": _answer(lambda seen: (seen.texts[0],)),
    "answer of another task": _other_answer,
    "answers of all tasks": _all_answers,
    "everything as answer": _everything,
    HONEST: _honest,
}
"""Every probe by name; the last one shows what an honest attempt is worth that goes wrong."""


@dataclass(frozen=True)
class ProbeRow:
    """What a probe earns, with the form of an action by which it earns most."""

    probe: str
    reward: float | None
    """Mean reward over its episodes; None where no episode counts."""
    expert: float | None
    """Mean reward of the expert over the same tasks; without an expert the environment's ``reward_ceiling``."""
    episodes: int
    """Episodes that count: all but the masked ones."""
    masked: int
    """Episodes that a fault ended, so that training would leave them out."""
    cut: int
    """Episodes that were not over after ``PROBE_TURNS`` turns or ``EPISODE_S`` seconds; they count as far as they
    came."""
    action: str
    """The first action of the probe, shortened."""
    fault: str = ""
    """What ended the first of the masked episodes."""
    has_expert: bool = True
    """Whether an expert played; else ``expert`` is what the environment declares, its ``reward_ceiling``."""

    @property
    def is_farm(self) -> bool:
        """Whether it earns at least what the expert earns or no finite number, or can end every episode by a fault."""
        if self.reward is None or self.expert is None:
            return self.masked > 0
        return not np.isfinite(self.reward) or self.reward >= self.expert - 1e-9


class _Played(NamedTuple):
    reward: float
    expert: float
    fault: str
    """What masked it; empty where it counts."""
    cut: bool
    action: str


def probe_env(make: MakeEnv) -> list[ProbeRow]:
    """What each of ``PROBES`` earns in an environment.

    Args:
        make: Makes a fresh environment, the same each time; every one is closed.
    """
    with closing(make()) as env:
        episodes = [_expert_episode(env, seed) for seed in SEEDS]
        forms = learn_forms(episodes, env.stop, MOST_FORMS)
        forms = replace(forms, last_is_judged=not env.judges_state)
    # A sandbox loses its processes with the thread that started them.
    threads = DaemonThreads(1, "agentenv-probes")
    try:
        rows = [_probed(make, name, forms, episodes, threads) for name in PROBES]
    finally:
        threads.shutdown()
    has_expert = any(episode.actions for episode in episodes)
    return [replace(row, has_expert=has_expert) for row in rows]


def _expert_episode(env: Env[Any], seed: int) -> ExpertEpisode:
    opening, _ = env.reset(seed=seed)
    actions, reward = [], 0.0
    for action in env.expert() or ():  # what it would do after the end of the episode is never done
        step = env.step(action)
        actions.append(action)
        reward += float(step.reward)
        if step.terminated or step.truncated:
            break
    return ExpertEpisode(seed, opening, tuple(actions), reward if actions else float(env.reward_ceiling))


def _probed(
    make: MakeEnv, name: str, forms: ActionForms, episodes: Sequence[ExpertEpisode], threads: DaemonThreads
) -> ProbeRow:
    """What a probe earns by the form that is best for it."""
    rows: list[ProbeRow] = []
    runner, deadline = _ProbeRunner(make, threads), time.monotonic() + PROBE_S
    with closing(runner):
        for number in range(MOST_FORMS):
            played: list[_Played] = []
            for seen, first in _scripts(name, forms, episodes, number):
                if (not rows and not played) or time.monotonic() < deadline:
                    played.append(runner.play(name, seen, first))
            if played:
                rows.append(_row(name, played))
    return max(rows, key=_gain, default=_row(name, []))


def _gain(row: ProbeRow) -> float:
    """Most for a row without a finite reward, of which every episode is masked for example, because that is worth seeing."""
    if row.reward is None or row.expert is None or not np.isfinite(row.reward):
        return np.inf
    return row.reward - row.expert


def _scripts(
    name: str, forms: ActionForms, episodes: Sequence[ExpertEpisode], number: int
) -> list[tuple[Seen, str]]:
    """What the episodes of a probe with the form of this number go by, and how they begin; none where it is nothing new."""
    scripts = []
    for expert in episodes:
        seen = Seen(forms, episodes, expert, number)
        first = _first(name, seen)
        if first is None or (number and first == _first(name, Seen(forms, episodes, expert, number - 1))):
            continue
        if expert.actions[-1:] == (first,) and (
            len(expert.actions) == 1 or Form(first, forms.constants).has_content
        ):
            continue  # it is what the expert does here
        scripts.append((seen, first))
    return scripts


def _first(name: str, seen: Seen) -> str | None:
    seen.texts.clear()
    seen.see(seen.expert.opening)
    return next(PROBES[name](seen), None)


class _ProbeRunner:
    """Plays the episodes of probes one after the other in one environment, and in another one after a fault."""

    def __init__(self, make: MakeEnv, threads: DaemonThreads) -> None:
        self._make, self._threads = make, threads
        self._env = make()

    def play(self, name: str, seen: Seen, first: str) -> _Played:
        """An episode; masked where anything was raised or hung, because training would mask it too."""
        expert, first_action, env = seen.expert.reward, shortened(first, 120), self._env
        try:
            reward, cut = in_time(2 * EPISODE_S, lambda: _play(env, name, seen), self._threads)
        except Exception as error:
            self._env = self._make()  # the one before may still be busy and is left behind
            return _Played(0.0, expert, f"{type(error).__name__}: {error}", cut=False, action=first_action)
        return _Played(reward, expert, "", cut, first_action)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


def _play(env: Env[Any], name: str, seen: Seen) -> tuple[float, bool]:
    """The reward of an episode, and whether it was cut."""
    started, reward = time.monotonic(), 0.0
    opening, _ = env.reset(seed=seen.expert.seed)
    seen.texts.clear()
    seen.see(opening)
    for turn, action in enumerate(PROBES[name](seen)):
        if turn >= PROBE_TURNS or time.monotonic() - started > EPISODE_S:
            return reward, True
        step = env.step(action)
        reward += float(step.reward)
        if step.terminated or step.truncated:
            return reward, False
        seen.see(step.observation)
    return reward, True


def _row(name: str, played: Sequence[_Played]) -> ProbeRow:
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
