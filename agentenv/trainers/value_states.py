"""The training phase of ReST-RL's value model: searches of training questions in which the verifier says what is worth what.

ReST-RL, 2025, arXiv:2508.19576. The policy of a run searches questions by ``vm_mcts``, where a continuation is worth the
reward that it earned. Every state that was expanded has the mean of its visits, and every complete episode its reward. A
value model is fitted to them (``learner/value_training.py``).

Searches take hours, so what they found is written down as soon as a few of them are over, and a search that was killed goes
on from there.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentenv.core.io.digests import value_digest
from agentenv.core.io.files import append_lines, write_text
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError
from agentenv.evaluation.runner import play, valid_episodes
from agentenv.policies.compute import ComputeSettings, use_compute
from agentenv.policies.hf import HFPolicy
from agentenv.policies.policy_spec import make_policy, policy_digest
from agentenv.progress import Display
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.value_training import LabelledEpisode
from agentenv.trainers.loop.parts import make_chat_format, open_questions, rollout_config
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import play_groups
from agentenv.trainers.strategies.value_records import STATES
from agentenv.trainers.strategies.value_search import ValueSearchStrategy

_AT_ONCE = 8  # searches; each has an environment for every state that it may go on from


class SearchJournal:
    """The states of finished searches, written down as they are found.

    The first line of the file says of what the searches are; every other one holds the states of searches that were played
    at once. A line that a kill cut off, and whatever follows it, does not count.

    Args:
        path: The file, made with the first states.
        of: What the states depend on.

    Raises:
        ConfigurationError: the file holds states of other searches.
    """

    def __init__(self, path: Path, of: str) -> None:
        self._path, self._head = path, json.dumps({"searches_of": of})
        self.found: dict[int, list[LabelledEpisode]] = {}
        """By the place of the first question of those that were searched at once."""
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
        if lines and lines[0] != self._head.encode():
            raise ConfigurationError(
                f"{path} holds states that were searched with other questions, settings or weights: remove it, or choose "
                "another --out"
            )
        kept = lines[:1]
        for line in lines[1:]:
            try:
                record = read_json_text(line)
                self.found[int(record["begin"])] = [_episode(one) for one in record["episodes"]]
            except (ValueError, TypeError, KeyError, AttributeError):  # it was cut off or damaged
                break
            kept.append(line)
        if path.is_file():
            write_text(path, b"".join(line + b"\n" for line in kept).decode())

    def add(self, begin: int, episodes: Sequence[LabelledEpisode]) -> None:
        """Adds what the searches found whose first question has the place ``begin``, and waits until it is on the disk."""
        record = {"begin": begin, "episodes": [_record(one) for one in episodes]}
        is_new = not self._path.is_file() or not self._path.stat().st_size
        head = [self._head] if is_new else []
        append_lines(self._path, [*head, json.dumps(record, ensure_ascii=False)])
        self.found[begin] = list(episodes)


def search_states(
    config: TrainConfig,
    policy_spec: str,
    questions: int,
    strategy: ValueSearchStrategy,
    compute: ComputeSettings,
    display: Display,
    kept_in: Path,
) -> list[LabelledEpisode]:
    """The states that searches of the first training questions of a run came to. A search that fails leaves none.

    Args:
        config: Of the run: questions, environment and budgets.
        policy_spec: The policy that searches.
        questions: How many are searched.
        strategy: The search, with the verifier for a value.
        compute: Where the policy computes.
        display: Told of the progress.
        kept_in: File of a ``SearchJournal``; searches that stand there are not played again.

    Raises:
        ConfigurationError: the questions may lie on the disk in encrypted form only, or ``kept_in`` holds other searches.
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
    of = [config.model_dump(mode="json"), policy_digest(policy_spec), strategy, tasks]
    journal = SearchJournal(kept_in, value_digest(of))
    chat = make_chat_format(config.format, config.chat, policy)
    budgets = rollout_config(config.rollout, config.env, temperature=config.rollout.temperature)
    display.phase("search with the verifier", len(tasks))
    failed: list[Trajectory] = []
    for begin in range(0, len(tasks), _AT_ONCE):
        chunk = tasks[begin : begin + _AT_ONCE]
        if begin not in journal.found:
            roll = partial(_searched, strategy)
            played = play(
                policy, chat, task_env.make_env, chunk, budgets, seed=begin, name=f"search-{begin}", roll=roll
            )
            # Where all have failed, something is out of order that the next start may find repaired.
            if any(one.valid for one in played):
                journal.add(begin, _labelled(played))
            else:
                failed += played
        display.advance(begin + len(chunk), {})
    if not journal.found:
        valid_episodes(failed)
    return [episode for begin in sorted(journal.found) for episode in journal.found[begin]]


def _labelled(played: Sequence[Trajectory]) -> list[LabelledEpisode]:
    return [
        LabelledEpisode(found.task.id, tuple(map(tuple, record["pieces"])), record["targets"])
        for found in valid_episodes(played)
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
    write_text(path, "".join(f"{json.dumps(_record(one), ensure_ascii=False)}\n" for one in episodes))


def _record(one: LabelledEpisode) -> dict[str, Any]:
    return {"task": one.task, "pieces": one.pieces, "targets": {str(n): v for n, v in one.targets.items()}}


def _episode(record: dict[str, Any]) -> LabelledEpisode:
    """What ``_record`` wrote."""
    pieces = tuple((str(action), str(seen)) for action, seen in record["pieces"])
    targets = {int(n): float(v) for n, v in record["targets"].items()}
    return LabelledEpisode(str(record["task"]), pieces, targets)
