"""Encodes a text as it stands within a sequence, and protects messages from texts that are read as control tokens.

A tokenizer encodes a text alone in another way than the same text within a sequence: it may put a token or a space before
it, and a token may absorb the white space next to it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentenv.core.images import ImageReader

_TAG = re.compile(r"</?[A-Za-z_][\w-]*>")
_SYMBOL = re.compile(r"[^\w\s]")  # control tokens contain such a character; words and white space do not
_LETTER = "q"
_ANCHORS = ("\n", ".", _LETTER)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Encodes ``text`` alone, without special tokens before or after it."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def encode_first(tokenizer: Any, text: str) -> list[int]:
    """Encodes ``text`` at the beginning of a sequence, after the beginning-of-sequence token the model was trained with."""
    alone = encode(tokenizer, _LETTER)
    begun: list[int] = tokenizer.encode(_LETTER, add_special_tokens=True)
    places = range(len(begun) - len(alone) + 1)
    before = next((place for place in places if begun[place : place + len(alone)] == alone), 0)
    return [*begun[:before], *encode(tokenizer, text)]


def encode_after(tokenizer: Any, text: str) -> list[int]:
    """Encodes ``text`` as it follows other text: decoded after that, the ids give exactly ``text``.

    Tokenizers made with SentencePiece put a space before every text that they encode, which pages do not begin with.
    """
    alone = encode(tokenizer, _LETTER)
    if tokenizer.decode([*alone, *alone]) == 2 * _LETTER:
        return encode(tokenizer, text)
    for anchor in _ANCHORS:
        before, whole = encode(tokenizer, anchor), encode(tokenizer, anchor + text)
        if whole[: len(before)] == before:
            return whole[len(before) :]
    return encode(tokenizer, text)


def control_tokens(tokenizer: Any, reader: ImageReader | None = None) -> tuple[str, ...]:
    """Returns the texts that a tokenizer reads as control tokens wherever they occur.

    These are all tokens marked as special, whether they have a name such as ``eos_token`` or not (those of Llama 3 and
    gpt-oss have none), and all added tokens that the template writes, marked or not (``<｜User｜>`` of DeepSeek is not).
    Pairs of tags such as ``<think>`` and ``</think>`` count only if they have a name, because prompts mention them.
    Words and white space do not count, although some tokenizers add them (Gemma has a token for each number of line
    breaks).

    Args:
        tokenizer: The tokenizer of the policy.
        reader: The policy's image reader, whose placeholder is a control token too.
    """  # noqa: RUF002
    added = _added_tokens(tokenizer)
    template = _templates(tokenizer)
    written = [
        name for name in added if _SYMBOL.search(name) and name in template and not _TAG.fullmatch(name)
    ]
    marked = [name for name, special in added.items() if special and not _is_paired_tag(name, added)]
    placeholder = () if reader is None else (tokenizer.decode([reader.placeholder]),)
    named = getattr(tokenizer, "all_special_tokens", ())
    return tuple(dict.fromkeys(token for token in (*named, *marked, *written, *placeholder) if token))


def template_tags(tokenizer: Any) -> tuple[str, ...]:
    """Returns the tags that are single tokens and that the chat template writes, or that are marked as special.

    The result of a tool must not contain them: it could end itself and continue as a call or a thought of the policy.
    """
    template, added = _templates(tokenizer), _added_tokens(tokenizer)
    return tuple(
        name
        for name, special in added.items()
        if _TAG.fullmatch(name) and (name in template or (special and _is_paired_tag(name, added)))
    )


def normaliser(tokenizer: Any) -> Callable[[str], str] | None:
    """Returns the tokenizer's normaliser, which it applies before it searches for added tokens; None if it has none.

    Such a tokenizer also recognises a token that a page wrote differently: in capitals, in full-width characters (NFKC), or
    with characters in between that are removed.
    """
    found = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if found is None or not any(token.normalized for token in tokenizer.added_tokens_decoder.values()):
        return None
    normalise: Callable[[str], str] = found.normalize_str
    return normalise


def defused(text: str, control: Sequence[str], normalise: Callable[[str], str] | None = None) -> str:
    """Changes ``text`` so that no token of ``control`` is read in it: a page that quotes ``<|im_end|>`` must not end a turn.

    Args:
        text: A text that another party wrote.
        control: The result of ``control_tokens``.
        normalise: The result of ``normaliser``. A text in which a token appears only after normalisation is returned
            normalised.
    """
    for token in control:
        text = _split_token(text, token)
    if normalise is None:
        return text
    read = normalise(text)
    hidden = [token for name in control for token in (name, normalise(name)) if token in read]
    return defused(read, hidden) if hidden else text


def _split_token(text: str, token: str) -> str:
    """Inserts a space into every ``token`` in ``text``, also into overlapping ones, such as ``<<`` in ``<<<``."""
    if token not in text:
        return text
    return re.sub(f"{re.escape(token[:1])}(?={re.escape(token[1:])})", lambda first: f"{first[0]} ", text)


def _is_paired_tag(name: str, added: Mapping[str, bool]) -> bool:
    """Whether ``name`` is one of a pair of opening and closing tags; ``<s>`` and ``</s>`` do not count as a pair."""
    inner = name.strip("</>")
    return inner != "s" and f"<{inner}>" in added and f"</{inner}>" in added


def _added_tokens(tokenizer: Any) -> dict[str, bool]:
    """Returns the added tokens, which are not in the vocabulary, and whether each is marked as special."""
    found = getattr(tokenizer, "added_tokens_decoder", {})
    return {token.content: token.special for token in found.values()}


def _templates(tokenizer: Any) -> str:
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        return "\n".join(map(str, template.values()))
    return str(template or "")
