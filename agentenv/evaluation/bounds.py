"""What to hold a score against: the same policy without search and with gold passages, and the scripted expert.

Without a search the policy has to answer from what it knows (`agentenv.evaluation.closed_book`). The expert knows what to
search for, but answers only where its searches showed what the answer stands on: it is the ceiling that retrieval sets.

Gold passages are served in two forms. ``oracle`` shows all of them at once whatever is searched, as publications do; it is
a ceiling for a policy that reads freely. ``oracle_paged`` keeps the form of the episodes, pages of k passages, and puts the
passage that is due on each; it is the ceiling of the search alone for a policy that knows one form only. Where a bound
lies below the run itself it bounds nothing, and the results say so.
"""

from typing import Any

from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import RolloutConfig
from agentenv.errors import ConfigurationError, Fault
from agentenv.evaluation.closed_book import closed_book
from agentenv.evaluation.ground import Ground, corpus_of
from agentenv.evaluation.records import Record
from agentenv.evaluation.results import score_tables
from agentenv.evaluation.runner import play, play_expert, to_record
from agentenv.retrievers.oracle import OracleRetriever, PagedOracleRetriever


def measure_bounds(
    policy: Policy, chat: ChatFormat, ground: Ground, config: RolloutConfig, scorer: str, *, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Lower and upper bounds on the questions of ``ground``.

    Returns:
        For ``closed_book`` (no search, an answer at once), ``oracle`` and ``oracle_paged`` (gold passages) and ``expert``
        (scripted): the score under ``scorer`` with n and interval, or a note that says why there is none.
    """
    tasks = ground.source.tasks
    bounds: dict[str, dict[str, Any]] = {}
    for name, variant in variants(ground, policy).items():
        if isinstance(variant, str):
            bounds[name] = {"note": variant}
            continue
        phase, (its_ground, player) = name.removesuffix("_book"), variant
        try:
            played = play(player, chat, its_ground.make_env, tasks, config, seed=seed, name=phase)
        except (ConfigurationError, Fault) as error:  # the run itself is played, and worth more than a bound
            bounds[name] = {"note": str(error)}
            continue
        bounds[name] = bound_of([to_record(trajectory) for trajectory in played], scorer)
    bounds["expert"] = measure_expert(ground, config, scorer, seed=seed)
    return bounds


def variants(ground: Ground, policy: Policy) -> dict[str, tuple[Ground, Policy] | str]:
    """The grounds on which the policy itself plays for its bounds, and in what form; a sentence where there can be none.

    None at all where the environment searches nothing.
    """
    if ground.retriever is None:
        return {}
    found: dict[str, tuple[Ground, Policy] | str] = {"closed_book": closed_book(ground, policy)}
    try:
        oracle = OracleRetriever(
            ground.source.tasks, {document.id: document for document in corpus_of(ground.source) or ()}
        )
    except ConfigurationError as error:
        return found | {"oracle": str(error), "oracle_paged": str(error)}
    paged = PagedOracleRetriever(oracle, ground.retriever)
    found["oracle"] = ground.varied(retriever=oracle), policy
    found["oracle_paged"] = ground.varied(retriever=paged), policy
    return found


def measure_expert(ground: Ground, config: RolloutConfig, scorer: str, *, seed: int = 0) -> dict[str, Any]:
    """The scripted expert on the questions of ``ground``; a note where the environment has none."""
    try:
        played = play_expert(ground.make_env, ground.source.tasks, config, seed=seed, shown_only=True)
    except (ConfigurationError, Fault) as error:
        return {"note": str(error)}
    return bound_of([to_record(trajectory) for trajectory in played], scorer)


def bound_of(records: list[Record], scorer: str) -> dict[str, Any]:
    """The score of ``records`` with n and interval; faults are left out."""
    valid = [record for record in records if record["valid"]]
    score: dict[str, Any] = score_tables(valid, [scorer])["scores"][scorer]
    return score
