"""Semi-online, offline and online training of one small policy on DomSim, and whether SOP tells true success.

The policy is log-linear: it scores every element and every action that a screen offers by features of the goal, the screen
and its own history, and samples one. It stands for a language model where thousands of episodes have to be played within
minutes on one core; the environments, rewards, patches, segment returns and dual-level credit are the library's own. All
ways of training see the same tasks and take the same number of turns of the policy:

- semi-online: `agentenv/SemiOnlineGUI-v0` with a patch budget of 0, 1, 2 or without end;
- offline: the same, but every history is the expert's (each turn is judged on its own, gamma 0);
- online: `agentenv/DomSim-v0` itself, reward at the end.

    python benchmarks/gui_semi_online.py --seeds 5
"""

import argparse
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from common import common_arguments, finish
from numpy.typing import NDArray

from agentenv.core.env import Env
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task
from agentenv.envs.domsim.env import DomSim
from agentenv.envs.gui.actions import Action, Kind, action_text
from agentenv.envs.gui.screen import Screen
from agentenv.envs.gui.semi_online import UNLIMITED, SemiOnlineGUI
from agentenv.evaluation.sop import sop
from agentenv.trainers.turn_credit import dual_level

TEMPLATES = ("mail-star", "mail-archive", "mail-delete", "notes-pin", "notes-delete")
VERBS = ("star", "archive", "delete", "pin")
APPS = ("mail", "notes", "settings", "shop")
HASHED = 8192
PROBES = 4
"""Checkpoints of a run that are measured, of the first seed of each way."""
"""Weights; a feature has one of them by hash."""
Values = NDArray[np.float64]


class Choice(NamedTuple):
    """One thing that can be done."""

    text: str
    token: str
    """What it is called in the history: role and, but for entries of lists, name."""
    features: tuple[int, ...]
    """Places of its features among the weights; all of them are 1."""


def words_of(text: str) -> set[str]:
    """The lower-case words of a text."""
    return {"".join(filter(str.isalnum, word)) for word in text.lower().split()} - {""}


def place(*parts: object) -> int:
    """A feature's place among the weights."""
    return zlib.crc32("|".join(map(str, parts)).encode()) % HASHED


def choices(goal: str, screen: Screen, past: Sequence[str]) -> list[Choice]:
    """What a screen offers: a click on each element, each app, and the end, with features of goal and history."""
    found = [(action_text(Action(Kind.OPEN, text=app), "go"), "open", app) for app in APPS]
    found += [
        (action_text(Action(Kind.CLICK, id=element.id), "go"), element.role, element.text)
        for element in screen.elements or ()
        if element.role in ("button", "listitem", "switch", "tab")
    ]
    found.append((action_text(Action(Kind.TERMINATE, text="success"), "go"), "terminate", ""))
    wanted = words_of(goal)
    verb, about = min(wanted & set(VERBS), default=""), min(wanted & {"mail", "note"}, default="")
    last = past[-1] if past else ""
    made = []
    for text, role, name in found:
        own = words_of(name)
        share = round(3 * len(own & wanted) / max(len(own), 1))
        token = role if role == "listitem" else f"{role} {name}"
        features = (
            place(verb, about, token, last),
            place(token, last),
            place(role, share, last),
            place(role, share, token in past),
            place(screen.title, verb, token, token in past),
        )
        made.append(Choice(text, token, features))
    return made


class LogLinear:
    """A softmax over what is on the screen."""

    def __init__(self, seed: int) -> None:
        self.weights: Values = np.zeros(HASHED)
        self.rng = np.random.default_rng(seed)

    def probabilities(self, offered: Sequence[Choice]) -> Values:
        """One number a choice."""
        scores = self.weights[np.array([choice.features for choice in offered])].sum(1)
        shifted: Values = np.exp(scores - scores.max())
        return shifted / shifted.sum()

    def pick(self, offered: Sequence[Choice], *, greedy: bool) -> int:
        """The place of a choice: drawn, or the likeliest."""
        chances = self.probabilities(offered)
        return int(chances.argmax()) if greedy else int(self.rng.choice(len(offered), p=chances))

    def learn(self, turns: Sequence[tuple[list[Choice], int, float]], rate: float) -> None:
        """One step along the mean of credit times slope of the log-prob."""
        slope: Values = np.zeros(HASHED)
        for offered, picked, credit in turns:
            push = -credit * self.probabilities(offered)
            push[picked] += credit
            np.add.at(slope, np.array([choice.features for choice in offered]), push[:, None])
        self.weights += rate * slope / max(len(turns), 1)


Played = tuple[Trajectory, list[tuple[list[Choice], int]]]


def episode(env: Env[Any], task: Task, policy: LogLinear, *, greedy: bool = False, **options: Any) -> Played:
    """One episode as a record of one token a turn, and what was offered and picked in each."""
    _, info = env.reset(seed=0, options={"task": task, **options})
    turns: list[Turn] = []
    seen: list[tuple[list[Choice], int]] = []
    segments, past = [], list[str]()
    while True:
        offered = choices(info["goal"], env.screen(), past)  # type: ignore[attr-defined]
        picked = policy.pick(offered, greedy=greedy)
        step = env.step(offered[picked].text)
        past.append(remembered(env, offered, picked))
        segments.append(Segment(SegmentKind.POLICY, (picked,), len(turns), logprobs=(0.0,)))
        turns.append(Turn(offered[picked].text, reward=step.reward, valid=step.info["valid"]))
        seen.append((offered, picked))
        if step.terminated or step.truncated:
            reward = sum(turn.reward for turn in turns)
            record = Trajectory(task, tuple(segments), tuple(turns), reward, EndReason.SUBMITTED)
            return record, seen


