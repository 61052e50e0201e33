"""Credit of a turn: scores that differ between the turns of one trajectory. Pure functions.

Where nothing else is said, turn rewards are those of ``Trajectory.turns`` and the outcome is ``Trajectory.reward``; the
episode loop adds turn rewards up to the outcome, a hand-made record need not. With ``turn_weight=0`` (and
``population="trajectory"`` where there is a choice) the values are those of ``group_relative`` to the bit.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from agentenv.core.scoring.likeness import matching_share
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import ToolStatus
from agentenv.trainers.credit.group_statistics import (
    Scale,
    Singleton,
    Values,
    has_zero_variance,
    on_all_tokens,
    on_turns,
    others_mean,
    rewards_of,
    standardize,
    turn_rewards,
    without_noise,
)

Population = Literal["trajectory", "step"]
SegmentEnd = Literal["exclude", "include", "full"]


def discounted(rewards_K: Sequence[float], gamma: float) -> list[float]:
    """Return-to-go of each turn: r_t + gamma G_{t+1}."""
    returns, carry = [], 0.0
    for reward in reversed(rewards_K):
        carry = reward + gamma * carry
        returns.append(carry)
    return returns[::-1]


def return_to_go(
    group: Sequence[Trajectory], *, gamma: float = 1.0, baseline: float | None = None
) -> list[Values]:
    """Credits each turn with the rewards from that turn on, G_t, minus a baseline. Unbiased at gamma 1.

    REINFORCE, Williams 1992, Machine Learning 8, 229-256 (no arXiv id). The baseline is the mean G_t of the other members of
    the group; a member that has already ended counts as 0.

    Args:
        group: Valid trajectories; turn rewards hold the outcome, as the episode loop records it.
        gamma: Discount per turn; below 1 the result is the gradient of another objective.
        baseline: A number that replaces the mean; a group of one then has a gradient as well.
    """
    returns = [discounted(turn_rewards(trajectory), gamma) for trajectory in group]
    longest = max(map(len, returns), default=0)
    # One line a member, padded with 0: a member that has ended earns nothing more, and counts so in the mean of others.
    table = np.zeros((len(group), longest))
    for line, values in zip(table, returns, strict=True):
        line[: len(values)] = values
    # The baseline may depend on the turn's index and on other members, but not on the member: so it adds no bias.
    base = np.stack([others_mean(column) for column in table.T], 1) if longest else table
    if baseline is not None:
        base = np.full_like(table, baseline)
    return [
        on_turns(t, line[: len(values)])
        for t, line, values in zip(group, without_noise(table - base), returns, strict=True)
    ]


def turn_level(
    group: Sequence[Trajectory],
    *,
    turn_weight: float = 1.0,
    epsilon: float = 1e-4,
    form: Literal["every_turn", "first_tool"] = "every_turn",
    outcome: Literal["reward", "last_turn"] = "reward",
) -> list[Values]:
    """Adds standardised turn rewards to the standardised outcome.

    MT-GRPO, Zeng et al. 2025, arXiv:2505.11821; the form for more than two turns is this project's.
    Every turn but the last is taken to have called a tool and has a turn reward; the last is judged by the outcome alone.
    In the published form a turn that could not be acted on has called none: the turn reward is that of the first call, and
    counts for all turns up to it. Turn t gets A_O + turn_weight sum_{j >= t} A_j, each A standardised over the group. A
    trajectory that never called a tool has the standardised sum of outcome and turn rewards, in which none is weighted, on
    all its tokens.
    Biased: turns of one index are not of one state. Measured: .582 along, .283 aside (``first_tool`` .783, .306;
    ``last_turn`` .552, .391).

    Args:
        group: Valid trajectories.
        turn_weight: Weight of standardised turn rewards (lambda); 0 leaves turn rewards out altogether.
        epsilon: Added to each standard deviation.
        form: ``every_turn`` standardises the rewards of each turn index over the members that have such a turn;
            ``first_tool`` is the published two-turn form: only the first call counts, over all members, 0 for those
            without one.
        outcome: ``last_turn`` takes the last turn's reward alone, for environments whose outcome includes turn rewards.
    """
    # The last turn answers and calls no tool, so that its reward is part of the outcome.
    tools, before = [turn_rewards(trajectory)[:-1] for trajectory in group], [0] * len(group)
    if form == "first_tool":
        before = [_turns_before_a_call(trajectory) for trajectory in group]
        tools = [rewards[place : place + 1] for rewards, place in zip(tools, before, strict=True)]
    goals = rewards_of(group) if outcome == "reward" else [turn_rewards(t)[-1] for t in group]
    by_outcome = standardize(goals, epsilon=epsilon)
    if not turn_weight:
        return on_all_tokens(group, by_outcome)
    sums = [goal + sum(rewards) for goal, rewards in zip(goals, tools, strict=True)]
    combined = standardize(sums, epsilon=epsilon)
    by_turn = _by_index(tools, epsilon, absent_is_zero=form == "first_tool")
    values = []
    for i, trajectory in enumerate(group):
        # Standardised first and added up then: the sum of raw rewards would be led by the turn index that varies most.
        to_go = turn_weight * np.cumsum(by_turn[i][::-1])[::-1]
        scores = [combined[i]] if not tools[i] else [*(to_go + by_outcome[i]), by_outcome[i]]
        values.append(on_turns(trajectory, [scores[0]] * before[i] + scores))
    return values


def _turns_before_a_call(trajectory: Trajectory) -> int:
    """How many turns at the beginning could not be acted on; a hand-made record without results has none of them."""
    broken = (
        any(r.status is ToolStatus.FORMAT_ERROR for r in turn.tool_results) for turn in trajectory.turns
    )
    return next((place for place, one in enumerate(broken) if not one), len(trajectory.turns))


def _by_index(rewards: Sequence[Sequence[float]], epsilon: float, *, absent_is_zero: bool) -> list[Values]:
    """The rewards of each index standardised over the members that reach it, or over all of them."""
    scores = [np.zeros(len(mine)) for mine in rewards]
    for index in range(max(map(len, rewards), default=0)):
        held = [i for i, mine in enumerate(rewards) if absent_is_zero or len(mine) > index]
        # Members without a call at this index take part as 0 in the published form, and get no score of their own.
        column = [rewards[i][index] if len(rewards[i]) > index else 0.0 for i in held]
        for i, score in zip(held, standardize(column, epsilon=epsilon), strict=True):
            if len(rewards[i]) > index:
                scores[i][index] = score
    return scores


def anchor_state(
    group: Sequence[Trajectory],
    *,
    turn_weight: float = 1.0,
    gamma: float = 0.95,
    epsilon: float = 1e-6,
    scale: Scale = "std",
    population: Population = "trajectory",
    singleton: Singleton = "zero",
    invalid_penalty: float = 0.0,
    similarity: float = 1.0,
) -> list[Values]:
    """Adds ``turn_weight`` times the score of a turn among turns that started in the same state to the episode's score.

    GiGPO, Feng et al. 2025, arXiv:2505.10978. Turns of one group that met the same anchor key form a step group. The score
    of a turn there is its discounted return-to-go, standardised. A turn that is alone in its step group, or has no key,
    scores 0. Biased: the mean of a step group includes the turn itself, and its size depends on the policy. Measured: .976
    along, .192 aside (population ``step`` 1.104, .278).

    Args:
        group: Valid trajectories.
        turn_weight: Weight of the step score (omega).
        gamma: Discount a turn within the step score.
        epsilon: Added to each standard deviation.
        scale: ``none`` only subtracts means.
        population: Over what the episode's statistics run: one entry a trajectory, or (the published default) one entry a
            turn, so that long episodes count more.
        singleton: ``reward`` gives a group of one its reward as the episode's score, as published.
        invalid_penalty: Subtracted from outcome and return of a turn with an invalid action, of that turn alone;
            published 0.1.
        similarity: Keys of at least this difflib ratio, with every character counted, share a step group; 1 asks for equal
            ones. The published program leaves out characters that are frequent in long keys.
    """
    # A fine stays with its own turn: carried along in the return it would punish the valid turns before it.
    fines = [[invalid_penalty * (not turn.valid) for turn in t.turns] or [0.0] for t in group]
    outcomes = [[t.reward - fine for fine in mine] for t, mine in zip(group, fines, strict=True)]
    episode = _episode_scores(outcomes, epsilon, scale, population, singleton)
    if not turn_weight:
        return [on_turns(t, scores) for t, scores in zip(group, episode, strict=True)]
    returns = [
        [value - fine for value, fine in zip(discounted(turn_rewards(t), gamma), mine, strict=True)]
        for t, mine in zip(group, fines, strict=True)
    ]
    keys = [[turn.anchor_key for turn in t.turns] or [None] for t in group]
    steps = _grouped(returns, _clustered(keys, similarity), epsilon, scale)
    return [
        on_turns(t, np.add(scores, turn_weight * step))
        for t, scores, step in zip(group, episode, steps, strict=True)
    ]


def _episode_scores(
    outcomes: Sequence[Sequence[float]],
    epsilon: float,
    scale: Scale,
    population: Population,
    singleton: Singleton,
) -> list[Values]:
    """The score of each turn's outcome against the population; of a trajectory it is that of its first turn."""
    entries = [o for mine in outcomes for o in (mine if population == "step" else mine[:1])]
    scored = standardize(entries, epsilon=epsilon, scale=scale, singleton=singleton)
    if population == "step":
        cuts = np.cumsum([len(mine) for mine in outcomes])[:-1]
        return list(np.split(scored, cuts))
    divided = scale == "std" and not has_zero_variance(entries)
    # Fines make outcomes of one trajectory differ by turn; they are brought to the scale of the trajectory's score.
    spread = float(np.std(entries, ddof=1)) + epsilon if divided else 1.0
    return [score + np.subtract(mine, mine[0]) / spread for score, mine in zip(scored, outcomes, strict=True)]


