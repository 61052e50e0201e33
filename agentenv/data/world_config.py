"""The dials of a FictionalWorld, checked once and for all when they are set."""

from dataclasses import dataclass
from typing import Literal, get_args

from agentenv.errors import ConfigurationError, check_known

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

# Least and greatest number of hops that a family can have. A nested name ("the author of W") is one hop more.
FAMILY_HOPS: dict[str, tuple[int, int]] = {
    "lookup": (1, 1),
    "bridge": (2, 4),
    "comparison": (2, 4),
    "intersection": (2, 4),
    "count": (1, 4),
    "temporal": (1, 4),
    "yes_no": (2, 4),
    "superlative": (3, 4),
    "list": (3, 4),
}
ONLY_IF_NAMED = ("superlative", "list")
"""Families that a world has only where ``families`` names them: worlds that name none stay what they were without these."""

MIN_DOCUMENTS, MAX_DOCUMENTS = 200, 1_000_000
WORDS_PER_FACT = 12  # no sentence of the grammar is longer


@dataclass(frozen=True)
class WorldConfig:
    """Which world to generate_facts. Equal configs give equal worlds, in every process.

    Raises:
        ConfigurationError: a dial is out of its range.
        UnknownName: a family or split that does not exist.
    """

    seed: int = 0
    """Seed of everything drawn; any integer from 0."""
    documents: int = 1000
    """Number of documents, 200 to 1,000,000."""
    hops: tuple[int, int] = (1, 2)
    """Least and greatest number of hops of a question, within 1 to 4."""
    families: tuple[str, ...] = ()
    """Families of questions, in equal shares while there are more; empty takes all that the hops allow but those of
    ``ONLY_IF_NAMED``."""
    questions: int = 500
    """Number of distinct questions; 0 draws none."""
    distractors: float = 0.1
    """Share of entities that have a neighbour of the same type with nearly the same name, 0 to 0.5."""
    paraphrase: int = 3
    """Surface forms of each relation, in documents and in questions, 1 to 3."""
    words: int = 40
    """Upper bound of the words of a document's text, at least 24."""
    indirect: float = 0.05
    """Share of facts that only the page of another entity states, 0 to 0.1, while pages have room for a
    sentence more: 0.07 of the facts fit with 40 words, none with less than 36."""
    split: Split = "test"
    """Which part of the invented words to use; the splits share none."""

    def __post_init__(self) -> None:
        low, high = self.hops
        if not 1 <= low <= high <= 4:
            raise ConfigurationError(f"hops {low}-{high} is not a range within 1-4; give for example 1-2.")
        if not MIN_DOCUMENTS <= self.documents <= MAX_DOCUMENTS:
            raise ConfigurationError(f"documents must be 200 to 1000000, not {self.documents}.")
        check_known("split", self.split, SPLITS)
        for name, value, least, most in (
            ("seed", self.seed, 0, 2**63 - 1),
            ("questions", self.questions, 0, MAX_DOCUMENTS),
            ("distractors", self.distractors, 0, 0.5),
            ("paraphrase", self.paraphrase, 1, 3),
            ("words", self.words, 2 * WORDS_PER_FACT, 1000),
            ("indirect", self.indirect, 0, 0.1),
        ):
            if not least <= value <= most:
                raise ConfigurationError(f"{name} must be {least} to {most}, not {value}.")
        for family in self.families:
            check_known("question family", family, FAMILY_HOPS)
            if not self.hops_of(family):
                least, most = FAMILY_HOPS[family]
                raise ConfigurationError(
                    f"{family} questions have {least} to {most} hops, none of {low}-{high}; change one."
                )

    def hops_of(self, family: str) -> range:
        """The numbers of hops that questions of ``family`` may have here; empty where there are none."""
        least, most = FAMILY_HOPS[family]
        return range(max(least, self.hops[0]), min(most, self.hops[1]) + 1)

    def active_families(self) -> tuple[str, ...]:
        """The families to draw from, each once, in the order of the table."""
        return tuple(
            name
            for name in FAMILY_HOPS
            if self.hops_of(name)
            and (name in self.families or (not self.families and name not in ONLY_IF_NAMED))
        )
