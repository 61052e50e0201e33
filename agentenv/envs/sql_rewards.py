"""Rewards of an episode on a database: weighted parts, and published rules that are not weighted sums.

A reward is a function of how the episode ended. A query counts by its worst database, so that copying the values that one
database shows is not rewarded. Every named reward is divided by that of a right query in the right format, which is
therefore worth 1 under each of them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from agentenv.core.scoring import tables
from agentenv.errors import ConfigurationError, check_known
from agentenv.sandbox.sql import SqlResult
from agentenv.sandbox.sql_grading import same_set
from agentenv.sandbox.sql_tokens import tokens


@dataclass(frozen=True)
class SqlEnding:
    """How an episode on a database ended: everything that a reward may use."""

    gold: str
    """The gold query."""
    query: str | None = None
    """The submitted query; None without one."""
    results: tuple[tuple[SqlResult, SqlResult], ...] = ()
    """The results of the submitted and of the gold query on each database, up to the first failure."""
    matches: tuple[bool, ...] = ()
    """Whether the query was right, for each database."""
    well_formed: bool = False
    """Whether all actions had the right format; see `is_well_formed`."""
    tag_share: float = 0.0
    """Share of the four tags that occur exactly once in the last action."""
    length: int = 0
    """Number of tokens that the policy wrote in the episode."""
    query_share: float = 0.0
    """Share of the last block's characters that belong to the query, and not to a code fence or white space."""
    probes: int = 0
    """Number of different intermediate queries that ran and read a table."""

    @property
    def right(self) -> bool:
        """Whether the query equals the gold query on every database, including duplicates and a requested order."""
        return bool(self.matches) and all(self.matches)

    @property
    def ran(self) -> bool:
        """Whether the query ran on every database."""
        return bool(self.matches) and len(self.results) == len(self.matches)

    def worst(self, measure: tables.Measure) -> float:
        """Returns the smallest value of ``measure`` over the databases; 0 if the query failed or returned too much."""
        if not self.ran or any(found.more for found, _ in self.results):
            return 0.0
        return min(measure(found.rows, wanted.rows) for found, wanted in self.results)


Part = Callable[[SqlEnding], float]


def is_well_formed(action: str, tags: Sequence[str], *, thinks: bool) -> bool:
    """Whether ``action`` consists of a non-empty thought and one block of ``tags``.

    Args:
        action: The policy's text.
        tags: The tags of allowed blocks.
        thinks: Whether a thought is required, as in the first action of an episode.
    """
    names = "|".join(map(re.escape, tags))
    inner = rf"(?:(?!</?(?:think|{names})>).)*?"
    thought = rf"<think>(?=\s*\S){inner}\S\s*</think>\s*"
    form = rf"\s*{thought if thinks else f'(?:{thought})?'}<({names})>{inner}</\1>\s*"
    return re.fullmatch(form, action, re.DOTALL) is not None


def tag_share(action: str, tag: str) -> float:
    """.25 for each of ``<think>``, ``</think>``, ``<tag>`` and ``</tag>`` that occurs exactly once (Think2SQL)."""
    return sum(action.count(one) == 1 for one in ("<think>", "</think>", f"<{tag}>", f"</{tag}>")) / 4


def execution(ending: SqlEnding) -> float:
    """1 if the query equals the gold query: equal multisets of rows, in order if the gold query orders them."""
    return float(ending.right)


def execution_accuracy(ending: SqlEnding) -> float:
    """BIRD's EX: 1 if both return the same set of rows, regardless of order and duplicates."""
    return float(ending.ran and all(same_set(found, wanted) for found, wanted in ending.results))


def exact(ending: SqlEnding) -> float:
    """1 if the query has the same tokens as the gold query (ReEx-SQL; the rule is not from the paper)."""
    return float(ending.query is not None and tokens(ending.query) == tokens(ending.gold))


def entity(ending: SqlEnding) -> float:
    """F1 over the tables and columns that both queries read, on the first database (ReEx-SQL; not the paper's rule)."""
    if not ending.results:
        return 0.0
    found, wanted = (_entities(result) for result in ending.results[0])
    both = len(found & wanted)
    return 2 * both / (len(found) + len(wanted)) if both else 0.0


def _entities(result: SqlResult) -> set[str]:
    columns = {f"{table}.{column}" for table, column in result.reads if column}
    return columns | {table for table, _ in result.reads}


def exploration(ending: SqlEnding) -> float:
    """[the query is right] * min(1, probes / 2): trying pays only with a right answer (ReEx-SQL; not the paper's rule)."""
    return float(ending.right) * min(1.0, ending.probes / 2)


def unconditional_exploration(ending: SqlEnding) -> float:
    """min(1, probes / 2) for any submitted query; `exploration` requires a right one."""
    return min(1.0, ending.probes / 2) if ending.query is not None else 0.0


PARTS: Mapping[str, Part] = {
    "execution": execution,
    "execution_accuracy": execution_accuracy,
    "exact": exact,
    "entity": entity,
    "exploration": exploration,
    "unconditional_exploration": unconditional_exploration,
    "format": lambda ending: float(ending.well_formed and ending.query is not None),
    "tag_count": lambda ending: ending.tag_share if ending.query is not None else 0.0,
    "cell_precision": lambda ending: ending.worst(tables.cell_precision),
    "cell_recall": lambda ending: ending.worst(tables.cell_recall),
    "tuple_cardinality": lambda ending: ending.worst(tables.tuple_cardinality),
    "cell_f1": lambda ending: ending.worst(tables.cell_f1),
    "tuple_constraint": lambda ending: ending.worst(tables.tuple_constraint),
    "tuple_order": lambda ending: ending.worst(tables.tuple_order),
    "qatch": lambda ending: ending.worst(tables.qatch),
}
"""The parts of which a reward can consist; every part is between 0 and 1."""


