"""HDS-QA over any corpus: a language model describes each entity of a question by features from distinct documents.

The four steps of the paper: the entities of a seed question, and related questions of each; features of the entity from what
these find; a parallel-hop question whose answer is the entity; its description in the place of the entity in the seed
question. The authors take related questions from a search engine ("people also ask"); here the model writes them, and a
search of the corpus tells which lead to distinct documents. Uniqueness is judged and not proved, as in the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from agentenv.core.protocols import Retriever
from agentenv.core.scoring.evidence import contains_phrase
from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.types import Passage, Task
from agentenv.data.synthesis.asearcher import Draft, Reviewer, form_flaw
from agentenv.data.synthesis.model_replies import LONGEST_PAGE, ModelWriter, is_yes
from agentenv.errors import (
    AgentEnvError,
    ContextTooSmall,
    DatasetError,
    EndpointRefusal,
    Fault,
    SynthesisFault,
)

ENTITIES = """\
Question: {question}
List every person, place, organisation, work, event and product that this question names, exactly as it is written there. \
Reply with one JSON object and nothing after it: {{"entities": ["...", "..."]}}
"""
RELATED = """\
Write {count} short questions that people also ask about {entity}, as a search engine lists them beside this one: {question}
Each names {entity} and asks for something else. Reply with one JSON object and nothing after it: \
{{"questions": ["...", "..."]}}
"""
FEATURE = """\
Here is a page titled {title}:
{text}

Write one fact that this page states about {entity}, as a clause that describes {entity} and does not name it, such as \
"was built by an engineer from Ulm". Reply with one JSON object and nothing after it: {{"clause": "..."}}
If the page states no fact about {entity}, write "none".
"""
ALONE = """\
Description: something or somebody that {clause}.
Is this true of one single entity, so that the description alone tells which one is meant? Reply with one JSON object and \
nothing after it: {{"reason": "in one sentence", "one": "yes or no"}}
"""
PARALLEL = """\
These facts are true of {entity}: {facts}
Write one question whose only answer is {entity}: it asks who or what all of these facts are true of, each as it stands \
here, and does not name {entity}. Write the same as a description, such as "the engineer who was born in Ulm and taught in \
Rome". Reply with one JSON object and nothing after it: {{"question": "...", "description": "..."}}
"""
COMBINE = """\
Question: {question}
Its answer: {answer}
Write the question again with this description in the place of the name {written}, and keep everything else: {description}
Reply with one JSON object and nothing after it: {{"question": "the new question"}}
"""
READ = """\
{passages}

