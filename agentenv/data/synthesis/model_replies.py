"""What language models write for the synthesis of data: JSON objects with the fields that were asked for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentenv.core.io.strict_json import read_json_text
from agentenv.errors import SynthesisFault
from agentenv.policies.endpoint import Chat

LONGEST_PAGE = 50_000
"""Characters of a page that a model is shown, as in ASearcher."""

_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class ModelWriter:
    """Asks a model for JSON objects."""

    chat: Chat
    temperature: float = 0.8
    """As ASearcher's editor samples; 0 is greedy."""
    top_p: float = 1.0
    tokens: int = 2048
    """Bound of one reply."""
    tries: int = 3
    """Requests for one object, each with a seed of its own, until a reply can be read."""

    async def write(self, prompt: str, fields: Mapping[str, type], seed: int) -> dict[str, Any]:
        """The object that the model writes for ``prompt``.

        Args:
            prompt: What is asked; says which fields there are.
            fields: ``str`` for a text that is not blank, ``list`` for a list of such texts.
            seed: Of the first request.

        Raises:
            SynthesisFault: none of the replies holds such an object.
            Fault: the model gave no reply.
            ContextTooSmall: the prompt does not fit its context.
        """
        said = ""
        for number in range(self.tries):
            reply = await self.chat.complete(
                [{"role": "user", "content": prompt}],
                max_tokens=self.tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                seed=(seed + number) % 2**31,
            )
            found = read_object(reply.text, fields)
            if found is not None:
                return found
            said = reply.text
        raise SynthesisFault(
            f"{self.chat.model} wrote no object with the fields {', '.join(fields)} in {self.tries} replies; the last: "
            f"{said.strip()[:120]!r}"
        )


def read_object(text: str, fields: Mapping[str, type]) -> dict[str, Any] | None:
    """The last JSON object in ``text`` that has ``fields``, without its other fields; None where there is none.

    A reply may think before it, and a field that asks for a text may hold a number.
    """
    found, place = None, text.find("{")
    while place >= 0:
        try:
            value, end = _DECODER.raw_decode(text, place)
            read_json_text(text[place:end])  # refuses what is no text
        except (ValueError, RecursionError):
            place = text.find("{", place + 1)
            continue
        found = _fitting(value, fields) or found
        place = text.find("{", end)
    return found


def _fitting(value: Mapping[str, Any], fields: Mapping[str, type]) -> dict[str, Any] | None:
    read: dict[str, Any] = {}
    for name, kind in fields.items():
        given = value.get(name)
        items = given if kind is list and isinstance(given, list) else [given]
        texts = [" ".join(str(one).split()) for one in items if isinstance(one, str | int | float)]
        if len(texts) < len(items) or not all(texts) or (kind is list and not isinstance(given, list)):
            return None
        read[name] = texts if kind is list else texts[0]
    return read


def is_yes(text: str) -> bool:
    """Whether a field that was to be yes or no says yes."""
    return text.strip().lower().rstrip(".") in ("yes", "true")
