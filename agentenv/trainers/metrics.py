"""What the rollouts of one step looked like, as numbers."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pstdev

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason
from agentenv.trainers.advantages import is_flat


def describe(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """Figures of the groups of one step, at least one of whose episodes is valid; means are over valid episodes.

    The entropy is estimated from the sampled tokens themselves: the mean of -log p, in nats; ``rewarded_logprob`` is the
    mean of log p over the episodes with more reward than their group, and absent where there is none. A group that lost
    every member to faults of ours is in no figure but ``faults``. A mean over nothing (no episode got to a turn) is 0.
    """
    played = [trajectory for group in groups for trajectory in group]
    valid = [trajectory for trajectory in played if trajectory.valid]
    turns = [turn for trajectory in valid for turn in trajectory.turns]
    rewards = [[t.reward for t in group if t.valid] for group in groups]
    right = [p for group in groups for t in _rewarded(group) for p in t.logprobs[t.loss_mask].tolist()]
    ends = Counter(f"end_{trajectory.end_reason}" for trajectory in played)
    return (
        {
            "reward_mean": fmean(t.reward for t in valid),
            "reward_std": pstdev(t.reward for t in valid),
            "entropy": -_mean([p for t in valid for p in t.logprobs[t.loss_mask].tolist()]),
            "zero_variance_share": fmean(is_flat(group) for group in rewards if group),
            "faults": len(played) - len(valid),
            "format_rate": _mean([turn.valid for turn in turns]),
            "answer_rate": fmean(t.end_reason is EndReason.ANSWERED for t in valid),
            "response_tokens": fmean(t.response_tokens for t in valid),
            "episode_tokens": fmean(len(t.ids) for t in valid),
            "searches_per_episode": fmean(
                sum(result.name == "search" for turn in t.turns for result in turn.tool_results)
                for t in valid
            ),
            "extra_rows": sum(len(t.row_slices) - 1 for t in valid),
        }
        | ({"rewarded_logprob": fmean(right)} if right else {})
        | {f"end_{reason}": ends[f"end_{reason}"] for reason in EndReason if ends[f"end_{reason}"]}
    )


def _rewarded(group: Sequence[Trajectory]) -> list[Trajectory]:
    """The valid episodes with more reward than the mean of their group; none where all are equal."""
    valid = [trajectory for trajectory in group if trajectory.valid]
    if is_flat([t.reward for t in valid]):
        return []
    middle = fmean(t.reward for t in valid)
    return [trajectory for trajectory in valid if trajectory.reward > middle]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
