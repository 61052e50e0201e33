"""``agentenv warmstart --env code``: a small policy for small programming tasks that errs often, by supervised learning.

It imitates careless demonstrators in ``agentenv/Code-v0`` over generated tasks of the training split. They try a
program out, whole or step by step in a kept interpreter, and then hand one in. Most slip first, so that the first try ends
in an error, and about half of these mend it.
What they are shown is what the environment showed them. So the policy can write the right program and does not always:
what there is for rollback and reinforcement learning to find.
"""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.registry import make
from agentenv.core.rollout import RolloutConfig
from agentenv.core.types import Task
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.code import STOP, TAGS
from agentenv.errors import ConfigurationError, SandboxFault
from agentenv.evaluation.runner import play, valid_episodes
from agentenv.policies.card import EpisodeCard
from agentenv.policies.hf import HFPolicy
from agentenv.progress import Display
from agentenv.sandbox.types import ExecStatus
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.warmstart.code_demonstrators import step_by_step, whole_programs
from agentenv.trainers.warmstart.demonstrations import Demo, Piece
from agentenv.trainers.warmstart.small_policies import SmallPolicyConfig, imitating_policy
from agentenv.trainers.warmstart.supervised import Metrics, write_policy

ENV = "agentenv/Code-v0"
_PLAYS = 3  # of one demonstration


@dataclass(frozen=True)
class CodeWarmstartConfig(SmallPolicyConfig):
    """How the policy is made."""

    difficulty: int = 1
    """Steps of a task before its last."""
    stateful: bool = False
    """Whether programs are tried step by step in an interpreter that is kept, instead of whole."""
    careless: float = 0.75
    """Share of the first tries that fail, of a program or of a step."""

    def __post_init__(self) -> None:
        if not 0 <= self.careless <= 1:
            raise ConfigurationError(f"careless must be within 0 and 1, not {self.careless}")

    @property
    def episodes_like(self) -> EpisodeCard:
        """The form of the episodes that the policy learns."""
        turns = 2 * self.difficulty + 2 if self.stateful else 3
        context = 896 if self.stateful else 512
        return EpisodeCard(
            env=ENV,
            prompt="{question}",
            max_turns=turns,
            turn_tokens=80,
            context_tokens=context,
            options={"stateful": self.stateful, "observation_chars": 160},
        )

    @property
    def options(self) -> dict[str, Any]:
        """Options of the environment that the policy learns."""
        card = self.episodes_like
        return {**card.options, "max_turns": card.max_turns, "prompt": card.prompt}


def demonstrations(config: CodeWarmstartConfig) -> list[Demo]:
    """One episode a task, played in the sandbox.

    Raises:
        SandboxFault: the sandbox failed, or stopped one task's program time and again.
    """
    rng = Random(config.seed)
    tasks = generate_code_tasks(config.tasks, seed=config.seed, steps=config.difficulty, split="train")
    show = (step_by_step if config.stateful else whole_programs)(config.careless)
    with closing(make(ENV, tasks=tasks, **config.options)) as env:
        return [_play_demonstration(env, task, show(task, rng)) for task in tasks]


def _play_demonstration(env: Env[Any], task: Task, actions: Sequence[str]) -> Demo:
    """The episode of one task; played again where a program was stopped, as these end by themselves at once.

    Raises:
        SandboxFault: that happened `_PLAYS` times.
    """
    for _ in range(_PLAYS):
        opening, _info = env.reset(seed=0, options={"task": task})
        demo, ended = [Piece("opening", opening[0].text)], set[str]()
        for action in actions[:-1]:
            step = env.step(action)
            ended.add(step.info["tool_results"][0].data["status"])
            page = "".join(message.text for message in step.observation)
            demo += [Piece("own", action), Piece("page", page)]
        if ended <= {ExecStatus.OK, ExecStatus.ERROR}:
            return [*demo, Piece("own", actions[-1])]
    raise SandboxFault(
        f"a demonstrator's program for task {task.id!r} was stopped {_PLAYS} times ({', '.join(sorted(ended))}), although "
        "it ends by itself at once; is the machine overloaded?"
    )


@flushed_denormals()
def code_warmstart(config: CodeWarmstartConfig, display: Display, out: Path) -> Metrics:
    """Makes the policy and writes it to ``out``.

    Returns:
        The metrics of its card: tokens seen, minutes, and on unseen tasks the mean outcome, greedy and sampled, and the
        share of its first tries that fail when sampled.

    Raises:
        SandboxFault: the sandbox failed.
    """
    began = time.perf_counter()
    display.phase("demonstrations", config.tasks)
    policy, tokens = imitating_policy(demonstrations(config), (*TAGS, "output"), config, display)
    metrics: Metrics = {"tokens": tokens} | judge(policy, config)
    metrics["minutes"] = (time.perf_counter() - began) / 60
    parameters = sum(p.numel() for p in policy.model.parameters())
    kept = "with" if config.stateful else "without"
    write_policy(
        policy,
        metrics,
        config.episodes_like,
        _CARD.format(config=config, parameters=parameters, kept=kept, **metrics),
        out,
    )
    return metrics


def judge(policy: HFPolicy, config: CodeWarmstartConfig) -> dict[str, float]:
    """How the policy does on unseen tasks: ``greedy`` and ``sampled`` mean outcome, ``first_tries_failed`` when sampled.

    Raises:
        EnvFault: every episode met an infrastructure failure; single ones are left out.
    """
    tasks = generate_code_tasks(config.judged, seed=config.seed, steps=config.difficulty, split="dev")
    card, chat, metrics = config.episodes_like, InlineFormat(policy.tokenizer), {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        budgets = RolloutConfig(
            context_tokens=card.context_tokens,
            turn_tokens=card.turn_tokens,
            temperature=temperature,
            stop=STOP,
        )
        played = valid_episodes(
            play(policy, chat, lambda: make(ENV, tasks=tasks, **config.options), tasks, budgets, name=name)
        )
        metrics[name] = fmean(t.reward for t in played)
    tried = [t.turns[0].tool_results[0].error_class for t in played if t.turns]
    return metrics | {"first_tries_failed": sum(map(bool, tried)) / max(len(tried), 1)}


_CARD = """\
# A small policy for small programming tasks

A Qwen2 of {parameters:,} parameters ({config.layers} layers, {config.heads} heads of 32) with its own tokenizer. Made from
nothing by `agentenv warmstart --env code --seed {config.seed}`: {tokens:,} tokens of demonstrations over generated tasks of
the training split in {minutes:.0f} minutes. It errs on purpose: on {config.judged} unseen tasks it scores {greedy:.3f}
greedy and {sampled:.3f} sampled, and {first_tries_failed:.0%} of its first tries fail. It knows `agentenv/Code-v0` {kept} a
kept interpreter, tasks of {config.difficulty} steps before the last, and nothing else.
"""
