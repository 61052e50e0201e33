"""Rewards of SQL-v0: every rule by hand, and what must not pay."""

from dataclasses import replace
from typing import Any

import pytest

from agentenv.core.types import ToolStatus
from agentenv.envs.sql_rewards import (
    PARTS,
    REWARDS,
    SqlEnding,
    get_reward,
    is_well_formed,
    length_bonus,
    tag_share,
)
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.sandbox.sql import SqlResult

TAGS = ("sql", "submit")
GOLD = "SELECT name FROM city"


def table(*rows: tuple[Any, ...], reads: str = "city.name", more: bool = False) -> SqlResult:
    named = tuple((one.partition(".")[0], one.partition(".")[2]) for one in reads.split())
    return SqlResult(ToolStatus.OK, ("name",), rows, more, reads=named)


WANTED = table(("a",), ("b",))
SILENT = SqlEnding(GOLD, well_formed=True)
FAILED = SqlEnding(GOLD, "SELECT nme", matches=(False,), well_formed=True)
RIGHT = SqlEnding(GOLD, GOLD, ((WANTED, WANTED),), (True,), well_formed=True, tag_share=1.0, probes=2)
DOUBLED = SqlEnding(GOLD, "SELECT n", ((table(("a",), ("b",), ("b",)), WANTED),), (False,), well_formed=True)
HALF = SqlEnding(
    GOLD,
    "SELECT size FROM city JOIN land",
    ((table(("a",), ("c",), reads="city.name city.size land."), WANTED),),
    (False,),
    well_formed=True,
    probes=9,
)
OTHER = SqlEnding(GOLD, "SELECT 9", ((table((9,)), WANTED),), (False,), well_formed=True)


def formless(ending: SqlEnding) -> SqlEnding:
    return SqlEnding(ending.gold, ending.query, ending.results, ending.matches, False, probes=ending.probes)


CASES = [
    # QATCH of HALF: cells {a, c} and {a, b}: CP .5, CR .5, TC 1, so .667; of DOUBLED 1, 1, .667; of OTHER 0, 0, .5, so .167
    ("execution", [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
    ("ex", [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]),  # BIRD's sets forgive a doubled row
    ("think2sql", [0.0, 0.15, 1.0, 1.0, 0.15, 0.15]),
    ("qatch", [0.0, 0.0, 1.0, 0.889, 0.667, 0.167]),
    ("dense", [0.0, 0.0, 1.0, 0.889, 0.667, 0.167]),
    ("bucketed", [0.0, 0.0, 1.0, 0.9, 0.8, 0.5]),
    ("arctic", [0.0, 0.0, 1.0, 1.0, 0.1, 0.1]),
    ("sql_r1", [-1 / 6, -1 / 6, 1.0, 1.0, 0.0, 0.0]),
    ("sql_r1_length", [-1 / 6, -1 / 6, 1.0, 1.0, 0.0, 0.0]),  # these endings have no length
    # entities of HALF: {city, city.name, city.size, land} and {city, city.name}: F1 = 2 * 2 / 6; none of its probes pays
    ("reex", [0.0, 2 / 9, 1.0, 3 / 9, (2 + 2 / 3) / 9, 3 / 9]),
]


@pytest.mark.parametrize(("name", "values"), CASES, ids=[name for name, _ in CASES])
def test_every_named_reward_by_hand(name: str, values: list[float]) -> None:
    endings = (SILENT, FAILED, RIGHT, DOUBLED, HALF, OTHER)
    assert [REWARDS[name](ending) for ending in endings] == pytest.approx(values)


def test_every_reward_is_tested() -> None:
    assert {name for name, _ in CASES} == set(REWARDS)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("dense", 1.0, 0.0),
        ("arctic", 1.0, 0.0),
        ("think2sql", 0.85, 0.0),
        ("reex", 0.0, 0.0),
        ("sql_r1", -1 / 6, -1 / 6),
        ("sql_r1_length", -1 / 6, -1 / 6),
    ],
)
def test_without_the_form(name: str, right: float, wrong: float) -> None:
    assert REWARDS[name](formless(RIGHT)) == pytest.approx(right)
    assert REWARDS[name](formless(OTHER)) == pytest.approx(wrong)


def test_the_length_bonus_of_sql_r1() -> None:
    """1,024 of 2,048 tokens are .25, and a query that is half of its block .5; so 6.75 over 6. Beyond 2,048 it is .5."""
    assert length_bonus(1024, 0.5) == 0.75
    assert length_bonus(9000, 1.0) == 1.5
    long = replace(RIGHT, length=1024, query_share=0.5)
    assert REWARDS["sql_r1_length"](long) == pytest.approx(6.75 / 6)
    for wrong in (replace(OTHER, length=9000, query_share=1.0), replace(long, well_formed=False)):
        assert REWARDS["sql_r1_length"](wrong) == REWARDS["sql_r1"](wrong) <= 0.0


