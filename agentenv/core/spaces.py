"""Gymnasium spaces for text. Gymnasium's own ``Text`` rejects blanks, accents and the empty string."""

from typing import Any

from gymnasium.spaces import Space

from agentenv.core.types import Message, Observation

_SAMPLE_ALPHABET = "abcdefghijklmnopqrstuvwxyz <>/?.,é"


class FreeText(Space[str]):
    """Any string of at most ``max_bytes`` UTF-8 bytes."""

    def __init__(self, max_bytes: int = 1 << 20, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)
        self.max_bytes = max_bytes

    def sample(self, mask: None = None, probability: None = None) -> str:
        """Returns a random string of 0 to 32 characters, which include blanks, tags and an accented letter."""
        length = min(int(self.np_random.integers(0, 33)), self.max_bytes // 2)
        picks = self.np_random.integers(0, len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[i] for i in picks)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a string within the byte limit."""
        return isinstance(x, str) and len(x.encode("utf-8", "surrogatepass")) <= self.max_bytes

    @property
    def is_np_flattenable(self) -> bool:
        """Always False: text has no array form of fixed size."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FreeText) and other.max_bytes == self.max_bytes

    def __hash__(self) -> int:
        return hash(("FreeText", self.max_bytes))

    def __repr__(self) -> str:
        return f"FreeText(max_bytes={self.max_bytes})"


class Messages(Space[Observation]):
    """Tuples of messages, including the empty tuple (the observation after an answer)."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)
        self._text = FreeText(seed=seed)

    def seed(self, seed: Any = None) -> Any:
        """Seeds this space and the space of its texts."""
        if hasattr(self, "_text"):
            self._text.seed(seed)
        return super().seed(seed)

    def sample(self, mask: None = None, probability: None = None) -> Observation:
        """Returns one or two user messages of random text."""
        return tuple(Message("user", self._text.sample()) for _ in range(int(self.np_random.integers(1, 3))))

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a tuple of ``Message``."""
        return isinstance(x, tuple) and all(isinstance(message, Message) for message in x)

    @property
    def is_np_flattenable(self) -> bool:
        """Always False: messages have no array form of fixed size."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages)

    def __hash__(self) -> int:
        return hash("Messages")

    def __repr__(self) -> str:
        return "Messages()"
