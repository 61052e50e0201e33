"""The same question in other words."""

from agentenv.core.types import Task
from agentenv.data.world_grammar import RELATIONS

_FORMS = {relation.name: relation.questions for relations in RELATIONS.values() for relation in relations}


def paraphrases_of(task: Task) -> tuple[str, ...]:
    """The wordings of a question, its own first, each once.

    They are those in ``data["paraphrases"]``, or for a question of one hop about a FictionalWorld the forms of its relation;
    any other question has one.
    """
    given = tuple(task.data.get("paraphrases", ()))
    path = task.data.get("path", ())
    if not given and len(path) == 1 and task.data.get("family") == "lookup":
        given = tuple(form.format(s=path[0]["entity"]) for form in _FORMS[path[0]["relation"]])
    return tuple(dict.fromkeys((task.question, *given)))
