"""What to hold a score against: the same policy without search and with gold passages, and the scripted expert."""

from typing import Any

from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import RolloutConfig
from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError
from agentenv.evaluation.ground import Ground, corpus_of
from agentenv.evaluation.results import score_tables
from agentenv.evaluation.runner import play, play_expert, to_record
from agentenv.retrievers.oracle import OracleRetriever


def measure_bounds(
    policy: Policy, chat: ChatFormat, ground: Ground, config: RolloutConfig, scorer: str, *, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Lower and upper bounds on the questions of ``ground``.

    Returns:
        For ``closed_book`` (no search allowed), ``oracle`` (every search finds exactly the supporting documents) and
        ``expert`` (scripted): the score under ``scorer`` with n and interval, or a note that says why there is none.
    """
    tasks = ground.source.tasks
    closed = play(policy, chat, ground.varied(max_turns=0).make_env, tasks, config, seed=seed, name="closed")
    bounds = {"closed_book": _score(closed, scorer)}
    try:
        documents = {document.id: document for document in corpus_of(ground.source) or ()}
        gold = ground.varied(retriever=OracleRetriever(tasks, documents))
        oracle = play(policy, chat, gold.make_env, tasks, config, seed=seed, name="oracle")
        bounds["oracle"] = _score(oracle, scorer)
    except ConfigurationError as error:
        bounds["oracle"] = {"note": str(error)}
    bounds["expert"] = _score(play_expert(ground.make_env, tasks, config, seed=seed), scorer)
    return bounds


def _score(trajectories: list[Trajectory], scorer: str) -> dict[str, Any]:
    records = [to_record(trajectory) for trajectory in trajectories if trajectory.valid]
    score: dict[str, Any] = score_tables(records, [scorer])["scores"][scorer]
    return score
