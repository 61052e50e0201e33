"""HDS-QA over any corpus: a language model describes the entity of a question by features from several pages.

The authors collect related questions from a search engine and keep those that lead to distinct documents. Here the pages
that are linked with the entity's page take their place. Uniqueness is judged and not proved, as in the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from agentenv.core.scoring.evidence import stands_in
from agentenv.core.types import Task
from agentenv.data.synthesis.asearcher import Draft, Reviewer, form_flaw
from agentenv.data.synthesis.model_replies import LONGEST_PAGE, ModelWriter, is_yes
from agentenv.data.synthesis.pages import LinkedPages, Page
from agentenv.errors import DatasetError

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
COMBINE = """\
Question: {question}
Its answer: {answer}
Write the question again without the name {written}: describe what it names by all of these facts together, and keep \
everything else. {facts}
Reply with one JSON object and nothing after it: {{"question": "the new question"}}
"""


@dataclass(frozen=True)
class HybridWriter:
    """Makes a question of several parallel hops and a further one out of a question that names an entity."""

    writer: ModelWriter
    judge: ModelWriter
    reviewer: Reviewer
    pages: LinkedPages
    fewest: int = 2
    most: int = 3
    seed: int = 0

    async def write(self, seed: Task) -> Task:
        """The question that describes what ``seed`` names.

        Raises:
            DatasetError: no entity of the corpus stands in the question, its pages give too few features that are ambiguous
                alone, or the new question is not valid; the message says which.
            Fault: a model failed.
        """
        rng = Random(f"{self.seed}/{seed.id}")
        named = self.pages.mentioned(seed.question)
        if not named:
            raise DatasetError(f"{seed.id}: the question names no title of the corpus")
        entity, written = max(named.items(), key=lambda pair: len(pair[1]))
        others = [self.pages.pages[title] for title in self.pages.linked(entity)]
        rng.shuffle(others)
        features = await self._features(seed, (entity, written), others, rng)
        facts = " ".join(f"It {clause}." for _, clause in features)
        asked = COMBINE.format(question=seed.question, answer=seed.answers[0], written=written, facts=facts)
        question = str((await self.writer.write(asked, {"question": str}, rng.getrandbits(31)))["question"])
        ids = [i for page, _ in features for i in page.ids]
        statements = tuple(f"{entity} {clause}." for _, clause in features)
        draft = Draft(
            question, seed.answers[0], (*statements, f"{seed.question} {seed.answers[0]}"), tuple(ids)
        )
        flaw = f"it still names {written}" if stands_in(written, question) else form_flaw(draft)
        if flaw := flaw or await self.reviewer.flaw(draft):
            raise DatasetError(f"{seed.id}: {question!r} is refused: {flaw}")
        return self._task(seed, draft, entity, [clause for _, clause in features])

    async def _features(
        self, seed: Task, names: tuple[str, str], others: Sequence[Page], rng: Random
    ) -> list[tuple[Page, str]]:
        """Features of an entity from distinct pages, each of which is true of several entities.

        ``names`` are the title of its page and how the question writes it; no feature may hold one of them.
        """
        entity, _ = names
        features: list[tuple[Page, str]] = []
        for page in others:
            if len(features) == self.most:
                break
            asked = FEATURE.format(title=page.title, text=page.text[:LONGEST_PAGE], entity=entity)
            clause = (await self.writer.write(asked, {"clause": str}, rng.getrandbits(31)))["clause"].rstrip(
                "."
            )
            named = any(stands_in(name, clause) for name in names)
            if clause.lower() == "none" or named or clause in [known for _, known in features]:
                continue
            said = await self.judge.write(ALONE.format(clause=clause), {"reason": str, "one": str}, 0)
            if not is_yes(said["one"]):
                features.append((page, clause))
        if len(features) < self.fewest:
            raise DatasetError(
                f"{seed.id}: the pages of {entity!r} give {len(features)} features that are ambiguous alone"
            )
        return features

    def _task(self, seed: Task, draft: Draft, entity: str, clauses: Sequence[str]) -> Task:
        known = tuple(seed.data.get("supporting_ids", ()))
        data: dict[str, Any] = {
            "hops": len(clauses) + 1,
            "family": "hds-qa",
            "parallel": len(clauses),
            "entity": entity,
            "features": [{"clause": clause} for clause in clauses],
            "supporting_ids": list(dict.fromkeys((*draft.documents, *known))),
            "seed_id": seed.id,
        }
        return Task(f"hds-qa-{seed.id}", draft.question, seed.answers, seed.split, data)
