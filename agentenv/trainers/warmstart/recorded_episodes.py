"""``agentenv warmstart --imitate RUN --episodes FOLDER ...``: a policy learns the solved episodes of a teacher.

HybridDeepSearcher (Ko et al. 2025, arXiv:2508.19113) is made so: a larger model answers every question several times, and
the episodes with the right answer are learned. The folders are those of ``agentenv eval``. Where they hold token ids of the
learner's own tokenizer and chat format, exactly these are learned; otherwise the texts are spelt in the learner's tokens, in
the chat format of the run: natively the calls of the teacher become calls in the form of the learner.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import EndReason
from agentenv.data.overlap import refuse_overlap
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.evaluation.recorded_conversations import evaluations_in
from agentenv.evaluation.records import TOOL_CALL_FORM, EpisodeRecord, Evaluation
from agentenv.evaluation.task_env import open_tasks
from agentenv.policies.hf import HFPolicy
from agentenv.policies.tokenizer_digest import tokenizer_digest
from agentenv.progress import Display
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import episode_card
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.loop.parts import (
    trained_policy,
    with_declared_scorers,
)
from agentenv.trainers.warmstart.expert_warmstart import training_examples
from agentenv.trainers.warmstart.learning import LearningSettings, learn
from agentenv.trainers.warmstart.spelt_records import TOO_LONG, Speller, task_of
from agentenv.trainers.warmstart.supervised import Metrics, write_policy


@flushed_denormals()
def imitate_recorded(
    run: TrainConfig,
    folders: Sequence[Path],
    display: Display,
    out: Path,
    *,
    least: float,
    learning: LearningSettings,
) -> Metrics:
    """Makes the policy, from the one that ``run`` names, and writes it to ``out``.

    Args:
        run: Names who learns, the environment, the chat format and the budgets.
        folders: Of finished evaluations, or of their samples.
        display: Gets the progress.
        out: Folder to write.
        least: Reward that an episode has to earn.
        learning: How the episodes are learned.

    Returns:
        The metrics of its card: episodes in the folders, those that were learned and of how many tasks, those of them whose
        recorded ids were learned, tokens seen, minutes.

    Raises:
        ConfigurationError: a folder holds no finished evaluation, or one of another environment; no episode earns enough or
            can be learned; or they are of the test questions of the run.
        DatasetError: a record is damaged.
    """
    began = time.perf_counter()
    run = with_declared_scorers(run)
    torch.set_num_threads(run.threads)
    torch.manual_seed(run.seed)
    display.phase("recorded episodes", 0)
    evaluations = [evaluation for folder in folders for evaluation in evaluations_in(folder)]
    solved = [solved_episodes(evaluation, run, least) for evaluation in evaluations]
    if not any(solved):
        raise ConfigurationError(
            f"none of {sum(len(one.records) for one in evaluations)} recorded episodes earns {least:g}: ask for less with "
            "--least, or give other folders"
        )
    refuse_measured(run, [record for records in solved for record in records], display)
    policy = trained_policy(run.policy, run.lora, run.compute.precise(), seed=run.seed)
    shown, exact, left_out = in_tokens(run, policy, list(zip(evaluations, solved, strict=True)))
    _warn_of(left_out, len(shown), display)
    examples = training_examples(shown)
    steps = learning.steps_on(len(examples))
    display.phase("imitation", steps)
    learned = learn(policy, examples, learning, run.memory, Random(run.seed), display)
    metrics: Metrics = {
        "episodes": sum(len(one.records) for one in evaluations),
        "demonstrations": len(shown),
        "tasks": len({trajectory.task.id for trajectory in shown}),
        "exact": exact,
        **learned,
        "minutes": (time.perf_counter() - began) / 60,
    }
    teachers = ", ".join(sorted({f"`{one.results.get('policy')}`" for one in evaluations}))
    named = {"policy": run.policy, "env": run.env.id, "least": least, "steps": steps, "teachers": teachers}
    write_policy(policy, metrics, episode_card(run), _CARD.format_map(named | metrics), out)
    return metrics


def solved_episodes(evaluation: Evaluation, run: TrainConfig, least: float) -> list[EpisodeRecord]:
    """The episodes of an evaluation that earned ``least``.

    Raises:
        ConfigurationError: they are of another environment than that of ``run``, or of a set that must not be learned.
    """
    played = evaluation.results.get("settings", {}).get("env")
    if played != run.env.id:
        raise ConfigurationError(
            f"{evaluation.directory} holds episodes of {played or 'an unnamed environment'}, and {run.name} plays "
            f"{run.env.id}, whose form is another: give a run of that environment, or other folders"
        )
    if any("canary" in record for record in evaluation.records):
        raise ConfigurationError(
            f"{evaluation.directory} holds episodes of a benchmark that is sealed so that nothing learns from it"
        )
    return [record for record in evaluation.records if record["valid"] and record.get("reward", 0.0) >= least]


def refuse_measured(run: TrainConfig, records: Sequence[EpisodeRecord], display: Display) -> None:
    """Refuses episodes of the questions that the run is tested on.

    Raises:
        ConfigurationError: there are some.
    """
    measured = {
        # A record has no data of a task, so that tasks without a word of an answer are told apart by their question alone.
        name: [replace(task, data={}) for task in open_tasks(source, run.search, run.env).tasks]
        for name, source in (("dev", run.dev), ("test", run.test))
    }
    shown = [task_of(record) for record in records]
    refuse_overlap(shown, measured, allowed=run.evaluation.on_training_tasks, warn=display.warn)


def in_tokens(
    run: TrainConfig, policy: HFPolicy, solved: Sequence[tuple[Evaluation, Sequence[EpisodeRecord]]]
) -> tuple[list[Trajectory], int, Counter[str]]:
    """Episodes in the tokens of ``policy``, how many of them by their recorded ids, and why others cannot be learned.

    Raises:
        ConfigurationError: there is none.
        DatasetError: recorded ids are damaged.
    """
    own = {"tokenizer": tokenizer_digest(policy.tokenizer), "format": run.format}
    most, shown, exact = min(run.rollout.context_tokens, policy.context_tokens), [], 0
    left_out: Counter[str] = Counter()
    # It opens the environment, for its tools, which recorded ids do not need.
    speller: Speller | None = None
    for evaluation, records in solved:
        settings = evaluation.results["settings"]
        same = settings.get("token_ids") == own
        for record in records:
            found: Trajectory | str
            if same and "segments" in record:
                found = _recorded(record, evaluation.directory, len(policy.tokenizer))
                if any(part.stop - part.start > most for part in found.row_slices):
                    found = TOO_LONG
                exact += found is not TOO_LONG
            else:
                speller = speller or Speller.of(run, policy)
                found = speller.spelt(record, settings.get(TOOL_CALL_FORM, ""))
            if isinstance(found, str):
                left_out[found] += 1
            else:
                shown.append(found)
    if not shown:
        raise ConfigurationError(_nothing(left_out, run.rollout.turn_tokens, most))
    return shown, exact, left_out


def _warn_of(left_out: Counter[str], learned: int, display: Display) -> None:
    if count := left_out.total():
        display.warn(f"{count} of {count + learned} solved episodes are left out: {_reasons(left_out)}")


def _reasons(left_out: Counter[str]) -> str:
    return "; ".join(f"{count} {why}" for why, count in left_out.most_common())


def _nothing(left_out: Counter[str], turn_tokens: int, most: int) -> str:
    """Why none of the solved episodes can be learned within so many tokens of a turn and of an episode."""
    said = f"none of {left_out.total()} solved episodes can be learned: {_reasons(left_out)}"
    if left_out[TOO_LONG]:
        said += f" (rollout.turn_tokens={turn_tokens} and rollout.context_tokens={most}: raise the one that is too small)"
    if left_out.total() > left_out[TOO_LONG]:
        said += "; those of a policy with the learner's own tokens can be learned where it was evaluated with --token-ids"
    return said


def _recorded(record: EpisodeRecord, folder: Path, words: int) -> Trajectory:
    """The episode by its recorded ids; its log-probs are not known, and supervised learning needs none.

    Raises:
        DatasetError: the record is damaged, or holds an id of no token of ``words``.
    """
    try:
        segments = tuple(map(_segment, record["segments"]))
        ids = [token for segment in segments for token in segment.ids]
        learned = any(one.ids and one.trained for one in segments if one.kind is SegmentKind.POLICY)
        if not learned or not all(0 <= token < words for token in ids):
            raise ValueError("no token that is learned, or ids beyond the vocabulary")
        end = EndReason(record["end_reason"])
        return Trajectory(task_of(record), segments, (), record.get("reward", 0.0), end)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DatasetError(
            f"the token ids of the episode {record['id']!r} in {folder} are damaged ({error}): evaluate again with "
            "--token-ids, or leave the folder out"
        ) from error


def _segment(segment: Any) -> Segment:
    return Segment(
        SegmentKind(segment["kind"]),
        tuple(segment["ids"]),
        segment["turn"],
        logprobs=(0.0,) * len(segment["ids"]) if segment["kind"] == SegmentKind.POLICY else (),
        trained=segment.get("trained", True),
        row=segment["row"],
    )


_CARD = """\
# A policy that imitated recorded episodes

From `{policy}` by {steps} supervised steps on {demonstrations} of {episodes} recorded episodes of {teachers} in `{env}`,
those that earned {least:g} (`agentenv warmstart --imitate ... --episodes ...`): {tokens:,} tokens in {minutes:.1f} minutes.
"""
