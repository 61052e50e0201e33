"""Invented names: few syllables, clusters that no language likes, and splits that share no word."""

import random
import zlib
from collections.abc import Iterator

from agentenv.data.world_config import Split

# A word is one head, one middle and one tail: "Tegvaru". A head's last consonant never meets an l, r, n or
# itself, as it does in real words ("Sabrina", "Rabbi"); a test looks for the words in real corpora.
_HEADS = (
    "BogBezDovDugFebFipFogGavGibGudHagHepHuvJabJevJopKibKovKuzLezLibLupMavMibMogMupNabNevNebNup"
    "PagPevPizPobRabRudRipRogSabSegSivSugTavTegTibTupVabVegVodVupWabWezZebZigZodZup"
)
HEADS = tuple(_HEADS[i : i + 3] for i in range(0, len(_HEADS), 3))
MIDDLES = tuple(consonant + "aeiou"[i % 5] for i, consonant in enumerate(3 * "bdfgjkmpstvwz"))
TAILS = tuple(consonant + vowel for consonant in "lrnmst" for vowel in "aeiou")

NOUNS: dict[str, tuple[str, ...]] = {
    "organisation": ("Institute", "Guild", "Society", "Academy", "League", "Company"),
    "place": ("Bay", "Vale", "Hill", "Port", "Moor", "Ford"),
    "work": ("Ballad", "Saga", "Novel", "Opera", "Sonnet", "Diary"),
    "event": ("Cup", "Games", "Race", "Fair", "Derby", "Contest"),
}
_SPLIT_OF_HASH: tuple[Split, ...] = ("train", "train", "dev", "test")


def split_of(word: str) -> Split:
    """The one split whose worlds may use ``word``."""
    return _SPLIT_OF_HASH[zlib.crc32(word.encode()) >> 8 & 3]


class NameGenerator:
    """Draws names without repeating one; words differ in two syllables while the stock allows.

    Args:
        rng: source of all choices.
        split: whose words to use.
    """

    def __init__(self, rng: random.Random, split: Split) -> None:
        self._rng, self._split = rng, split
        self._crowded: set[str] = set()
        self._taken: set[str] = set()
        self._patience = 30

    def words(self) -> Iterator[str]:
        """Endless words of the split."""
        draw = self._rng.choice
        while True:
            word = draw(HEADS) + draw(MIDDLES) + draw(TAILS)
            if word[2] != word[3] and split_of(word) == self._split:
                yield word

    def word(self) -> str:
        """A word that shares one syllable at most with earlier ones; after 8 tries a new one, then any."""
        for tries, word in enumerate(self.words()):
            keys = (word[:5], word[3:], word[:3] + word[5:])
            spaced = not any(key in self._crowded for key in keys)
            if spaced or (tries >= 8 and word not in self._crowded):
                break
            if tries >= self._patience:
                # A large world soon stops looking for what is used up.
                self._patience = max(0, self._patience - 1)
                break
        self._crowded.update((word, *keys))
        return word

    def name(self, kind: str) -> str:
        """A new name for a ``kind`` of entity (or "region"); longer ones only where shorter ones run out."""
        for tries in range(1000):
            parts = [self.word()]
            if kind == "person" or tries > 4:
                parts.append(self.word())
            if kind in NOUNS and (kind != "place" or self._rng.random() < 0.4):
                parts.append(self._rng.choice(NOUNS[kind]))
            name = " ".join(parts)
            if name not in self._taken:
                break
        self._taken.add(name)
        return name

    def similar_name(self, name: str, kind: str) -> str | None:
        """A new name that differs from ``name`` in one word (the noun, for all but people); None if taken."""
        first, _, last = name.rpartition(" ")
        if kind == "person":
            other = f"{first} {self.word()}" if self._rng.random() < 0.5 else f"{self.word()} {last}"
        elif first:
            other = f"{first} {self._rng.choice(NOUNS[kind])}"
        else:
            return None
        if other in self._taken:
            return None
        self._taken.add(other)
        return other
