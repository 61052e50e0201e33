"""Writes the documents of a world from its facts."""

import random
from collections.abc import Iterator

from agentenv.core.types import Document
from agentenv.data.world_facts import Facts
from agentenv.data.world_grammar import RELATIONS, TYPES, Relation


def document_id(facts: Facts, number: int) -> str:
    """The id of document ``number``."""
    return f"{facts.config.split}-{facts.config.seed}-d{number}"


def write_documents(facts: Facts) -> Iterator[Document]:
    """All documents in order, one at a time."""
    rng = random.Random(f"documents {facts.config.seed}")
    columns = {
        kind: [
            (r, facts.where[kind][r.name].tolist(), facts.values[kind][r.name].tolist())
            for r in RELATIONS[kind]
        ]
        for kind in TYPES
    }
    number = 0
    for type_number, i in facts.order.tolist():
        kind = TYPES[type_number]
        title = facts.names[kind][i]
        for page in range(1, int(facts.pages[kind][i]) + 1):
            stated = [(r, value[i]) for r, where, value in columns[kind] if where[i] == page]
            rng.shuffle(stated)
            subjects = [title] + [_short(title, kind)] * (len(stated) - 1)
            lines = [
                sentence(facts, rng, subject, r, i, value)
                for subject, (r, value) in zip(subjects, stated, strict=True)
            ]
            if number in facts.guests:
                relation, j = facts.guests[number]
                value = int(facts.values["person"][relation.name][j])
                lines.insert(0, sentence(facts, rng, facts.names["person"][j], relation, j, value))
            yield Document(document_id(facts, number), title, " ".join(lines))
            number += 1


def sentence(facts: Facts, rng: random.Random, subject: str, relation: Relation, i: int, value: int) -> str:
    """One fact in words; ``subject`` is how the sentence calls entity ``i``."""
    forms = relation.sentences[: facts.config.paraphrase]
    form = forms[int(rng.random() * len(forms))]
    head = ""
    if relation.name == "successor":
        head = facts.names["person"][int(facts.first_head[i])]
    text = _list(facts, i) if relation.name == "works" else facts.text(relation, value)
    line = form.format(s=subject, v=text, a=head)
    return line[0].upper() + line[1:]


def _list(facts: Facts, person: int) -> str:
    """The works of a person: "A", "A and B" or "A, B and C"."""
    titles = [facts.names["work"][work] for work in facts.works_of[person]]
    return " and ".join([", ".join(titles[:-1]), titles[-1]] if titles[1:] else titles)


def _short(title: str, kind: str) -> str:
    """What later sentences of a page call its subject: the family name, or "the" and the common noun."""
    if kind == "person":
        return title.split()[-1]
    return "the town" if kind == "place" else f"the {title.split()[-1].lower()}"
