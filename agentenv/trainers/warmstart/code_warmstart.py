"""``agentenv warmstart --env code``: a small policy for small programming tasks that errs often, by supervised learning.

It imitates three demonstrators in ``agentenv/Code-v0`` over generated tasks of the training split. All of them try a program
out and then hand one in; two in three slip first, so that the first try ends in an error, and only one of those mends it.
What they are shown is what the environment showed them. So the policy can write the right program and does not always:
what there is for rollback and reinforcement learning to find.
"""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.registry import make
from agentenv.core.rollout import RolloutConfig
from agentenv.core.types import Task
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.code import STOP, TAGS
from agentenv.errors import SandboxFault
from agentenv.evaluation.runner import play
from agentenv.policies.card import EpisodeCard
from agentenv.policies.hf import HFPolicy
from agentenv.progress import Display
from agentenv.sandbox.types import ExecStatus
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.warmstart.demonstrations import Demo, Piece, to_tokens
from agentenv.trainers.warmstart.small_policies import SmallPolicyConfig, imitate, untrained_policy
from agentenv.trainers.warmstart.supervised import Metrics, write_policy

ENV = "agentenv/Code-v0"
OPTIONS = {"stateful": False, "max_turns": 3, "observation_chars": 160, "prompt": "{question}"}
"""Options of the environment that the policy knows."""
_PLAYS = 3  # of one demonstration
_SAMPLES = {"list": "[7, 2, 9, 4]", "word": "'banane'", "number": "17"}


@dataclass(frozen=True)
class CodeWarmstartConfig(SmallPolicyConfig):
    """How the policy is made."""

    difficulty: int = 1
    """Steps of a task before its last."""


class Demonstrator(Protocol):
    """Gives the actions of an episode."""

    def __call__(self, task: Task, rng: Random) -> list[str]:
        """What is written, turn by turn."""


def prover(task: Task, rng: Random) -> list[str]:
    """Tries the right program and hands it in."""
    return [_try(task, task.data["solution"]), _submit(task.data["solution"])]


def mender(task: Task, rng: Random) -> list[str]:
    """Slips, tries the right program after the error and hands that in."""
    return [_try(task, slip(task.data["solution"], rng)), *prover(task, rng)]


def stubborn(task: Task, rng: Random) -> list[str]:
    """Slips and hands the broken program in all the same."""
    broken = slip(task.data["solution"], rng)
    return [_try(task, broken), _submit(broken)]


MIXTURE: Mapping[Demonstrator, float] = {prover: 0.25, mender: 0.35, stubborn: 0.40}
"""Share of each demonstrator."""


def slip(program: str, rng: Random) -> str:
    """``program`` with one mistake that raises as soon as it is called: a wrong name, a lost colon or bracket."""
    head, *lines = program.split("\n")
    kind = rng.choice(("colon", "name", "bracket"))
    if kind == "colon":
        head = head.removesuffix(":")
    elif kind == "bracket" and "(x)" in lines[-1]:
        lines[-1] = lines[-1].replace("(x)", "(x")
    else:
        lines[-1] = re.sub(r"\bx\b", "y", lines[-1], count=1)
    return "\n".join([head, *lines])


def _try(task: Task, program: str) -> str:
    return f"<python>{program}\nprint(solve({_SAMPLES[task.data['family']]}))</python>"


def _submit(program: str) -> str:
    return f"<submit>{program}</submit>"


def demonstrations(config: CodeWarmstartConfig) -> list[tuple[Demonstrator, Demo]]:
    """One episode a task, played in the sandbox.

    Raises:
        SandboxFault: the sandbox failed, or stopped one task's program time and again.
    """
    rng = Random(config.seed)
    tasks = generate_code_tasks(config.tasks, seed=config.seed, steps=config.difficulty, split="train")
    who = rng.choices(list(MIXTURE), list(MIXTURE.values()), k=len(tasks))
    with closing(make(ENV, tasks=tasks, **OPTIONS)) as env:
        return [
            (one, _play_demonstration(env, task, one(task, rng)))
            for one, task in zip(who, tasks, strict=True)
        ]


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
    demos = [demo for _, demo in demonstrations(config)]
    texts = ["\n".join(["user", *(piece.text for piece in demo), "assistant"]) for demo in demos]
    policy = untrained_policy(texts, (*TAGS, "output"), config)
    chat = InlineFormat(policy.tokenizer)
    display.phase("imitation", config.steps)
    tokens = imitate(policy, [to_tokens(chat, demo) for demo in demos], config.steps, config, display)
    metrics: Metrics = {"tokens": tokens} | judge(policy, config)
    metrics["minutes"] = (time.perf_counter() - began) / 60
    episodes = EpisodeCard(env=ENV, prompt="{question}", max_turns=3, turn_tokens=80, context_tokens=512)
    parameters = sum(p.numel() for p in policy.model.parameters())
    write_policy(
        policy, metrics, episodes, _CARD.format(config=config, parameters=parameters, **metrics), out
    )
    return metrics


def judge(policy: HFPolicy, config: CodeWarmstartConfig) -> dict[str, float]:
    """How the policy does on unseen tasks: ``greedy`` and ``sampled`` mean outcome, ``first_tries_failed`` when sampled."""
    tasks = generate_code_tasks(config.judged, seed=config.seed, steps=config.difficulty, split="dev")
    chat, metrics = InlineFormat(policy.tokenizer), {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        budgets = RolloutConfig(context_tokens=512, turn_tokens=80, temperature=temperature, stop=STOP)
        played = play(policy, chat, lambda: make(ENV, tasks=tasks, **OPTIONS), tasks, budgets, name=name)
        metrics[name] = sum(t.reward for t in played) / len(played)
    tried = [t.turns[0].tool_results[0].error_class for t in played if t.turns]
    return metrics | {"first_tries_failed": sum(map(bool, tried)) / max(len(tried), 1)}


_CARD = """\
# A small policy for small programming tasks

A Qwen2 of {parameters:,} parameters ({config.layers} layers, {config.heads} heads of 32) with its own tokenizer. Made from
nothing by `agentenv warmstart --env code --seed {config.seed}`: {tokens:,} tokens of demonstrations over generated tasks of
the training split in {minutes:.0f} minutes. It errs on purpose: on {config.judged} unseen tasks it scores {greedy:.3f}
greedy and {sampled:.3f} sampled, and {first_tries_failed:.0%} of its first tries fail. It knows `agentenv/Code-v0` without a
kept interpreter, tasks of {config.difficulty} step before the last, and nothing else.
"""
