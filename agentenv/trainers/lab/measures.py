"""What a comparison measures: one number for each run. Pure functions of what a run has kept.

A run is the content of its ``results.json`` with its lines of metrics and with what was played besides (``probes.py``).

G is the number of episodes of a group.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import Any, Literal

from agentenv.core.scoring.normalize import squad
from agentenv.errors import ConfigurationError
from agentenv.evaluation.task_env import OWN_ENVIRONMENT

Json = dict[str, Any]
Play = Literal["wordings", "samples", "proposals"]
"""What has to be played or read besides a run: the test questions in all their wordings, or sampled often; or what the
proposer of self-play has asked."""


@dataclass(frozen=True)
class Measure:
    """One way to compare runs."""

    title: str
    """What it is, for people; ``{level}`` stands for the level of the experiment."""
    of: Callable[[Json, float], float]
    """The number of a run, with the level of the experiment."""
    lower: bool = False
    """Whether less is better."""
    needs: Play | None = None
    """What has to be played besides."""
    every_step: bool = False
    """Whether it needs an evaluation on the dev questions after every step."""

    @property
    def better(self) -> str:
        """Which direction is the better one, as a word."""
        return "lower" if self.lower else "higher"


def curve(run: Json) -> list[tuple[int, int, float]]:
    """Steps, tokens sampled up to there, and dev score in the run's own environment, wherever there is one.

    Raises:
        ConfigurationError: nowhere.
    """
    spent = accumulate(int(line["sampled_tokens"]) for line in run["metrics"])
    lines = zip(run["metrics"], spent, strict=True)
    # Of several environments each has a score, and ``dev_score`` is their mean.
    scores = (
        (line.get(f"dev_score/{OWN_ENVIRONMENT}", line.get("dev_score")), line, used) for line, used in lines
    )
    seen = [(line["step"], used, score) for score, line, used in scores if score is not None]
    if not seen:
        raise ConfigurationError(f"run {run['name']!r} has no dev scores: set evaluation.every")
    return seen


def reached(run: Json, level: float) -> tuple[int, int] | None:
    """Steps and sampled tokens at the first dev score of at least ``level``; None where there is none."""
    return next(((step, used) for step, used, value in curve(run) if value >= level), None)


def _reaching(place: Literal[0, 1]) -> Callable[[Json, float], float]:
    """Steps (0) or tokens (1) until the level is reached; all of the run where it never is."""
    return lambda run, level: float((reached(run, level) or curve(run)[-1][:2])[place])


def _dev_mean(run: Json, level: float) -> float:
    seen = curve(run)
    return sum(value for _, _, value in seen) / len(seen)


def _dev_at_tokens(run: Json, level: float) -> float:
    return next((value for _, used, value in reversed(curve(run)) if used <= level), 0.0)


def cost_per_right(after: Mapping[str, Any], cost: str) -> float:
    """What the right answers of an evaluation cost each: the cost of all its questions over the number of right ones.

    Where nothing is right, the cost of all questions, as if one were right.

    Args:
        after: ``mean``, the share of right answers, ``n`` questions, and ``cost`` a question.
        cost: ``turns``, ``searches`` or ``tokens``.

    Raises:
        ConfigurationError: the evaluation has not counted that.
    """
    if after.get(cost) is None:
        raise ConfigurationError(
            f"the evaluation did not record {cost}, which this measure needs: take another measure"
        )
    return float(after[cost] * after["n"] / max(after["mean"] * after["n"], 1.0))


def _per_right(cost: str) -> Callable[[Json, float], float]:
    return lambda run, level: cost_per_right(run["after"], cost)


def agreement(answers: Sequence[Sequence[str | None]]) -> float:
    """How often answers to two wordings of a question are the same: the mean over questions of the share of such pairs.

    Answers are compared as SQuAD normalises them. Where there is no answer nothing agrees with it, and a question of one
    wording does not count.

    Args:
        answers: For each question the answers to its wordings; None where there is none.

    Raises:
        ConfigurationError: no question has two wordings.
    """
    shares = []
    for mine in answers:
        pairs = [*combinations(mine, 2)]
        if pairs:
            same = [
                one is not None and other is not None and squad(one) == squad(other) for one, other in pairs
            ]
            shares.append(sum(same) / len(pairs))
    if not shares:
        raise ConfigurationError("no test question has two wordings: agreement cannot be measured")
    return sum(shares) / len(shares)


_NO_SIGN = 1e-9  # what a true advantage of 0 is off by rounding


def sign_flips(rewards_G: Sequence[float], advantages_G: Sequence[float], value: float) -> tuple[int, int]:
    """How many advantages of a group have the opposite sign of the true one, and how many could have.

    After MC-GRPO, Kim 2026, arXiv:2601.22582: the baseline of a small group is so uncertain that an episode that was better
    than the policy's mean is pushed down, or the other way round. The true advantage is the reward less ``value``. An
    advantage of 0 pushes nowhere and is no flip.

    Args:
        rewards_G: The outcomes of the group.
        advantages_G: What the estimator made of them.
        value: The mean outcome of the question under the policy that sampled the group.

    Returns:
        Flips, and episodes whose true advantage has a sign.
    """
    signed = [
        (reward - value, advantage)
        for reward, advantage in zip(rewards_G, advantages_G, strict=True)
        if abs(reward - value) > _NO_SIGN
    ]
    return sum(true * advantage < 0 for true, advantage in signed), len(signed)


def proposals(asked: Iterable[Mapping[str, Any]], is_true: Callable[[str, str], bool]) -> dict[str, float]:
    """What became of the questions that self-play has proposed; questions of the pool are no proposals.

    Args:
        asked: Lines of ``questions.jsonl``, with ``question``, ``answer`` and ``outcome``.
        is_true: Whether an answer is right for a question.

    Returns:
        ``proposed``, the share of them that was ``accepted``, the share that was accepted and is true, ``accepted_true``,
        and the share of the accepted ones that are true, ``true_of_accepted``. A share of nothing is 0.
    """
    own = [row for row in asked if row["outcome"] != "pooled"]
    taken = [row for row in own if row["outcome"] == "accepted"]
    true = sum(is_true(row["question"], row["answer"]) for row in taken)
    return {
        "proposed": len(own),
        "accepted": len(taken) / max(len(own), 1),
        "accepted_true": true / max(len(own), 1),
        "true_of_accepted": true / max(len(taken), 1),
    }


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names of the points that no other point beats: none is at most as dear and at least as good, and not the same.

    Args:
        points: Cost and benefit by name.

    Returns:
        The names on the front, the cheapest first. Points that are equal in both stay together.
    """

    def beaten(cost: float, benefit: float) -> bool:
        return any(
            other_cost <= cost and other >= benefit and (other_cost, other) != (cost, benefit)
            for other_cost, other in points.values()
        )

    return sorted(
        (name for name, point in points.items() if not beaten(*point)), key=lambda name: points[name]
    )


