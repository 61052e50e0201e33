"""Domains under invented names: the same shape, other words, and questions that can be asked of them."""

from pathlib import Path
from random import Random

import pytest

from agentenv.data.invented_domains import invented_domain
from agentenv.data.sql_domains import DOMAINS
from agentenv.data.sql_tasks import generate_sql_tasks


@pytest.mark.parametrize("name", DOMAINS["train"])
def test_every_name_is_another_and_the_references_hold(name: str) -> None:
    before, after = DOMAINS["train"][name], invented_domain(DOMAINS["train"][name], Random(1))
    names = dict(zip((table.one for table in before), (table.one for table in after), strict=True))
    columns = [column.name for table in after for column in (*table.words, *table.numbers)]
    words = [*names.values(), *columns, *(word for t in after for c in t.words for word in c.choices)]
    assert len(set(words)) == len(words)
    assert set(words).isdisjoint(column.name for table in before for column in (*table.words, *table.numbers))
    for old, new in zip(before, after, strict=True):
        assert (new.label, new.naming, new.many) == (old.label, old.naming, f"{new.one}s")
        assert new.parents == tuple(names[parent] for parent in old.parents)
        assert [(c.low, c.high, c.decimals) for c in new.numbers] == [
            (c.low, c.high, c.decimals) for c in old.numbers
        ]
        assert all(column.phrase.endswith(column.name) for column in new.numbers)


def test_questions_are_about_the_domains_that_are_given(tmp_path: Path) -> None:
    domain = invented_domain(DOMAINS["train"]["shop"], Random(2))
    tasks = generate_sql_tasks(40, databases=1, domains={"shop": domain}, folder=tmp_path)
    tables = {table.many for table in domain}
    assert all(any(table in task.data["gold"] for table in tables) for task in tasks)
    assert {task.data["level"] for task in tasks} == {1, 2, 3, 4, 5}
