"""Several sampled episodes of each question at once: pass@k of a policy, as self-search is measured (SSRL)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentenv.core.env_lifecycle import MakeEnv
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import RolloutConfig
from agentenv.core.scoring.scorers import Scorer, get_scorer
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.evaluation.runner import play
from agentenv.evaluation.statistics.significance import estimate, pass_at_k


def sampled_pass_at_k(
    policy: Policy,
    chat: ChatFormat,
    make_env: MakeEnv,
    tasks: Sequence[Task],
    config: RolloutConfig,
    *,
    samples: int,
    ks: Sequence[int],
    temperature: float = 1.0,
    scorer: str = "em_squad",
    seed: int = 0,
) -> dict[str, Any]:
    """The chance that one of k samples is right, unbiased from ``samples`` of each question (Chen et al. 2021).

    Args:
        policy: Who answers.
        chat: How messages become ids.
        make_env: Makes a fresh environment.
        tasks: The questions.
        config: Budgets; the temperature is replaced.
        samples: Episodes a question.
        ks: The k, none above ``samples``.
        temperature: Of the samples.
        scorer: A scorer of 0 and 1.
        seed: Seeds the episodes.

    Returns:
        ``scorer``, ``samples``, ``n`` (questions whose samples are all valid), ``left_out``, and ``pass@k`` for each k as
        mean and 95 % interval over questions.

    Raises:
        ConfigurationError: a k out of range, a scorer of more than 0 and 1, or no question without a fault.
    """
    score = get_scorer(scorer)
    if not score.binary or not ks or not 1 <= min(ks) <= max(ks) <= samples:
        raise ConfigurationError(
            f"pass@k needs a scorer of 0 and 1 and every k within 1 and the samples, not {scorer}, {list(ks)} and {samples}"
        )
    played = play(
        policy,
        chat,
        make_env,
        [task for task in tasks for _ in range(samples)],
        replace(config, temperature=temperature),
        seed=seed,
        name="sampled",
    )
    return _table(played, score, samples=samples, ks=ks, seed=seed)


def _table(
    played: Sequence[Trajectory], score: Scorer, *, samples: int, ks: Sequence[int], seed: int
) -> dict[str, Any]:
    groups = [played[start : start + samples] for start in range(0, len(played), samples)]
    whole = [group for group in groups if all(trajectory.valid for trajectory in group)]
    if not whole:
        raise ConfigurationError(f"no question was answered without a fault; the first: {played[0].error}")
    right = [int(sum(score(t.info.get("answer"), t.task.answers).value for t in group)) for group in whole]
    table: dict[str, Any] = {
        "scorer": score.name,
        "samples": samples,
        "n": len(whole),
        "left_out": len(groups) - len(whole),
    }
    for k in ks:
        found = estimate([pass_at_k(samples, count, k) for count in right], seed=seed)
        table[f"pass@{k}"] = {"mean": found.mean, "ci95": found.ci95}
    return table
