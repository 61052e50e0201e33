"""Rewards of an episode over a database: parts with weights, and the published rules that are no weighted sum.

A reward is a number from how the episode ended. A query counts by its worst database, so that writing down what one
database shows does not pay. Every named reward is divided by what a right query in the right form earns, so that this is
worth 1 under each of them.
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
    """How an episode over a database ended: all that a reward may look at."""

    gold: str
    """The right query."""
    query: str | None = None
    """What was handed in; None where nothing was."""
    results: tuple[tuple[SqlResult, SqlResult], ...] = ()
    """What it gave and what the gold query gave on each database, up to the first on which it failed."""
    matches: tuple[bool, ...] = ()
    """Whether it was right, one entry a database."""
    well_formed: bool = False
    """Whether all actions had the right form; see `is_well_formed`."""
    tag_share: float = 0.0
    """Share of the four tags of the last action that stand in it exactly once."""
    length: int = 0
    """Tokens of everything that the policy wrote in the episode."""
    query_share: float = 0.0
    """Share of the characters of the last block that are the query, and no fence or blank around it."""
    probes: int = 0
    """Different queries that were tried out, ran and read a table."""

    @property
    def right(self) -> bool:
        """Whether the query gave what the gold query gives on every database, duplicates and asked orders included."""
        return bool(self.matches) and all(self.matches)

    @property
    def ran(self) -> bool:
        """Whether the query ran on every database."""
        return bool(self.matches) and len(self.results) == len(self.matches)

    def worst(self, measure: tables.Measure) -> float:
        """The least value of ``measure`` over the databases; 0 where the query failed or gave too much."""
        if not self.ran or any(found.more for found, _ in self.results):
            return 0.0
        return min(measure(found.rows, wanted.rows) for found, wanted in self.results)


Part = Callable[[SqlEnding], float]


def is_well_formed(action: str, tags: Sequence[str], *, thinks: bool) -> bool:
    """Whether ``action`` is a thought that says something, and then one block of ``tags``, and nothing else.

    Args:
        action: What was written.
        tags: Of the blocks that may stand in it.
        thinks: Whether there must be a thought, as in the first action of an episode.
    """
    names = "|".join(map(re.escape, tags))
    inner = rf"(?:(?!</?(?:think|{names})>).)*?"
    thought = rf"<think>(?=\s*\S){inner}\S\s*</think>\s*"
    form = rf"\s*{thought if thinks else f'(?:{thought})?'}<({names})>{inner}</\1>\s*"
    return re.fullmatch(form, action, re.DOTALL) is not None


def tag_share(action: str, tag: str) -> float:
    """.25 for each of ``<think>``, ``</think>``, ``<tag>`` and ``</tag>`` that stands in ``action`` once (Think2SQL)."""
    return sum(action.count(one) == 1 for one in ("<think>", "</think>", f"<{tag}>", f"</{tag}>")) / 4


def execution(ending: SqlEnding) -> float:
    """1 where the query gives what the gold query gives: equal multisets of rows, in order where the gold query orders."""
    return float(ending.right)


def execution_accuracy(ending: SqlEnding) -> float:
    """BIRD's EX: 1 where both give the same set of rows, whatever their order and number."""
    return float(ending.ran and all(same_set(found, wanted) for found, wanted in ending.results))


def exact(ending: SqlEnding) -> float:
    """1 where the tokens of the query are those of the gold query (ReEx-SQL; the rule is ours)."""
    return float(ending.query is not None and tokens(ending.query) == tokens(ending.gold))


def entity(ending: SqlEnding) -> float:
    """F1 over the tables and columns that both queries read, on the first database (ReEx-SQL; the rule is ours)."""
    if not ending.results:
        return 0.0
    found, wanted = (_entities(result) for result in ending.results[0])
    both = len(found & wanted)
    return 2 * both / (len(found) + len(wanted)) if both else 0.0


def _entities(result: SqlResult) -> set[str]:
    columns = {f"{table}.{column}" for table, column in result.reads if column}
    return columns | {table for table, _ in result.reads}


def exploration(ending: SqlEnding) -> float:
    """[the query is right] * min(1, probes / 2): looking pays only with a right answer (ReEx-SQL; the rule is ours)."""
    return float(ending.right) * min(1.0, ending.probes / 2)


