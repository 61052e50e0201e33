"""Demonstrators of the roles of self-play: one that searches and poses a question, one that answers from shown documents.

Together with the crowd they make a policy that can play every role of ``docs/self_play.md``: the crowd's share keeps the
solver as careless as it was.
"""

from collections.abc import Mapping

from agentenv.core.types import Passage, Task
from agentenv.envs.local_search import as_question, format_passages, information
from agentenv.envs.self_play import opening_of, proposal_text
from agentenv.trainers.demonstrations import CROWD, Demo, Demonstrator, Piece, Scene

PROPOSER_PROMPT = "Ask about {topic} after {searches} searches.{reference}"
"""What the tiny policy is told as proposer."""
VERIFIER_PROMPT = "{documents}\n{question}"
"""What it is told as verifier."""

_REFERENCE_SHARE = 0.4  # of the proposals that follow a question of the same kind
_NOISE = 3  # most documents of other searches on a verifier's page


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
    path = scene.task.data["path"]
    shown: dict[str, Passage] = {}
    for hop in path:
        shown |= {passage.id: passage for passage in scene.library.search(hop["entity"])}
    if not {hop["document"] for hop in path} <= shown.keys():
        return []
    for _ in range(scene.rng.randint(0, _NOISE)):
        stray = scene.library.search(scene.rng.choice(scene.others).data["path"][0]["entity"])[0]
        shown.setdefault(stray.id, stray)
    passages = list(shown.values())
    scene.rng.shuffle(passages)
    documents = information(format_passages(passages)).strip()
    opening = VERIFIER_PROMPT.format(documents=documents, question=as_question(scene.task.question))
    return [Piece("opening", opening), Piece("own", f"<answer> {scene.task.answers[0]} </answer>")]


def _shape(task: Task) -> tuple[str, ...]:
    return tuple(hop["relation"] for hop in task.data["path"])


_CROWD_SHARE = 0.3

TROUPE: Mapping[Demonstrator, float] = {proposing: 0.45, verifying: 0.25} | {
    demonstrator: _CROWD_SHARE * share for demonstrator, share in CROWD.items()
}
"""Share of each demonstrator in the mixture that the warm start of self-play imitates."""
