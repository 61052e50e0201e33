"""Demonstrators of the roles of self-play: one searches and poses a question, one answers from shown documents, one doubts.

Together with the crowd they make a policy that can play every role of ``docs/self_play.md``: the crowd's share keeps the
solver as careless as it was.
"""

from collections.abc import Mapping, Sequence

from agentenv.core.types import Passage, Task
from agentenv.envs.local_search import as_question, format_passages, information
from agentenv.envs.proposals import UNKNOWN
from agentenv.envs.self_play import opening_of, proposal_text
from agentenv.trainers.demonstrations import CROWD, Demo, Demonstrator, Piece, Scene

PROPOSER_PROMPT = "Ask about {topic} after {searches} searches.{reference}"
"""What the tiny policy is told as proposer."""
VERIFIER_PROMPT = "{documents}\n{question}"
"""What it is told as verifier."""

_REFERENCE_SHARE = 0.4  # of the proposals that follow a question of the same kind
_NOISE = 3  # most documents of other searches on a verifier's page
_WITHHELD = 0.5  # of the doubts; the others are about another name


def proposing(scene: Scene) -> Demo:
    """Follows the path of a question from its first entity, one search a hop, then poses it with its answer.

    Gives up (an empty demonstration) where a search by the bare name misses the document.
    """
    path = scene.task.data["path"]
    alike = [task for task in scene.others if task.id != scene.task.id and _shape(task) == _shape(scene.task)]
    reference = scene.rng.choice(alike).question if alike and scene.rng.random() < _REFERENCE_SHARE else ""
    opening = opening_of(PROPOSER_PROMPT, path[0]["entity"], len(path), reference)
    demo: Demo = [Piece("opening", opening)]
    for hop in path:
        passages = scene.library.search(hop["entity"])
        if hop["document"] not in {passage.id for passage in passages}:
            return []
        page = information(format_passages(passages))
        demo += [Piece("own", f"<search> {hop['entity']} </search>"), Piece("page", page)]
    return [*demo, Piece("own", proposal_text(scene.task.question, scene.task.answers[0]))]


def verifying(scene: Scene) -> Demo:
    """Answers from what the searches of a proposer show, shuffled among documents of other searches."""
    passages = _material(scene)
    if not {hop["document"] for hop in scene.task.data["path"]} <= {passage.id for passage in passages}:
        return []
    return _read(passages, scene.task.question, scene.task.answers[0])


def doubting(scene: Scene) -> Demo:
    """Answers that it is unknown where a document is withheld, or where the question is put to another name on the page.

    Gives up (an empty demonstration) where the true answer stands on the page all the same.
    """
    passages, question = _material(scene), scene.task.question
    if scene.rng.random() < _WITHHELD:
        missing = scene.task.data["path"][-1]["document"]
        passages = [passage for passage in passages if passage.id != missing]
    else:
        other = scene.rng.choice(scene.others)
        question = other.question.replace(other.data["path"][0]["entity"], scene.rng.choice(passages).title)
    if any(answer in passage.text for answer in scene.answers(question) for passage in passages):
        return []
    return _read(passages, question, UNKNOWN)


def _material(scene: Scene) -> list[Passage]:
    """What a proposer's searches along the path show and documents of other searches, shuffled."""
    shown: dict[str, Passage] = {}
    for hop in scene.task.data["path"]:
        shown |= {passage.id: passage for passage in scene.library.search(hop["entity"])}
    for _ in range(scene.rng.randint(0, _NOISE)):
        stray = scene.library.search(scene.rng.choice(scene.others).data["path"][0]["entity"])[0]
        shown.setdefault(stray.id, stray)
    passages = list(shown.values())
    scene.rng.shuffle(passages)
    return passages


def _read(passages: Sequence[Passage], question: str, answer: str) -> Demo:
    """A verifier's turn."""
    documents = information(format_passages(passages)).strip()
    opening = VERIFIER_PROMPT.format(documents=documents, question=as_question(question))
    return [Piece("opening", opening), Piece("own", f"<answer> {answer} </answer>")]


def _shape(task: Task) -> tuple[str, ...]:
    return tuple(hop["relation"] for hop in task.data["path"])


_CROWD_SHARE = 0.25

TROUPE: Mapping[Demonstrator, float] = {proposing: 0.4, verifying: 0.2, doubting: 0.15} | {
    demonstrator: _CROWD_SHARE * share for demonstrator, share in CROWD.items()
}
"""Share of each demonstrator in the mixture that the warm start of self-play imitates."""