def _grouped(
    values: Sequence[Sequence[float]], keys: Sequence[Sequence[Hashable]], epsilon: float, scale: Scale
) -> list[Values]:
    """Each value standardised among those of its key; None has no company."""
    members: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for i, mine in enumerate(keys):
        for t, key in enumerate(mine):
            # Without a key nothing says that two turns were chosen in one state, and to compare them would be to guess.
            if key is not None:
                members[key].append((i, t))
    scores = [np.zeros(len(mine)) for mine in values]
    for places in members.values():
        standing = standardize([values[i][t] for i, t in places], epsilon=epsilon, scale=scale)
        for (i, t), score in zip(places, standing, strict=True):
            scores[i][t] = score
    return scores


def _clustered(keys: Sequence[Sequence[str | None]], similarity: float) -> Sequence[Sequence[str | None]]:
    """Each key replaced by the first earlier one that is similar enough (greedy, in order of arrival)."""
    if similarity >= 1:
        return keys
    heads: list[str] = []

    def head(key: str | None) -> str | None:
        if key is None:
            return None
        # Only heads are compared, never members with each other: otherwise a chain of similar keys would join unlike states.
        # Every character counts: difflib's rule for frequent ones makes states of 200 characters or more that differ in one
        # place unlike each other.
        for known in heads:
            if matching_share(known, key) >= similarity:
                return known
        heads.append(key)
        return key

    return [[head(key) for key in mine] for mine in keys]


