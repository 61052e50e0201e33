"""``agentenv warmstart --env sql``: a small policy for questions over databases that errs often, by supervised learning.

It imitates careless demonstrators over generated databases. Most of their tables, columns and words have invented names,
which is to teach how a question becomes a query; what was measured is that it learns its names by heart all the same, and
can ask only about domains that it has seen. Half of the episodes have the tags of
``agentenv/SQL-v0``; half have those of ``agentenv/ReExSQL-v0``, another opening message, and more queries that are tried.
The demonstrators say where they look or forget to, try a query or not, and hand in what is wrong or mend it, so that there
is something to find under every reward of these environments.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.registry import make
from agentenv.core.rollout import RolloutConfig
from agentenv.core.types import Task
from agentenv.data.invented_domains import invented_domain
from agentenv.data.sql_domains import DOMAINS, Domain
from agentenv.data.sql_tasks import generate_sql_tasks
from agentenv.data.world_config import Split
from agentenv.envs.reex_sql import ReExSQL
from agentenv.envs.sql import Sql
from agentenv.errors import ConfigurationError
from agentenv.evaluation.runner import play, valid_episodes
from agentenv.policies.card import EpisodeCard
from agentenv.policies.hf import HFPolicy
from agentenv.progress import Display
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.warmstart.demonstrations import Demo, Piece
from agentenv.trainers.warmstart.small_policies import SmallPolicyConfig, imitating_policy
from agentenv.trainers.warmstart.sql_demonstrators import queries
from agentenv.trainers.warmstart.supervised import Metrics, write_policy

LEVELS = (1, 2)
"""Questions over one table, which name all that their query needs."""
ORIGINAL = 4
"""One database of a domain in so many keeps the names of this domain."""
MAX_TURNS, TURN_TOKENS, CONTEXT_TOKENS = 3, 96, 640
OBSERVATION_CHARS = 160


@dataclass(frozen=True)
class Form:
    """How episodes of one environment look."""

    env: str
    kind: type[Sql]
    prompt: str
    looks: Sequence[int]
    """How often demonstrators look; see `queries`."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of the environment."""
        return {"max_turns": MAX_TURNS, "observation_chars": OBSERVATION_CHARS, "prompt": self.prompt}


PLAIN = Form("agentenv/SQL-v0", Sql, "{question}\n", (0, 1))
EXPLORING = Form("agentenv/ReExSQL-v0", ReExSQL, "Explore first. {question}\n", (0, 1, 2))
FORMS = (PLAIN, EXPLORING)


@dataclass(frozen=True)
class SqlWarmstartConfig(SmallPolicyConfig):
    """How the policy is made."""

    tasks: int = 2400
    """Demonstrated questions over databases of the training split; they are gone through again and again."""
    databases: int = 120
    """Databases, with their twins, that these are about."""
    careless: float = 0.6
    """Share of the first queries with a slip."""

    def __post_init__(self) -> None:
        if not 0 <= self.careless <= 1:
            raise ConfigurationError(f"careless must be within 0 and 1, not {self.careless}")


def demonstrations(config: SqlWarmstartConfig) -> list[Demo]:
    """One episode a question, played over its database, in the forms in turn.

    Raises:
        SandboxFault: a database could not be read.
    """
    rng = Random(config.seed)
    tasks = demonstrated_tasks(config, rng)
    shown = [_shown(form, tasks[n :: len(FORMS)], config.careless, rng) for n, form in enumerate(FORMS)]
    return [demo for demos in shown for demo in demos]


def demonstrated_tasks(config: SqlWarmstartConfig, rng: Random) -> Sequence[Task]:
    """The questions that are demonstrated; ``rng`` invents the names of their databases."""
    return generate_sql_tasks(
        config.tasks,
        seed=config.seed,
        levels=LEVELS,
        databases=config.databases,
        domains=_domains(config.databases, rng),
    )


