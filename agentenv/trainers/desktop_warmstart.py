"""``agentenv warmstart --env desktop``: a small policy for ``agentenv/DomSim-v0`` that errs often, by supervised learning.

It imitates three demonstrators on tasks of the training split. One follows the expert; one says that it is done when it is
not; one uses the wrong thing and then says that it is done. What they are shown is what the desktop showed them, as whole
contexts, which is also how ``agentenv/SemiOnlineGUI-v0`` shows recordings: one policy can be trained on either and judged on
both. What there is to find is when to stop, and what to use.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from agentenv.core.chat import TemplateFormat
from agentenv.core.rollout import RolloutConfig
from agentenv.core.types import Observation, Task
from agentenv.envs.domsim.env import DomSim
from agentenv.envs.gui.actions import STOP, Action, Kind, action_text
from agentenv.envs.gui.screen import Screen
from agentenv.evaluation.runner import play
from agentenv.policies.card import EpisodeCard
from agentenv.policies.hf import HFPolicy
from agentenv.trainers.denormals import flushed_denormals
from agentenv.trainers.small_policies import SmallPolicyConfig, imitation
from agentenv.trainers.supervised import Display, Figures, Lesson, write_policy

ENV = "agentenv/DomSim-v0"
PROMPT = "{goal}\n"
OPTIONS: Mapping[str, Any] = {"prompt": PROMPT, "places": False, "window": 8}
"""How the policy is shown a screen; ``agentenv/SemiOnlineGUI-v0`` takes the same."""
TEMPLATES = (
    "notes-pin", "notes-delete", "files-create", "files-delete", "files-size",
    "settings-turn-one", "shop-take-out", "mail-star", "mail-archive", "mail-read-code",
)  # fmt: skip
"""Kinds of task that it is shown."""
CONTEXT_TOKENS, TURN_TOKENS = 1024, 64
_DONE = action_text(Action(Kind.TERMINATE, text="success"), "I terminate success.")
_USED = ("button", "listitem", "switch", "tab")


@dataclass(frozen=True)
class DesktopWarmstartConfig(SmallPolicyConfig):
    """How the policy is made."""

    steps: int = 400
    """Optimiser steps."""
    templates: Sequence[str] = TEMPLATES
    """Kinds of task."""


class Demonstration(NamedTuple):
    """An episode: what was seen before each action, and the actions."""

    contexts: tuple[Observation, ...]
    actions: tuple[str, ...]


class Demonstrator(Protocol):
    """Gives the next action of an episode."""

    def __call__(self, wanted: str, turn: int, slip_at: int, screen: Screen, rng: Random) -> str:
        """What is written in ``turn``, where the expert writes ``wanted``; mistakes are made from ``slip_at`` on."""


def careful(wanted: str, turn: int, slip_at: int, screen: Screen, rng: Random) -> str:
    """Does as the expert."""
    return wanted


def hasty(wanted: str, turn: int, slip_at: int, screen: Screen, rng: Random) -> str:
    """Says too early that it is done."""
    return wanted if turn < slip_at else _DONE


def astray(wanted: str, turn: int, slip_at: int, screen: Screen, rng: Random) -> str:
    """Uses something else once, and then says that it is done."""
    if turn != slip_at:
        return wanted if turn < slip_at else _DONE
    offered = [element for element in screen.elements or () if element.role in _USED]
    used = rng.choice(offered)
    return action_text(Action(Kind.CLICK, id=used.id), f"I use click on {used.role} {used.text!r}.")


CROWD: Mapping[Demonstrator, float] = {careful: 0.50, hasty: 0.30, astray: 0.20}
"""Share of each demonstrator."""


def demonstrations(config: DesktopWarmstartConfig) -> list[tuple[Demonstrator, Demonstration]]:
    """One episode a task."""
    rng, env = Random(config.seed), DomSim(**OPTIONS)
    tasks = DomSim.make_tasks(config.tasks, seed=config.seed, split="train", templates=config.templates)
    who = rng.choices(list(CROWD), list(CROWD.values()), k=len(tasks))
    return [(one, _played(env, task, one, rng)) for one, task in zip(who, tasks, strict=True)]


def _played(env: DomSim, task: Task, who: Demonstrator, rng: Random) -> Demonstration:
    context, _ = env.reset(seed=0, options={"task": task})
    script = env.expert()
    slip_at = rng.randrange(len(script) - 1)
    contexts, actions = [], []
    for turn, wanted in enumerate(script):
        contexts.append(context)
        actions.append(who(wanted, turn, slip_at, env.screen(), rng))
        step = env.step(actions[-1])
        if step.terminated or step.truncated:
            break
        context = step.observation
    return Demonstration(tuple(contexts), tuple(actions))


def lesson_of(demonstration: Demonstration, tokenizer: Any) -> Lesson:
    """The episode as one row: every context extends what was seen and done before."""
    chat = TemplateFormat(tokenizer)
    ids: list[int] = []
    own: list[bool] = []
    for context, action in zip(*demonstration, strict=True):
        seen = chat.prompt(context)
        written = tokenizer.encode(action, add_special_tokens=False)
        own += [False] * (len(seen) - len(ids)) + [True] * len(written)
        ids = seen + written
    return ids, own


@flushed_denormals()
def desktop_warmstart(config: DesktopWarmstartConfig, display: Display, out: Path) -> Figures:
    """Makes the policy and writes it to ``out``.

    Returns:
        The figures of its card: tokens seen, minutes, and the share of unseen tasks that it solves, greedy and sampled.
    """
    began = time.perf_counter()
    display.phase("demonstrations", config.tasks)
    demos = [demo for _, demo in demonstrations(config)]
    texts = [
        "\n".join(["user", *(m.text for m in demo.contexts[-1]), demo.actions[-1], "assistant"])
        for demo in demos
    ]

    def rows_of(tokenizer: Any) -> list[Lesson]:
        return [lesson_of(demo, tokenizer) for demo in demos]

    policy, tokens = imitation(texts, ("think", "action"), rows_of, config, display)
    figures: Figures = {"tokens": tokens} | judge(policy, config)
    figures["minutes"] = (time.perf_counter() - began) / 60
    episodes = EpisodeCard(
        env=ENV, prompt=PROMPT, format="template", turn_tokens=TURN_TOKENS, context_tokens=CONTEXT_TOKENS
    )
    parameters = sum(p.numel() for p in policy.model.parameters())
    text = _CARD.format(config=config, parameters=parameters, kinds=", ".join(config.templates), **figures)
    write_policy(policy, figures, episodes, text, out)
    return figures


def judge(policy: HFPolicy, config: DesktopWarmstartConfig) -> dict[str, float]:
    """The share of unseen tasks that the policy solves on the live desktop: ``greedy`` and ``sampled``."""
    tasks = DomSim.make_tasks(config.judged, seed=config.seed, split="dev", templates=config.templates)
    chat, figures = TemplateFormat(policy.tokenizer), {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        budgets = RolloutConfig(CONTEXT_TOKENS, TURN_TOKENS, temperature=temperature, stop=STOP)
        played = play(policy, chat, lambda: DomSim(**OPTIONS), tasks, budgets, name=name)
        figures[name] = sum(t.reward for t in played) / len(played)
    return figures


_CARD = """\
# A small policy for a miniature desktop

A Qwen2 of {parameters:,} parameters ({config.layers} layers, {config.heads} heads of 32) with its own tokenizer. Made from
nothing by `agentenv warmstart --env desktop --seed {config.seed}`: {tokens:,} tokens of demonstrations of the training
split in {minutes:.0f} minutes. It errs on purpose: of {config.judged} unseen tasks it solves {greedy:.3f} greedy and
{sampled:.3f} sampled. It knows `agentenv/DomSim-v0` as whole contexts without places (`window = 8`,
`places = false`), these kinds of task, and nothing else: {kinds}.
"""
