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
VERIFIER_PROMPT = "{question}\n{documents}"
"""What it is told as verifier."""

_REFERENCE_SHARE = 0.4  # of the proposals that follow a question of the same kind
_NOISE = 3  # most documents of other searches on a verifier's page
_WITHHELD = 0.5  # of the doubts; the others are about another name


def proposing(scene: Scene) -> Demo:
    """Follows the path of a question from its first entity, one search a hop, then poses it with its answer.

    The answer is thought of first: what is asked then is what the page tells.

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
    answer = scene.task.answers[0]
    return [*demo, Piece("own", f"<think> {answer} </think> {proposal_text(scene.task.question, answer)}")]


def verifying(scene: Scene) -> Demo:
    """Answers from what the searches of a proposer show, shuffled among documents of other searches, hop by hop."""
    passages, path = _material(scene), scene.task.data["path"]
    if not {hop["document"] for hop in path} <= {passage.id for passage in passages}:
        return []
    return _read(passages, scene.task.question, [hop["answer"] for hop in path])


def doubting(scene: Scene) -> Demo:
    """Answers that it is unknown where a document is withheld, or where the question is put to another name on the page.

    Gives up (an empty demonstration) where the true answer stands on the page all the same.
    """
    passages, task, name = _material(scene), scene.task, scene.task.data["path"][0]["entity"]
    if scene.rng.random() < _WITHHELD:
        missing = task.data["path"][-1]["document"]
        passages = [passage for passage in passages if passage.id != missing]
    else:
        task, name = scene.rng.choice(scene.others), scene.rng.choice(passages).title
    path = task.data["path"]
    question = task.question.replace(path[0]["entity"], name)
    if any(_told(answer, passages) for answer in scene.solver.answers(question)):
        return []
    first = scene.solver.stated(name, path[0]["relation"]) if len(path) > 1 else None
    return _read(passages, question, [first, UNKNOWN] if first and _told(first, passages) else [UNKNOWN])


def _told(answer: str, passages: Sequence[Passage]) -> bool:
    return any(answer in passage.text for passage in passages)


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


def _read(passages: Sequence[Passage], question: str, answers: Sequence[str]) -> Demo:
    """A verifier's turn: what it finds on the way as a thought, then the answer."""
    documents = information(format_passages(passages)).strip()
    opening = VERIFIER_PROMPT.format(question=as_question(question), documents=documents)
    *thoughts, answer = answers
    text = "".join(f"<think> {thought} </think> " for thought in thoughts) + f"<answer> {answer} </answer>"
    return [Piece("opening", opening), Piece("own", text)]


def _shape(task: Task) -> tuple[str, ...]:
    return tuple(hop["relation"] for hop in task.data["path"])


_CROWD_SHARE = 0.25

TROUPE: Mapping[Demonstrator, float] = {proposing: 0.4, verifying: 0.2, doubting: 0.15} | {
    demonstrator: _CROWD_SHARE * share for demonstrator, share in CROWD.items()
}
"""Share of each demonstrator in the mixture that the warm start of self-play imitates."""
