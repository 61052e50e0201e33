"""What the rollouts of one step looked like, as numbers."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean, pstdev
from typing import Any

from agentenv.core.env_lifecycle import reasons_of
from agentenv.core.tool_results import is_search, searches_of
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import EndReason
from agentenv.data.sources import Source
from agentenv.trainers.credit.group_statistics import has_zero_variance
from agentenv.trainers.credit.shaping import ANSWERS
from agentenv.trainers.task_sampling.training_tasks import TrainingTasks

_AUDITED = 256
"""Turns of a step whose text is encoded again, which takes about a millisecond each where they are long."""
_OF_ENVIRONMENTS = (
    "reward_mean",
    "reward_std",
    "zero_variance_share",
    "format_rate",
    "answer_rate",
    "response_tokens",
    "searches_per_episode",
)
"""Means that each of several environments has for itself."""


def retokenized_share(groups: Sequence[Sequence[Trajectory]], tokenizer: Any) -> dict[str, float]:
    """The share of the sampled turns whose ids are not those of their own text, encoded again.

    Training uses the sampled ids, so nothing depends on it. It says how much a trainer that encodes text again would be off.
    Of the first 256 turns of the step; empty where nothing was sampled.

    Args:
        groups: The episodes of a step.
        tokenizer: The policy's.
    """
    turns = islice((ids for group in groups for t in group for ids in _sampled_turns(t)), _AUDITED)
    changed = [tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) != ids for ids in turns]
    return {"retokenized_share": fmean(changed)} if changed else {}


def _sampled_turns(trajectory: Trajectory) -> Iterator[list[int]]:
    """The sampled ids of each turn, in their order."""
    turns: dict[tuple[int, int], list[int]] = defaultdict(list)
    for segment in trajectory.segments:
        if segment.kind is SegmentKind.POLICY:
            turns[segment.row, segment.turn] += segment.ids
    yield from turns.values()


def rollout_metrics(
    groups: Sequence[Sequence[Trajectory]], given_up: Sequence[Trajectory] = ()
) -> dict[str, float]:
    """The metrics of the groups of one step, in which at least one episode is valid. Means are over valid episodes.

    The entropy is estimated from the sampled tokens: the mean of -log p, in nats. ``rewarded_logprob`` is the mean of log p
    over the episodes with more reward than the mean of their group. Neither counts tokens that were sampled in another
    context or at another temperature, and each is absent where there are no others. A group that lost every member to
    infrastructure failures counts only in ``faults`` and in the sums. ``sampled_tokens`` counts every token that the policy
    sampled, also those that a strategy left out of the record, and those of the episodes that were ``given_up``. Metrics of
    a strategy are added up, and lists of them are averaged. A mean over nothing is 0. ``flawed_share`` is there where the
    environment says which right answers are flawed, and ``verdicts_right`` where it compares verdicts on pages.

    Retries of another trajectory, reflections and demonstrations count in no mean, so that the means show what the policy
    does without help. They count in the sums and, as members of their groups, in ``zero_variance_share``.
    """
    played = [trajectory for group in groups for trajectory in group]
    unaided = [[t for t in group if t.valid and not t.guided] for group in groups]
    valid = [trajectory for group in unaided for trajectory in group]
    turns = [turn for trajectory in valid for turn in trajectory.turns]
    rewards = [[t.reward for t in g if t.valid] for g, own in zip(groups, unaided, strict=True) if own]
    right = [p for group in unaided for t in _rewarded(group) for p in _own_logprobs(t)]
    sampled = [p for t in valid for p in _own_logprobs(t)]
    # Lost episodes count here: their reasons are the only trace of them in the metrics.
    ends = Counter(f"end_{t.end_reason}" for t in played if not t.guided)
    return (
        {
            "reward_mean": fmean(t.reward for t in valid),
            "reward_std": pstdev(t.reward for t in valid),
            "zero_variance_share": fmean(has_zero_variance(group) for group in rewards),
            "faults": sum(not t.valid for t in played),
            "format_rate": _mean([turn.valid for turn in turns]),
            "answer_rate": fmean(t.end_reason in ANSWERS for t in valid),
            "response_tokens": fmean(t.response_tokens for t in valid),
            "episode_tokens": fmean(len(t.ids) for t in valid),
            "extra_rows": sum(len(t.row_slices) - 1 for t in valid),
        }
        | _searches(valid)
        | ({"entropy": -fmean(sampled)} if sampled else {})
        | ({"rewarded_logprob": fmean(right)} if right else {})
        | _flawed(valid)
        | _verdicts(valid)
        | _strategy_metrics([*played, *given_up])
        | {f"end_{reason}": ends[f"end_{reason}"] for reason in EndReason if ends[f"end_{reason}"]}
    )


def environment_metrics(groups: Sequence[Sequence[Trajectory]], training: TrainingTasks) -> dict[str, float]:
    """The figures of every environment of a run, where there are several, and those of their sets of questions.

    Returns:
        ``FIGURE/NAME`` for ``episodes``, those that count in the means, ``faults``, and the means of `rollout_metrics` that
        are named in ``_OF_ENVIRONMENTS``, which are left out where no episode counts; also what `set_metrics` gives for
        each, where ``NAME/`` stands before the sets of a further environment.
    """
    if not training.several:
        return set_metrics(groups, training.environments[0].task_env.source)
    metrics: dict[str, float] = {}
    for number, environment in enumerate(training.environments):
        name = environment.name
        members = [[t for t in group if training.environment_of(t.task) == name] for group in groups]
        mine = [group for group in members if group]
        counted = sum(t.valid and not t.guided for group in mine for t in group)
        metrics[f"episodes/{name}"] = counted
        metrics[f"faults/{name}"] = sum(not t.valid for group in mine for t in group)
        means = rollout_metrics(mine) if counted else {}
        metrics |= {f"{figure}/{name}": means[figure] for figure in _OF_ENVIRONMENTS if figure in means}
        metrics |= set_metrics(mine, environment.task_env.source, f"{name}/" if number else "")
    return metrics


def set_metrics(groups: Sequence[Sequence[Trajectory]], source: Source, above: str = "") -> dict[str, float]:
    """For each of several sets, the number of its episodes that count in ``reward_mean`` and the mean of their rewards.

    Args:
        groups: The episodes of a step.
        source: The sets.
        above: What stands before the name of a set.

    Returns:
        ``episodes/NAME``, and ``reward_mean/NAME`` where there are any; empty where ``source`` is a single set.
    """
    rewards: dict[str, list[float]] = {name: [] for name in source.parts}
    for trajectory in (t for group in groups for t in group if t.valid and not t.guided):
        if (own := rewards.get(source.set_of(trajectory.task))) is not None:
            own.append(trajectory.reward)
    metrics: dict[str, float] = {}
    for name, own in rewards.items():
        metrics[f"episodes/{above}{name}"] = len(own)
        if own:
            metrics[f"reward_mean/{above}{name}"] = fmean(own)
    return metrics


def lost_episodes(groups: Sequence[Sequence[Trajectory]]) -> str:
    """How many episodes an infrastructure failure has masked, and why, as a sentence; empty where there is none."""
    played = [trajectory for group in groups for trajectory in group]
    lost = sum(not trajectory.valid for trajectory in played)
    said = f"{lost} of {len(played)} episodes met an infrastructure failure and are left out"
    return f"{said}: {reasons_of(played)}" if lost else ""


def _searches(valid: Sequence[Trajectory]) -> dict[str, float]:
    """Calls a search an episode; nothing where that is unknown of one and none says that it searched."""
    results = [[result for turn in t.turns for result in turn.tool_results] for t in valid]
    calls = [sum(is_search(result) for result in one) for one in results]
    known = (
        searches_of(one, complete=t.reports_searches) is not None
        for one, t in zip(results, valid, strict=True)
    )
    if not any(calls) and not all(known):
        return {}
    return {"searches_per_episode": fmean(calls)}


def _flawed(valid: Sequence[Trajectory]) -> dict[str, float]:
    """The share of the right answers that were guessed or given too early (FAPO); nothing where no environment says so."""
    said = [t.info["flawed"] for t in valid if isinstance(t.info.get("flawed"), bool)]
    return {"flawed_share": fmean(said)} if said else {}


def _verdicts(valid: Sequence[Trajectory]) -> dict[str, float]:
    """The share of right verdicts on pages (ReSeek), the mean over episodes with one; nothing where there are none."""
    said = [t.info["verdicts_right"] for t in valid if isinstance(t.info.get("verdicts_right"), int | float)]
    return {"verdicts_right": fmean(said)} if said else {}


def _own_logprobs(trajectory: Trajectory) -> list[float]:
    """Recorded log-probs of the trained tokens that were sampled in the context in which they stand."""
    own: list[float] = trajectory.logprobs[trajectory.loss_mask & ~trajectory.context_mismatch].tolist()
    return own


def _strategy_metrics(played: Sequence[Trajectory]) -> dict[str, float]:
    """What the rollout strategy counted in ``info["strategy"]``; see ``rollout_metrics``."""
    sums: Counter[str] = Counter()
    lists: dict[str, list[float]] = defaultdict(list)
    for trajectory in played:
        metrics = {"sampled_tokens": trajectory.response_tokens} | trajectory.info.get("strategy", {})
        for name, value in metrics.items():
            if isinstance(value, list):
                lists[name] += value
            else:
                sums[name] += value
    return dict(sums) | {name: fmean(values) for name, values in lists.items() if values}


def _rewarded(group: Sequence[Trajectory]) -> list[Trajectory]:
    """The episodes with more reward than the mean of their group; none where all are equal."""
    if has_zero_variance([t.reward for t in group]):
        return []
    middle = fmean(t.reward for t in group)
    return [trajectory for trajectory in group if trajectory.reward > middle]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
