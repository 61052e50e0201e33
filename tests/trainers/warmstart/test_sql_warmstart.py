"""The warm start on questions over databases in miniature: what is written, shown and kept."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from agentenv.cli.main import main
from agentenv.core.types import Task
from agentenv.data.sql_domains import DOMAINS
from agentenv.data.sql_tasks import generate_sql_tasks
from agentenv.envs.reex_sql import ReExSQL
from agentenv.envs.sql import Sql
from agentenv.envs.sql_rewards import is_well_formed
from agentenv.errors import ConfigurationError
from agentenv.policies.card import read_card
from agentenv.policies.policy_spec import make_policy
from agentenv.progress import SilentDisplay
from agentenv.sandbox.sql import shared_reader
from agentenv.sandbox.sql_grading import grade_query
from agentenv.trainers.warmstart.sql_demonstrators import queries, slip, spelt, table_of
from agentenv.trainers.warmstart.sql_warmstart import (
    LEVELS,
    SqlWarmstartConfig,
    demonstrated_tasks,
    demonstrations,
    sql_warmstart,
)

TINY = SqlWarmstartConfig(tasks=12, databases=4, steps=1, episodes=4, layers=1, heads=1, judged=2)
TASKS = generate_sql_tasks(60, split="train", levels=LEVELS, databases=3)


def right(query: str, task: Task) -> bool:
    return grade_query(shared_reader(), query, task.data["gold"], task.data["databases"]).all_matched


def submitted(action: str) -> str:
    return action.partition("<submit>")[2].partition("</submit>")[0]


@pytest.mark.parametrize(
    ("gold", "written"),
    [
        ("SELECT avg(price) FROM books", "SELECT avg( price ) FROM books"),
        ("SELECT name FROM a WHERE a.c = 'it''s'", "SELECT name FROM a WHERE c = trim(' it''s ')"),
        ("SELECT count(*) FROM a WHERE a.b < 2.5", "SELECT count(*) FROM a WHERE b < 2.5"),
    ],
)
def test_names_stand_after_a_space(gold: str, written: str) -> None:
    assert spelt(gold) == written


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.data["kind"])
def test_what_is_spelt_otherwise_gives_the_same_and_a_slip_does_not(task: Task) -> None:
    query = spelt(task.data["gold"])
    assert right(query, task)
    broken = {slip(query, Random(seed)) for seed in range(8)}
    assert query not in broken
    assert not all(right(one, task) for one in broken)


def test_the_mistakes_by_hand() -> None:
    query = "SELECT name, price FROM books WHERE price > 3 ORDER BY price"
    assert table_of(query) == "books"
    assert {slip(query, Random(seed)) for seed in range(30)} == {
        "SELECT name, price WHERE price > 3 ORDER BY price",
        "SELECT name, price FROM books ORDER BY price",
        "SELECT name, price FROM books WHERE price < 3 ORDER BY price",
    }


def test_the_careful_hand_in_what_is_right_and_of_the_careless_some_mend() -> None:
    task = TASKS[0]
    careful = [queries(0.0, Sql.tags, (0, 1))(task, Random(seed)) for seed in range(40)]
    assert all(right(submitted(actions[-1]), task) for actions in careful)
    assert {len(actions) for actions in careful} == {1, 2}
    careless = [queries(1.0, Sql.tags, (0, 1))(task, Random(seed)) for seed in range(40)]
    mended = [actions for actions in careless if right(submitted(actions[-1]), task)]
    assert 0 < len(mended) < len(careless)
    assert all(len(actions) == 3 for actions in mended)
    thoughtful = sum(is_well_formed(actions[0], Sql.tags, thinks=True) for actions in careful)
    assert 0 < thoughtful < len(careful)


def test_who_explores_counts_before_a_query_is_tried() -> None:
    first, second, last = queries(0.0, ReExSQL.tags, (2,))(TASKS[0], Random(0))
    assert f"<intermediate_sql> SELECT count(*) FROM {table_of(TASKS[0].data['gold'])} " in first
    assert second.replace("intermediate_sql", "final_sql") == last


def test_what_is_shown_is_what_came_of_it() -> None:
    def failed(careless: float) -> int:
        demos = demonstrations(replace(TINY, tasks=60, careless=careless))
        assert all(demo[0].kind == "opening" for demo in demos)
        pages = [piece.text for demo in demos for piece in demo if piece.kind == "page"]
        assert all(text.startswith("\n<result>\n") for text in pages)
        return sum("OperationalError" in text for text in pages)

    assert failed(0.0) == 0
    assert failed(1.0) > 0


def test_the_forms_are_told_apart_by_their_opening_messages() -> None:
    demos = demonstrations(TINY)
    exploring = [demo for demo in demos if demo[0].text.startswith("Explore first. ")]
    assert len(exploring) == len(demos) // 2
    for demo in demos:
        tag = "final_sql" if demo in exploring else "submit"
        assert demo[-1].text.endswith(f"</{tag}>")


def test_every_domain_is_shown_under_its_own_names_in_a_quarter_of_its_databases() -> None:
    """Six domains in turn, and four rounds of them: one round keeps the names."""
    tables = {table.many: name for name, domain in DOMAINS["train"].items() for table in domain}
    tasks = demonstrated_tasks(replace(TINY, tasks=480, databases=24), Random(0))
    own = [(tables[table], task) for task in tasks if (table := table_of(task.data["gold"])) in tables]
    assert {name for name, _ in own} == set(DOMAINS["train"])
    assert len({task.data["databases"] for _, task in own}) == 6
    assert 0.15 < len(own) / len(tasks) < 0.35


def test_the_policy_comes_with_its_card(tmp_path: Path) -> None:
    out = tmp_path / "policy"
    figures = sql_warmstart(TINY, SilentDisplay(), out)
    assert all(0 <= figures[name] <= 1 for name in ("greedy", "sampled", "exploring", "unseen"))
    card = read_card(out)
    assert (card.env, card.prompt, card.max_turns) == ("agentenv/SQL-v0", "{question}\n", 3)
    policy = make_policy(f"hf:{out}")
    tags = ("think", "result", *Sql.tags, *ReExSQL.tags)
    assert [len(policy.tokenizer.encode(f"<{tag}>")) for tag in tags] == [1] * len(tags)
    assert "--env sql " in (out / "README.md").read_text()


def test_a_share_of_mistakes_is_a_share() -> None:
    with pytest.raises(ConfigurationError, match="careless"):
        SqlWarmstartConfig(careless=-0.1)


@pytest.mark.parametrize("flags", [["--stateful"], ["--hops", "2"]])
def test_what_goes_with_other_kinds_is_refused(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warmstart", "--out", str(tmp_path / "p"), "--env", "sql", *flags]) == 1
    assert f"{flags[0]} does not go with --env sql" in capsys.readouterr().err