def with_strategy(run: Mapping[str, Any], moment: Literal["before", "after"]) -> Json:
    """The evaluation of a run that was played with ``evaluation.strategy``; the plain one where none is named."""
    played: Json = next((run[name] for name in run if name.startswith(f"{moment}-")), run[moment])
    return played


MEASURES: dict[str, Measure] = {
    "after": Measure("score on the test tasks afterwards", lambda run, level: float(run["after"]["mean"])),
    "after_with_strategy": Measure(
        "score on the test tasks afterwards, played with the strategy of the evaluation where it names one",
        lambda run, level: float(with_strategy(run, "after")["mean"]),
    ),
    "tested": Measure(
        "score on the test tasks afterwards, under the first of the test settings",
        lambda run, level: float(next(iter(run["tests"].values()))),
    ),
    "dev_mean": Measure("mean of the dev scores over the run", _dev_mean),
    "steps_to": Measure(
        "steps until a dev score reaches {level:g}", _reaching(0), lower=True, every_step=True
    ),
    "tokens_to": Measure(
        "sampled tokens until a dev score reaches {level:g}", _reaching(1), lower=True, every_step=True
    ),
    "dev_at_tokens": Measure("dev score after {level:,.0f} sampled tokens", _dev_at_tokens),
    "turns": Measure("turns a test task", lambda run, level: float(run["after"]["turns"]), lower=True),
    "searches": Measure(
        "searches a test task", lambda run, level: float(run["after"]["searches"]), lower=True
    ),
    "turns_per_right": Measure("turns for each right answer", _per_right("turns"), lower=True),
    "searches_per_right": Measure("searches for each right answer", _per_right("searches"), lower=True),
    "tokens_per_right": Measure("sampled tokens for each right answer", _per_right("tokens"), lower=True),
    "agreement": Measure(
        "share of pairs of wordings of a test question that get the same answer",
        lambda run, level: float(run["played"]["agreement"]),
        needs="wordings",
    ),
    "sign_flips": Measure(
        "share of advantages with the opposite sign of the true advantage",
        lambda run, level: float(run["played"]["sign_flips"]),
        lower=True,
        needs="samples",
    ),
    "accepted_true": Measure(
        "share of the proposed questions that were accepted and are true",
        lambda run, level: float(run["played"]["accepted_true"]),
        needs="proposals",
    ),
}
"""What an experiment may measure, by name."""