def segment_returns(
    rewards_K: Sequence[float], matched_K: Sequence[bool], gamma: float, segment_end: SegmentEnd
) -> list[float]:
    """Discounted return of each turn within its natural segment (UI-S1, Lu et al. 2025, eq. 9).

    Args:
        rewards_K: Reward of each turn.
        matched_K: False where the action was wrong and the expert's took its place.
        gamma: Discount a turn.
        segment_end: What a turn is credited with: ``include`` the rewards up to and with the first mismatch (paper),
            ``exclude`` those before it (released code), ``full`` everything to the end.
    """
    returns, carry = [], 0.0
    for reward, matched in zip(reversed(rewards_K), reversed(matched_K), strict=True):
        value = reward + gamma * carry if matched or segment_end == "full" else reward
        returns.append(value)
        # A mismatch ends the segment of the turns before it; `exclude` leaves out its own reward as well.
        carry = value if matched or segment_end != "exclude" else 0.0
    return returns[::-1]


def dual_level(
    group: Sequence[Trajectory],
    *,
    turn_weight: float = 1.0,
    episode_weight: float = 1.0,
    gamma: float = 0.5,
    segment_end: SegmentEnd = "include",
    population: Population = "trajectory",
    epsilon: float = 1e-6,
    scale: Scale = "std",
    singleton: Singleton = "zero",
) -> list[Values]:
    """Adds the episode's score to a turn's segment return, standardised among turns of the same index.

    UI-S1, Lu et al. 2025, arXiv:2509.11543, eq. 9. A turn whose action was not valid counts as a mismatch and ends a
    segment. Biased: turns of one index are not of one state. Measured: 1.171 along, .160 aside (population ``step`` 1.616,
    .413).

    Args:
        group: Valid trajectories.
        turn_weight: Weight of the turn's score; a turn that no other member has scores 0.
        episode_weight: Weight of the episode's score.
        gamma: Discount a turn.
        segment_end: How far credit reaches; see ``segment_returns``.
        population: The episode's score: outcomes over trajectories, or (released code) each turn's own reward over all
            turns of the group.
        epsilon: Added to each standard deviation.
        scale: ``none`` only subtracts means.
        singleton: ``reward`` gives a group of one turn its reward as the episode's score, as released.
    """
    rewards = [turn_rewards(t) for t in group]
    own = (
        rewards
        if population == "step"
        else [[t.reward] * len(mine) for t, mine in zip(group, rewards, strict=True)]
    )
    episode = _episode_scores(own, epsilon, scale, population, singleton)
    if episode_weight != 1:
        episode = [episode_weight * scores for scores in episode]
    if turn_weight:
        matched = [[turn.valid for turn in t.turns] or [True] for t in group]
        returns = [segment_returns(r, m, gamma, segment_end) for r, m in zip(rewards, matched, strict=True)]
        indices = [list(range(len(mine))) for mine in returns]
        steps = _grouped(returns, indices, epsilon, scale)
        episode = [scores + turn_weight * step for scores, step in zip(episode, steps, strict=True)]
    return [on_turns(t, scores) for t, scores in zip(group, episode, strict=True)]