@pytest.mark.parametrize(("probes", "value"), [(0, 0.0), (1, 0.5), (2, 1.0), (9, 1.0)])
def test_exploration_pays_up_to_two_probes_and_only_with_success(probes: int, value: float) -> None:
    right = SqlEnding(GOLD, GOLD, RIGHT.results, (True,), probes=probes)
    wrong = SqlEnding(GOLD, GOLD, RIGHT.results, (False,), probes=probes)
    assert (PARTS["exploration"](right), PARTS["exploration"](wrong)) == (value, 0.0)


def test_exploration_without_a_condition_pays_wrong_queries_too_but_not_silence() -> None:
    pays = PARTS["unconditional_exploration"]
    assert [pays(replace(OTHER, probes=probes)) for probes in (0, 1, 2, 9)] == [0.0, 0.5, 1.0, 1.0]
    assert pays(RIGHT) == PARTS["exploration"](RIGHT) == 1.0
    assert pays(replace(SILENT, probes=9)) == 0.0


def test_a_query_counts_by_its_worst_database() -> None:
    constant = SqlEnding(
        GOLD, "VALUES ('a'), ('b')", ((WANTED, WANTED), (WANTED, table(("x",)))), (True, False)
    )
    assert REWARDS["qatch"](constant) == pytest.approx(0.167)  # 0, 0 and 1 row of 2
    assert REWARDS["ex"](constant) == 0.0
    stopped = SqlEnding(GOLD, "SELECT 1 / 0", ((WANTED, WANTED),), (True, False))  # it failed on the second
    assert REWARDS["qatch"](stopped) == REWARDS["ex"](stopped) == 0.0
    endless = SqlEnding(GOLD, GOLD, ((table(("a",), ("b",), more=True), WANTED),), (False,))
    assert REWARDS["qatch"](endless) == REWARDS["ex"](endless) == 0.0


def test_the_further_measures_of_qatch_are_parts() -> None:
    """One row too many of two: CP and CR 1, one of the two wanted rows as often, both in order."""
    assert [PARTS[name](DOUBLED) for name in ("cell_f1", "tuple_constraint", "tuple_order")] == [
        1.0,
        0.5,
        1.0,
    ]
    assert get_reward({"tuple_constraint": 1.0, "tuple_order": 1.0})(DOUBLED) == 0.75


def test_parts_are_mixed_by_their_weights() -> None:
    reward = get_reward({"exact": 1.0, "entity": 3.0})
    assert reward(HALF) == pytest.approx(3 * (2 / 3) / 4)
    assert reward.parts(HALF) == {"exact": 0.0, "entity": pytest.approx(3 * (2 / 3) / 4)}
    assert get_reward("dense").parts(HALF) == {}  # a rule that is no sum
    with pytest.raises(UnknownName, match="'entty'"):
        get_reward({"entty": 1.0})
    with pytest.raises(UnknownName, match="'denze'"):
        get_reward("denze")
    for bad in ({}, {"exact": 0.0}):
        with pytest.raises(ConfigurationError):
            get_reward(bad)


@pytest.mark.parametrize(
    ("action", "first", "later"),
    [
        ("<think>why</think><sql>SELECT 1</sql>", True, True),
        (" <think> a\nb </think>\n<submit>\nSELECT 1\n</submit> ", True, True),
        ("<sql>SELECT 1</sql>", False, True),
        ("<think> </think><sql>SELECT 1</sql>", False, False),
        ("<think>a</think>", False, False),
        ("<think>a</think>so <sql>SELECT 1</sql>", False, False),
        ("<think>a</think><sql>SELECT 1</sql><sql>SELECT 2</sql>", False, False),
        ("<think>a<sql>SELECT 1</sql></think><sql>SELECT 2</sql>", False, False),
        ("<think>a</think><think>b</think><sql>SELECT 2</sql>", False, False),
        ("<think>a</think><sql>SELECT 1</submit>", False, False),
        ("", False, False),
    ],
)
def test_the_form_of_an_action(action: str, first: bool, later: bool) -> None:
    assert is_well_formed(action, TAGS, thinks=True) is first
    assert is_well_formed(action, TAGS, thinks=False) is later


def test_each_tag_that_stands_once_is_worth_a_quarter() -> None:
    assert tag_share("<think>a</think><submit>b</submit>", "submit") == 1.0
    assert tag_share("<think>a<submit>b</submit>", "submit") == 0.75
    assert tag_share("<think><think>a</think><submit>b", "submit") == 0.5
    assert tag_share("SELECT 1", "submit") == 0.0