def weighted(weights: Mapping[str, float], ending: SqlEnding) -> float:
    """Returns the weighted mean of parts."""
    total = sum(weight * PARTS[name](ending) for name, weight in weights.items())
    return total / sum(weights.values())


def reex(ending: SqlEnding) -> float:
    """ReEx-SQL (arXiv:2505.12768): 2 format + 1 exact + 3 execution + 1 entity + 2 exploration; 0 in a wrong format."""
    weights = {"format": 2.0, "exact": 1.0, "execution": 3.0, "entity": 1.0, "exploration": 2.0}
    return weighted(weights, ending) if PARTS["format"](ending) else 0.0


def dense(ending: SqlEnding) -> float:
    """Think2SQL's dense reward (arXiv:2504.15077): QATCH, at least .1 in the right format; else 0 unless QATCH is 1."""
    value = PARTS["qatch"](ending)
    if not ending.ran or value == 1.0:
        return value
    return max(value, 0.1) if PARTS["format"](ending) else 0.0


def bucketed(ending: SqlEnding) -> float:
    """The dense reward in steps: below .1 it is .1, below .5 it is .5, below .8 it is .8, and below 1 it is .9."""
    value = dense(ending)
    if value in (0.0, 1.0):
        return value
    metric = PARTS["qatch"](ending)
    return next(reward for edge, reward in ((0.1, 0.1), (0.5, 0.5), (0.8, 0.8), (1.0, 0.9)) if metric < edge)


def arctic(ending: SqlEnding) -> float:
    """Arctic-Text2SQL-R1 (arXiv:2505.20315): 1 for a right query, .1 for one that runs and is well formed, else 0."""
    if execution_accuracy(ending):
        return 1.0
    return 0.1 if ending.ran and PARTS["format"](ending) else 0.0


def sql_r1(ending: SqlEnding) -> float:
    """SQL-R1 (arXiv:2504.08600) over 6: format 1 or -1; if 1, runs 2 or -2; if it runs, right 3 or -3.

    The published bonus for long replies is left out, because it rewards mere length; `sql_r1_length` includes it.
    """
    if not PARTS["format"](ending):
        return -1.0 / 6
    if not ending.ran:
        return (1.0 - 2.0) / 6
    return (1.0 + 2.0 + (3.0 if execution_accuracy(ending) else -3.0)) / 6


LONGEST = 2048
"""Number of tokens beyond which a longer reply earns no more in SQL-R1."""


def length_bonus(length: int, query_share: float) -> float:
    """SQL-R1's bonus of a right query: .5 min(1, length / 2048), plus the share of its answer that is the query.

    Args:
        length: Number of tokens that the policy wrote.
        query_share: The length of the query divided by that of its block.
    """
    return 0.5 * min(1.0, length / LONGEST) + query_share


def sql_r1_length(ending: SqlEnding) -> float:
    """SQL-R1 (arXiv:2504.08600) with its length bonus, over 6: a right query earns 1 to 1.25, all else as in `sql_r1`.

    The bonus applies only to a right query in the right format, and rewards length regardless of content.
    """
    plain = sql_r1(ending)
    return plain + length_bonus(ending.length, ending.query_share) / 6 if plain == 1.0 else plain


@dataclass(frozen=True)
class SqlReward:
    """A reward rule, and whether it depends on the form of actions, which the policy then has to be told."""

    rule: Part
    needs_form: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of ``PARTS``, if the rule is their weighted mean; empty for other rules."""

    def __call__(self, ending: SqlEnding) -> float:
        """Returns the reward of an episode that ended in this way."""
        return self.rule(ending)

    def parts(self, ending: SqlEnding) -> dict[str, float]:
        """Returns the contribution of each part to that reward, by name; empty if the rule is not a weighted mean."""
        total = sum(self.weights.values())
        return {name: weight * PARTS[name](ending) / total for name, weight in self.weights.items()}


def _weighted_reward(weights: Mapping[str, float]) -> SqlReward:
    """Makes a reward that is the weighted mean of parts."""
    named = dict(weights)
    return SqlReward(partial(weighted, named), not {"format", "tag_count"}.isdisjoint(named), named)


REWARDS: Mapping[str, SqlReward] = {
    "execution": SqlReward(execution),
    "ex": SqlReward(execution_accuracy),
    "think2sql": _weighted_reward({"execution_accuracy": 0.85, "format": 0.15}),
    "qatch": SqlReward(PARTS["qatch"]),
    "dense": SqlReward(dense, True),
    "bucketed": SqlReward(bucketed, True),
    "arctic": SqlReward(arctic, True),
    "sql_r1": SqlReward(sql_r1, True),
    "sql_r1_length": SqlReward(sql_r1_length, True),
    "reex": SqlReward(reex, True),
}
"""The rewards by name."""


def get_reward(reward: str | Mapping[str, float]) -> SqlReward:
    """Returns the reward with a name, or the weighted mean of the named parts.

    Raises:
        UnknownName: there is no such reward or part.
        ConfigurationError: a weight is not above 0.
    """
    if isinstance(reward, str):
        check_known("reward of SQL-v0", reward, REWARDS)
        return REWARDS[reward]
    for name in reward:
        check_known("part of a reward of SQL-v0", name, PARTS)
    if not reward or min(reward.values()) <= 0:
        raise ConfigurationError(f"reward={dict(reward)} needs at least one part, and weights above 0")
    return _weighted_reward(reward)