def remembered(env: Env[Any], offered: Sequence[Choice], picked: int) -> str:
    """What stands in the history for the last turn: the policy's own choice or, patched, the expert's."""
    history = getattr(env.state, "history", ())
    if not history or not history[-1].patched:
        return offered[picked].token
    done = history[-1].text.partition("</think>")[2]
    return next((choice.token for choice in offered if choice.text.endswith(done)), "")


@dataclass(frozen=True)
class Way:
    """One way of training."""

    name: str
    online: bool = False
    budget: int = 0
    options: dict[str, Any] | None = None
    """Of the dual-level credit."""


OFFLINE = {"gamma": 0.0, "episode_weight": 0.0}
WAYS = (
    Way("offline", budget=UNLIMITED, options=OFFLINE),
    Way("semi-online 0", budget=0),
    Way("semi-online 1", budget=1),
    Way("semi-online 2", budget=2),
    Way("semi-online unlimited", budget=UNLIMITED),
    Way("online", online=True, options={"turn_weight": 0.0}),
)


def train(
    way: Way, tasks: Sequence[Task], seed: int, args: argparse.Namespace, probe: Callable[[LogLinear], None]
) -> LogLinear:
    """A policy trained ``args.turns`` turns in one way; ``probe`` sees it ``PROBES`` times on the way."""
    policy, rng, used, probed = LogLinear(seed), np.random.default_rng(seed), 0, 0
    env: Env[Any] = DomSim(max_steps=8) if way.online else SemiOnlineGUI(patch_budget=way.budget)
    while used < args.turns:
        lesson = []
        for index in rng.choice(len(tasks), size=args.questions, replace=False):
            group = [episode(env, tasks[index], policy) for _ in range(args.group)]
            credit = dual_level([record for record, _ in group], **(way.options or {}))
            for (record, seen), values in zip(group, credit, strict=True):
                lesson += [
                    (offered, picked, float(c)) for (offered, picked), c in zip(seen, values, strict=True)
                ]
                used += len(record.turns)
        policy.learn(lesson, args.rate)
        if used >= args.turns * (probed + 1) / PROBES:
            probe(policy)
            probed += 1
    return policy


def measured(policy: LogLinear, tasks: Sequence[Task]) -> tuple[float, float]:
    """SOP score, and the share of the same tasks that are truly solved, both greedy."""
    recorded, live = SemiOnlineGUI(patch_budget=0), DomSim(max_steps=12)
    followed = sop([episode(recorded, task, policy, greedy=True)[0] for task in tasks])
    solved = [episode(live, task, policy, greedy=True)[0].reward for task in tasks]
    return followed.score, float(np.mean(solved))


def interval(values: Sequence[float]) -> dict[str, float]:
    """Mean with the half-width of its 95 % interval (Student)."""
    quantile = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}[len(values)]
    return {
        "mean": float(np.mean(values)),
        "half": quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values)),
    }


def r_squared(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Share of the variance of the second that a line through the first explains; None where either is constant."""
    table = np.array(pairs).T
    if min(np.ptp(table[0]), np.ptp(table[1])) == 0:
        return None
    return float(np.corrcoef(table)[0, 1] ** 2)


def both(n: int, split: str) -> list[Task]:
    """Tasks that can be played on the desktop and followed on its recordings."""
    live = DomSim.make_tasks(n, split=split, templates=TEMPLATES)
    recorded = SemiOnlineGUI.make_tasks(n, split=split, templates=TEMPLATES)
    return [
        Task(a.id, b.question, (), split, {**a.data, **b.data}) for a, b in zip(live, recorded, strict=True)
    ]


def main() -> None:
    """Trains, measures and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=5, choices=(2, 3, 4, 5), help="runs of each way")
    parser.add_argument("--turns", type=int, default=700, help="turns of the policy that each run takes")
    parser.add_argument("--questions", type=int, default=6, help="groups a step")
    parser.add_argument("--group", type=int, default=6, help="episodes a group")
    parser.add_argument("--rate", type=float, default=20.0, help="step size")
    parser.add_argument("--tasks", type=int, default=120, help="tasks that are learned from")
    parser.add_argument("--tests", type=int, default=15, help="unseen tasks")
    args = parser.parse_args()
    tasks, unseen = both(args.tasks, "train"), both(args.tests, "test")
    results: dict[str, Any] = {}
    checkpoints: list[tuple[float, float]] = []
    for way in WAYS:
        scores = []
        for seed in range(args.seeds):
            probes: list[tuple[float, float]] = []
            probe = (
                (lambda policy, kept=probes: kept.append(measured(policy, unseen)))
                if seed == 0
                else (lambda policy: None)
            )
            scores.append(measured(train(way, tasks, seed, args, probe), unseen))
            checkpoints += probes
        results[way.name] = {
            "sop": interval([followed for followed, _ in scores]),
            "solved": interval([solved for _, solved in scores]),
        }
    fit = r_squared(checkpoints)
    figures = {
        "turns": args.turns, "seeds": args.seeds, "tests": args.tests, "templates": TEMPLATES, "ways": results,
        "checkpoints": checkpoints, "r2": fit,
    }  # fmt: skip
    lines = [
        f"{name:<24}SOP {row['sop']['mean']:.3f} +- {row['sop']['half']:.3f}   solved "
        f"{row['solved']['mean']:.3f} +- {row['solved']['half']:.3f}"
        for name, row in results.items()
    ]
    finish(
        "gui_semi_online",
        args,
        figures,
        [*lines, f"R2 of SOP and success over {len(checkpoints)} checkpoints {fit}"],
    )


if __name__ == "__main__":
    main()