def _domains(count: int, rng: Random) -> Mapping[str, Domain]:
    """Domains of the training split in turn; each keeps its names in one round of ``ORIGINAL``."""
    kinds = DOMAINS["train"].values()
    # By rounds: of every fourth database some domains would keep all of their names and others none.
    rounds = ((place, place // len(kinds), kind) for place, kind in enumerate(islice(cycle(kinds), count)))
    return {
        f"{place:04d}": kind if turn % ORIGINAL == 0 else invented_domain(kind, rng)
        for place, turn, kind in rounds
    }


def _shown(form: Form, tasks: Sequence[Task], careless: float, rng: Random) -> list[Demo]:
    """The episodes of one form."""
    show = queries(careless, form.kind.tags, form.looks)
    with closing(make(form.env, tasks=tasks, **form.options)) as env:
        return [_play_demonstration(env, task, show(task, rng)) for task in tasks]


def _play_demonstration(env: Env[Any], task: Task, actions: Sequence[str]) -> Demo:
    opening, _info = env.reset(seed=0, options={"task": task})
    demo = [Piece("opening", opening[0].text)]
    for action in actions[:-1]:
        page = "".join(message.text for message in env.step(action).observation)
        demo += [Piece("own", action), Piece("page", page)]
    return [*demo, Piece("own", actions[-1])]


@flushed_denormals()
def sql_warmstart(config: SqlWarmstartConfig, display: Display, out: Path) -> Metrics:
    """Makes the policy and writes it to ``out``.

    Returns:
        The metrics of its card: tokens seen, minutes, and the share of right queries for questions over other databases of
        the domains of the training split in the form of SQL-v0, ``greedy`` and ``sampled``, and sampled in that of
        ReExSQL-v0, ``exploring``; and about domains of the dev split, ``unseen``.

    Raises:
        SandboxFault: a database could not be read.
    """
    began = time.perf_counter()
    display.phase("demonstrations", config.tasks)
    tags = ("think", "result", *(tag for form in FORMS for tag in form.kind.tags))
    policy, tokens = imitating_policy(demonstrations(config), tags, config, display)
    judged = {
        "greedy": judge(policy, PLAIN, config, 0.0, "train"),
        "sampled": judge(policy, PLAIN, config, 1.0, "train"),
        "exploring": judge(policy, EXPLORING, config, 1.0, "train"),
        "unseen": judge(policy, PLAIN, config, 0.0, "dev"),
    }
    minutes = (time.perf_counter() - began) / 60
    metrics: Metrics = {"tokens": tokens, "minutes": minutes} | judged
    card = EpisodeCard(
        env=PLAIN.env,
        prompt=PLAIN.prompt,
        max_turns=MAX_TURNS,
        turn_tokens=TURN_TOKENS,
        context_tokens=CONTEXT_TOKENS,
        options={"observation_chars": OBSERVATION_CHARS},
    )
    parameters = sum(p.numel() for p in policy.model.parameters())
    text = _CARD.format(config=config, parameters=parameters, prompt=EXPLORING.prompt.rstrip("\n"), **metrics)
    write_policy(policy, metrics, card, text, out)
    return metrics


def judge(
    policy: HFPolicy, form: Form, config: SqlWarmstartConfig, temperature: float, split: Split
) -> float:
    """The share of right queries for questions about domains of ``split``, over databases that nobody demonstrated.

    Raises:
        EnvFault: every episode met an infrastructure failure; single ones are left out.
    """
    tasks = generate_sql_tasks(config.judged, seed=config.seed + 1, split=split, levels=LEVELS)
    budgets = RolloutConfig(
        context_tokens=CONTEXT_TOKENS,
        turn_tokens=TURN_TOKENS,
        temperature=temperature,
        stop=form.kind.stop,
    )
    options = form.options | {"reward": "execution"}
    chat = InlineFormat(policy.tokenizer)
    played = play(policy, chat, lambda: make(form.env, tasks=tasks, **options), tasks, budgets, name="dev")
    return fmean(trajectory.reward for trajectory in valid_episodes(played))


_CARD = """\
# A small policy for questions over databases

A Qwen2 of {parameters:,} parameters ({config.layers} layers, {config.heads} heads of 32) with its own tokenizer. Made from
nothing by `agentenv warmstart --env sql --seed {config.seed}`: {tokens:,} tokens of demonstrations over {config.databases}
databases of the training split, most of them with invented names, in {minutes:.0f} minutes. It errs on purpose: of
{config.judged} questions over other databases of the same six domains, {greedy:.3f} of its queries are right greedily and
{sampled:.3f} sampled; {exploring:.3f} sampled in `agentenv/ReExSQL-v0`, whose opening message is `{prompt}`.
About domains that it has not seen {unseen:.3f} are right greedily. It knows these two forms, questions over one table
(levels 1 and 2), and nothing else.
"""
