"""Demonstrators of database queries: some make no mistake, most make slips, which they mend or hand in.

A slip is a query that cannot run, or one that runs and answers another question.
"""

import re
from collections.abc import Callable, Sequence
from random import Random

from agentenv.core.grammar import written_block
from agentenv.core.types import Task

MENDED = 0.5
"""Share of the slips in queries that were tried out that are mended."""
THOUGHTFUL = 0.6
"""Share of the episodes that begin with a thought."""
_OTHERS = {
    "avg(": "max(",
    "max(": "min(",
    "min(": "avg(",
    "sum(": "avg(",
    " > ": " < ",
    " < ": " > ",
    " DESC": " ASC",
    " ASC": " DESC",
}

Demonstrator = Callable[[Task, Random], list[str]]
"""Gives what is written in an episode, turn by turn."""


def queries(careless: float, tags: tuple[str, str], looks: Sequence[int]) -> Demonstrator:
    """Hands a query in, after trying it out or at once; slips in a share of the first tries, and mends some of these.

    Args:
        careless: Share of the first tries that slip.
        tags: Of a query that is tried out, and of the one that is handed in.
        looks: How often it looks, drawn for each episode: 0 not at all, 1 tries the query, 2 counts the rows of its table
            before that.
    """
    probe, final = tags

    def show(task: Task, rng: Random) -> list[str]:
        right, count = spelt(task.data["gold"]), rng.choice(looks)
        query = slip(right, rng) if rng.random() < careless else right
        tried = [f"SELECT count(*) FROM {table_of(right)}"] if count > 1 else []
        if count:
            tried.append(query)
            if query != right and rng.random() < MENDED:
                query = right
                tried.append(query)
        first, *others = [*(written_block(probe, one) for one in tried), written_block(final, query)]
        thought = written_block("think", table_of(right)) if rng.random() < THOUGHTFUL else ""
        return [thought + first, *others]

    return show


def spelt(gold: str) -> str:
    """``gold`` over one table, with each name and word after a space, as it stands in the question.

    A tokenizer gives a word after a point, a bracket or a quotation mark other ids than the same word within a text, and a
    small policy that copies could not write it. So columns lose their table, and a text is trimmed of the spaces around it.
    """
    table = table_of(gold)
    bare = gold.replace(f"{table}.", "")
    roomy = re.sub(r"\((\w+)\)", r"( \1 )", bare)
    return re.sub(r"'((?:[^']|'')*)'", r"trim(' \1 ')", roomy)


def table_of(query: str) -> str:
    """The table after the first ``FROM``."""
    return query.partition(" FROM ")[2].partition(" ")[0]


def slip(query: str, rng: Random) -> str:
    """``query`` with one mistake: its table or its condition is lost, or an aggregate, a sign or an order is another one."""
    table = f" FROM {table_of(query)}"
    broken = [query.replace(table, "", 1)]
    if " WHERE " in query:
        kept, _, rest = query.partition(" WHERE ")
        order = rest.find(" ORDER BY ")
        broken.append(kept + (rest[order:] if order >= 0 else ""))
    swapped = next((mark for mark in _OTHERS if mark in query), "")
    if swapped:
        broken.append(query.replace(swapped, _OTHERS[swapped], 1))
    return rng.choice(broken)
