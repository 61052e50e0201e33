"""The training phase of ReST-RL's value model: searches of training questions in which the verifier says what is worth what.

ReST-RL, 2025, arXiv:2508.19576. The policy of a run searches questions by ``vm_mcts``, where a continuation is worth the
reward that it earned. Every state that was expanded has the mean of its visits, and every complete episode its reward. A
value model is fitted to them (``learner/value_training.py``).
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentenv.core.io.files import write_text
from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError
from agentenv.evaluation.runner import play, valid_episodes
from agentenv.policies.compute import ComputeSettings, use_compute
from agentenv.policies.hf import HFPolicy
from agentenv.policies.policy_spec import make_policy
from agentenv.progress import Display
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.value_training import LabelledEpisode
from agentenv.trainers.loop.parts import make_chat_format, open_questions, rollout_config
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import play_groups
from agentenv.trainers.strategies.value_records import STATES
from agentenv.trainers.strategies.value_search import ValueSearchStrategy

_AT_ONCE = 8  # searches; each has an environment for every state that it may go on from


def search_states(
    config: TrainConfig,
    policy_spec: str,
    questions: int,
    strategy: ValueSearchStrategy,
    compute: ComputeSettings,
    display: Display,
) -> list[LabelledEpisode]:
    """The states that searches of the first training questions of a run came to. A search that fails leaves none.

    Args:
        config: Of the run: questions, environment and budgets.
        policy_spec: Who searches.
        questions: How many are searched.
        strategy: The search, with the verifier for a value.
        compute: Where the policy computes.
        display: Told of the progress.

    Raises:
        ConfigurationError: the questions may lie on the disk in encrypted form only.
        EnvFault: every search met an infrastructure failure.
    """
    policy = make_policy(policy_spec, compute)
    with use_compute(compute):
        task_env = open_questions(config.train, config.search, config.env, policy, display)
    tasks = task_env.source.tasks[:questions]
    if sealed := [task.id for task in tasks if "canary" in task.data]:
        raise ConfigurationError(
            f"the text of question {sealed[0]!r} must not be stored unencrypted, as states of a search are"
        )
    chat = make_chat_format(config.format, config.chat, policy)
    budgets = rollout_config(config.rollout, config.env, temperature=config.rollout.temperature)
    display.phase("search with the verifier", len(tasks))
    kept: list[Trajectory] = []
    for begin in range(0, len(tasks), _AT_ONCE):
        chunk = tasks[begin : begin + _AT_ONCE]
        roll = partial(_searched, strategy)
        kept += play(
            policy, chat, task_env.make_env, chunk, budgets, seed=begin, name=f"search-{begin}", roll=roll
        )
        display.advance(len(kept), {})
    return [
        LabelledEpisode(found.task.id, tuple(map(tuple, record["pieces"])), record["targets"])
        for found in valid_episodes(kept)
        for record in found.info[STATES]
    ]


async def _searched(
    strategy: ValueSearchStrategy,
    specs: Sequence[EpisodeSpec],
    policy: HFPolicy,
    chat: ChatFormat,
    config: RolloutConfig,
    *,
    name: str,
) -> list[Trajectory]:
    """Plays searches as ``rollout`` plays episodes."""
    context = RolloutContext(policy, chat, config, policy.tokenizer.decode, name=name)
    groups = await play_groups([[spec] for spec in specs], strategy, context)
    return [kept for group in groups for kept in group]


def write_states(path: Path, episodes: Sequence[LabelledEpisode]) -> None:
    """Writes one line for each episode: its task, its pieces, and the value of states by the number of turns before them."""
    lines = (
        json.dumps(
            {"task": one.task, "pieces": one.pieces, "targets": {str(n): v for n, v in one.targets.items()}},
            ensure_ascii=False,
        )
        for one in episodes
    )
    write_text(path, "".join(f"{line}\n" for line in lines))