def unconditional_exploration(ending: SqlEnding) -> float:
    """min(1, probes / 2) wherever a query was handed in, right or wrong: what `exploration` pays only with a right one."""
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
"""What a reward can be put together of; every part is between 0 and 1."""


def weighted(weights: Mapping[str, float], ending: SqlEnding) -> float:
    """The mean of parts with weights."""
    total = sum(weight * PARTS[name](ending) for name, weight in weights.items())
    return total / sum(weights.values())


def reex(ending: SqlEnding) -> float:
    """ReEx-SQL (arXiv:2505.12768): 2 format + 1 exact + 3 execution + 1 entity + 2 exploration, nothing without the form."""
    weights = {"format": 2.0, "exact": 1.0, "execution": 3.0, "entity": 1.0, "exploration": 2.0}
    return weighted(weights, ending) if PARTS["format"](ending) else 0.0


def dense(ending: SqlEnding) -> float:
    """Think2SQL's dense reward (arXiv:2504.15077): QATCH, at least .1 in the right form; 0 without it unless QATCH is 1."""
    value = PARTS["qatch"](ending)
    if not ending.ran or value == 1.0:
        return value
    return max(value, 0.1) if PARTS["format"](ending) else 0.0


def bucketed(ending: SqlEnding) -> float:
    """The dense reward in steps: below .1 is .1, below .5 is .5, below .8 is .8 and below 1 is .9."""
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
    """SQL-R1 (arXiv:2504.08600) over 6: form 1 or -1; if 1, runs 2 or -2; if it runs, right 3 or -3.

    The published bonus for long replies is left out, because it pays words; `sql_r1_length` has it.
    """
    if not PARTS["format"](ending):
        return -1.0 / 6
    if not ending.ran:
        return (1.0 - 2.0) / 6
    return (1.0 + 2.0 + (3.0 if execution_accuracy(ending) else -3.0)) / 6


LONGEST = 2048
"""Tokens beyond which a longer reply earns no more in SQL-R1."""


def length_bonus(length: int, query_share: float) -> float:
    """SQL-R1's bonus of a right query: .5 min(1, length / 2048), and the share of its answer that is the query.

    Args:
        length: Tokens that the policy wrote.
        query_share: Length of the query over that of the block it stands in.
    """
    return 0.5 * min(1.0, length / LONGEST) + query_share


def sql_r1_length(ending: SqlEnding) -> float:
    """SQL-R1 (arXiv:2504.08600) with its length bonus, over 6: a right query is worth 1 to 1.25, all else as `sql_r1`.

    The bonus is paid for a right query in the right form alone; there it pays words, whatever they say.
    """
    plain = sql_r1(ending)
    return plain + length_bonus(ending.length, ending.query_share) / 6 if plain == 1.0 else plain


@dataclass(frozen=True)
class SqlReward:
    """A rule, and whether it looks at the form of actions, so that the policy has to be told of that."""

    rule: Part
    needs_form: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of ``PARTS``, where the rule is their weighted mean; empty for other rules."""

    def __call__(self, ending: SqlEnding) -> float:
        """What an episode earns that ended so."""
        return self.rule(ending)

    def parts(self, ending: SqlEnding) -> dict[str, float]:
        """What each part adds to that reward, by name; nothing where the rule is no weighted mean."""
        total = sum(self.weights.values())
        return {name: weight * PARTS[name](ending) / total for name, weight in self.weights.items()}


def _of_parts(weights: Mapping[str, float]) -> SqlReward:
    """The weighted mean of parts."""
    named = dict(weights)
    return SqlReward(partial(weighted, named), not {"format", "tag_count"}.isdisjoint(named), named)


REWARDS: Mapping[str, SqlReward] = {
    "execution": SqlReward(execution),
    "ex": SqlReward(execution_accuracy),
    "think2sql": _of_parts({"execution_accuracy": 0.85, "format": 0.15}),
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
    """The reward of a name, or the weighted mean of the parts that are named with their weights.

    Raises:
        UnknownName: no such reward or part.
        ConfigurationError: weights that are not above 0.
    """
    if isinstance(reward, str):
        check_known("reward of SQL-v0", reward, REWARDS)
        return REWARDS[reward]
    for name in reward:
        check_known("part of a reward of SQL-v0", name, PARTS)
    if not reward or min(reward.values()) <= 0:
        raise ConfigurationError(f"reward={dict(reward)} needs at least one part, and weights above 0")
    return _of_parts(reward)
