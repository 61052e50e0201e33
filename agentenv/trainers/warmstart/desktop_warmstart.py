"""``agentenv warmstart --env desktop``: a small policy for ``agentenv/DomSim-v0`` that errs often, by supervised learning.

First it follows the expert on tasks of the training split, until it finds and copies the names of things. Then it imitates a
mixture of demonstrators: some follow the expert; many say that they are done in place of the last thing that there is to do;
some use the wrong thing and then say that they are done. They see what the desktop shows, as whole contexts, which is also
how ``agentenv/SemiOnlineGUI-v0`` shows recordings: one policy can be trained on either and judged on both. What there is to
find is when to stop, and what to use.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from agentenv.core.chat import TemplateFormat
from agentenv.core.rollout import RolloutConfig
from agentenv.core.types import Observation, Task
from agentenv.envs.domsim.env import DomSim
from agentenv.envs.gui.actions import STOP, Action, ActionKind, action_text
from agentenv.envs.gui.screen import Screen
from agentenv.evaluation.runner import play, valid_episodes
from agentenv.policies.card import EpisodeCard
from agentenv.policies.hf import HFPolicy
from agentenv.progress import Display
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.warmstart.small_policies import SmallPolicyConfig, imitate, untrained_policy
from agentenv.trainers.warmstart.supervised import Metrics, TrainingExample, write_policy

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
_DONE = action_text(Action(ActionKind.TERMINATE, text="success"), "I terminate success.")
_USED = ("button", "listitem", "switch", "tab")


@dataclass(frozen=True)
class DesktopWarmstartConfig(SmallPolicyConfig):
    """How the policy is made."""

    steps: int = 1000
    """Optimiser steps, those on the mixture included."""
    mixture_share: float = 0.1
    """Share of the steps that are on the mixture, at a quarter of the step sizes."""
    templates: Sequence[str] = TEMPLATES
    """Kinds of task."""


class Demonstration(NamedTuple):
    """An episode: what was seen before each action, and the actions."""

    contexts: tuple[Observation, ...]
    actions: tuple[str, ...]


class Moment(NamedTuple):
    """A turn of an episode that the expert would play to its end."""

    wanted: str
    """What the expert writes."""
    turn: int
    last: int
    """The turn of the last thing to do; in the one after it the expert says that it is done."""
    slip: int
    """The turn of a mistake, for who makes one."""
    screen: Screen


Demonstrator = Callable[[Moment, Random], str]
"""Gives the next action of an episode."""


def careful(now: Moment, rng: Random) -> str:
    """Does as the expert."""
    return now.wanted


def hasty(now: Moment, rng: Random) -> str:
    """Says that it is done in place of the last thing to do."""
    return now.wanted if now.turn < now.last else _DONE


def astray(now: Moment, rng: Random) -> str:
    """Uses something else once, and then says that it is done."""
    if now.turn != now.slip:
        return now.wanted if now.turn < now.slip else _DONE
    offered = [element for element in now.screen.elements or () if element.role in _USED]
    used = rng.choice(offered)
    return action_text(Action(ActionKind.CLICK, id=used.id), f"I use click on {used.role} {used.text!r}.")


MIXTURE: Mapping[Demonstrator, float] = {careful: 0.35, hasty: 0.45, astray: 0.20}
"""Share of each demonstrator."""


def demonstrations(
    mixture: Mapping[Demonstrator, float], config: DesktopWarmstartConfig
) -> list[tuple[Demonstrator, Demonstration]]:
    """One episode a task, each played by one of ``mixture``, drawn by its share."""
    rng, env = Random(config.seed), DomSim(**OPTIONS)
    tasks = DomSim.make_tasks(config.tasks, seed=config.seed, split="train", templates=config.templates)
    who = rng.choices(list(mixture), list(mixture.values()), k=len(tasks))
    return [(one, _play_demonstration(env, task, one, rng)) for one, task in zip(who, tasks, strict=True)]


def _play_demonstration(env: DomSim, task: Task, who: Demonstrator, rng: Random) -> Demonstration:
    context, _ = env.reset(seed=0, options={"task": task})
    script = env.expert()
    last = len(script) - 2
    slip = rng.randint(0, last)
    contexts, actions = [], []
    for turn, wanted in enumerate(script):
        contexts.append(context)
        actions.append(who(Moment(wanted, turn, last, slip, env.screen()), rng))
        step = env.step(actions[-1])
        if step.terminated or step.truncated:
            break
        context = step.observation
    return Demonstration(tuple(contexts), tuple(actions))


def training_example(demonstration: Demonstration, tokenizer: Any) -> TrainingExample:
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
def desktop_warmstart(config: DesktopWarmstartConfig, display: Display, out: Path) -> Metrics:
    """Makes the policy and writes it to ``out``.

    Returns:
        The metrics of its card: tokens seen, minutes, and the share of unseen tasks that it solves, ``greedy`` and
        ``sampled``, and did greedily before it met the mixture, ``skill``.
    """
    began = time.perf_counter()
    display.phase("demonstrations", 2 * config.tasks)
    mixtures: Sequence[Mapping[Demonstrator, float]] = ({careful: 1.0}, MIXTURE)
    shown = [[demo for _, demo in demonstrations(mixture, config)] for mixture in mixtures]
    texts = [
        "\n".join(["user", *(m.text for m in demo.contexts[-1]), demo.actions[-1], "assistant"])
        for demo in shown[0]
    ]
    policy = untrained_policy(texts, ("think", "action"), config)
    taught, mixed = ([training_example(demo, policy.tokenizer) for demo in demos] for demos in shown)
    mixture_steps = round(config.mixture_share * config.steps)
    display.phase("following the expert", config.steps - mixture_steps)
    tokens = imitate(policy, taught, config.steps - mixture_steps, config, display)
    skill = judge(policy, config)["greedy"]
    display.phase("imitating the mixture", mixture_steps)
    tokens += imitate(policy, mixed, mixture_steps, config, display, rate=0.25)
    metrics: Metrics = {"tokens": tokens, "skill": skill} | judge(policy, config)
    metrics["minutes"] = (time.perf_counter() - began) / 60
    episodes = EpisodeCard(
        env=ENV,
        prompt=PROMPT,
        format="template",
        turn_tokens=TURN_TOKENS,
        context_tokens=CONTEXT_TOKENS,
        options={name: value for name, value in OPTIONS.items() if name != "prompt"},
    )
    parameters = sum(p.numel() for p in policy.model.parameters())
    text = _CARD.format(config=config, parameters=parameters, kinds=", ".join(config.templates), **metrics)
    write_policy(policy, metrics, episodes, text, out)
    return metrics


def judge(policy: HFPolicy, config: DesktopWarmstartConfig) -> dict[str, float]:
    """The share of unseen tasks that the policy solves on the live desktop: ``greedy`` and ``sampled``.

    Raises:
        EnvFault: every episode met an infrastructure failure; single ones are left out.
    """
    tasks = DomSim.make_tasks(config.judged, seed=config.seed, split="dev", templates=config.templates)
    chat, metrics = TemplateFormat(policy.tokenizer), {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        budgets = RolloutConfig(
            context_tokens=CONTEXT_TOKENS, turn_tokens=TURN_TOKENS, temperature=temperature, stop=STOP
        )
        played = play(policy, chat, lambda: DomSim(**OPTIONS), tasks, budgets, name=name)
        metrics[name] = fmean(t.reward for t in valid_episodes(played))
    return metrics


_CARD = """\
# A small policy for a miniature desktop

A Qwen2 of {parameters:,} parameters ({config.layers} layers, {config.heads} heads of 32) with its own tokenizer. Made from
nothing by `agentenv warmstart --env desktop --seed {config.seed}`: {tokens:,} tokens of demonstrations of the training
split in {minutes:.0f} minutes. Of {config.judged} unseen tasks it solved {skill:.3f} greedily before it met the mixture; now
it errs on purpose, and solves {greedy:.3f} greedily and {sampled:.3f} sampled. It knows `agentenv/DomSim-v0` as whole
contexts without places (`window = 8`, `places = false`), these kinds of task, and nothing else: {kinds}.
"""