Answer this question from these passages alone: {question}
Reply with one JSON object and nothing after it: {{"answer": "short and without explanation"}}
If the passages do not tell the answer, write "none".
"""


@dataclass(frozen=True, slots=True)
class Refused:
    """An entity of which no question came, and why."""

    entity: str
    why: str
    failed: bool = False
    """Whether a model or the search failed, so that nobody knows what would have come of it."""


@dataclass(frozen=True, slots=True)
class HybridQuestions:
    """What came of one seed question: at most one question for each entity that it names."""

    tasks: tuple[Task, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True)
class HybridWriter:
    """Makes questions of several parallel hops and a further one out of a question that names entities."""

    writer: ModelWriter
    judge: ModelWriter
    reviewer: Reviewer
    retriever: Retriever
    """Searches the corpus."""
    fewest: int = 2
    most: int = 3
    related: int = 8
    """Related questions that are written about an entity."""
    k: int = 5
    """Documents that a search finds."""
    seed: int = 0

    async def write(self, seed: Task) -> HybridQuestions:
        """A question for each entity that ``seed`` names; one of which none comes does not end the others.

        Raises:
            DatasetError: no question came of it; the message says why of each entity.
            SynthesisFault: no list of entities can be read.
            Fault: the list of entities could not be had, or no question came because a model or the search failed.
        """
        said = await self.writer.write(
            ENTITIES.format(question=seed.question), {"entities": list}, self._draws(seed, "").getrandbits(31)
        )
        named = [
            entity for entity in dict.fromkeys(said["entities"]) if contains_phrase(entity, seed.question)
        ]
        tasks, refused = list[Task](), list[Refused]()
        kind: type[AgentEnvError] = DatasetError
        for entity in named:
            try:
                tasks.append(await self._question(seed, entity, len(tasks)))
            except (DatasetError, SynthesisFault, ContextTooSmall, EndpointRefusal) as error:
                refused.append(Refused(entity, str(error)))
            except Fault as error:
                refused.append(Refused(entity, str(error), failed=True))
                kind = type(error)
        if not tasks:
            reasons = "; ".join(f"{one.entity}: {one.why}" for one in refused)
            raise kind(f"{seed.id}: {reasons or 'the question names no entity'}")
        return HybridQuestions(tuple(tasks), tuple(refused))

    def _draws(self, seed: Task, entity: str) -> Random:
        return Random(f"{self.seed}/{seed.id}/{entity}")

    async def _question(self, seed: Task, entity: str, number: int) -> Task:
        """The question that describes ``entity`` in place of its name.

        Raises:
            DatasetError: a check refuses it.
            Fault: a model or the search failed.
        """
        rng = self._draws(seed, entity)
        features = await self._features(seed, entity, await self._documents(seed, entity, rng), rng)
        clauses = [clause for _, clause in features]
        statements = tuple(f"{entity} {clause}." for clause in clauses)
        ids = tuple(dict.fromkeys(page.id for page, _ in features))
        asked = PARALLEL.format(entity=entity, facts=" ".join(statements))
        said = await self.writer.write(
            asked, dict.fromkeys(("question", "description"), str), rng.getrandbits(31)
        )
        parallel = Draft(said["question"], entity, statements, ids)
        await self._check(parallel, entity, "the parallel-hop question")
        asked = COMBINE.format(
            question=seed.question, answer=seed.answers[0], written=entity, description=said["description"]
        )
        question = str((await self.writer.write(asked, {"question": str}, rng.getrandbits(31)))["question"])
        known = f"{seed.question} {seed.answers[0]}"
        hybrid = Draft(question, seed.answers[0], (*statements, known), ids)
        await self._check(hybrid, entity, "the hybrid-hop question")
        await self._check_one_search(hybrid, seed)
        return self._task(seed, hybrid, parallel, clauses, number)

    async def _documents(self, seed: Task, entity: str, rng: Random) -> list[Passage]:
        """For each related question that finds a document which none before has found, the best such document."""
        asked = RELATED.format(count=self.related, entity=entity, question=seed.question)
        said = await self.writer.write(asked, {"questions": list}, rng.getrandbits(31))
        questions = list(dict.fromkeys(said["questions"]))[: self.related]
        chosen: dict[str, Passage] = {}
        for found in await self.retriever.search(questions, self.k) if questions else []:
            new = next((page for page in found if page.id not in chosen), None)
            if new is not None:
                chosen[new.id] = new
        return list(chosen.values())

    async def _features(
        self, seed: Task, entity: str, pages: Sequence[Passage], rng: Random
    ) -> list[tuple[Passage, str]]:
        """Features of an entity from distinct documents, each of which is true of several entities.

        None of them holds the name of the entity or the answer of the seed question.
        """
        features: list[tuple[Passage, str]] = []
        for page in pages:
            if len(features) == self.most:
                break
            asked = FEATURE.format(title=page.title, text=page.text[:LONGEST_PAGE], entity=entity)
            said = await self.writer.write(asked, {"clause": str}, rng.getrandbits(31))
            clause = said["clause"].rstrip(".")
            told = any(contains_phrase(name, clause) for name in (entity, *seed.answers))
            if clause.lower() == "none" or told or clause in [known for _, known in features]:
                continue
            judged = await self.judge.write(ALONE.format(clause=clause), {"reason": str, "one": str}, 0)
            if not is_yes(judged["one"]):
                features.append((page, clause))
        if len(features) < self.fewest:
            raise DatasetError(
                f"the {len(pages)} documents that related questions led to give only {len(features)} features that are "
                f"ambiguous alone, and {self.fewest} are needed"
            )
        return features

    async def _check(self, draft: Draft, entity: str, what: str) -> None:
        """Refuses a question that names the entity, is malformed or is judged invalid."""
        flaw = f"it names {entity}" if contains_phrase(entity, draft.question) else form_flaw(draft)
        if flaw := flaw or await self.reviewer.flaw(draft):
            raise DatasetError(f"{what} {draft.question!r} is refused: {flaw}")

    async def _check_one_search(self, draft: Draft, seed: Task) -> None:
        """Refuses a question that can be answered from what one search for it finds."""
        (found,) = await self.retriever.search([draft.question], self.k)
        passages = "\n\n".join(f"{page.title}: {page.text}" for page in found)[:LONGEST_PAGE]
        asked = READ.format(passages=passages or "(no passage)", question=draft.question)
        answer = str((await self.judge.write(asked, {"answer": str}, 0))["answer"])
        if answer.lower().rstrip(".") == "none":
            return
        is_accepted = get_scorer("em_squad")(answer, seed.answers).value > 0
        if is_accepted or await self.reviewer.is_right(draft, answer):
            raise DatasetError(f"one search for {draft.question!r} answers it")

    def _task(self, seed: Task, draft: Draft, parallel: Draft, clauses: Sequence[str], number: int) -> Task:
        features: list[Mapping[str, str]] = [
            {"clause": clause, "document": document}
            for clause, document in zip(clauses, draft.documents, strict=True)
        ]
        known = tuple(seed.data.get("supporting_ids", ()))
        data: dict[str, Any] = {
            "hops": len(clauses) + 1,
            "family": "hds-qa",
            "parallel": len(clauses),
            "entity": parallel.answer,
            "parallel_question": parallel.question,
            "features": features,
            "supporting_ids": list(dict.fromkeys((*draft.documents, *known))),
            "seed_id": seed.id,
            "cluster": seed.id,
        }
        return Task(f"hds-qa-{seed.id}-{number}", draft.question, seed.answers, seed.split, data)
