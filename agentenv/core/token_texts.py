"""How a text becomes ids at its place in a sequence, and texts that no message may hold because they are control tokens.

A tokenizer reads a text that it is given alone in another way than the same text within a sequence: it may put a token
before it, or a space, and a token may take the white space beside it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentenv.core.images import ImageReader

_TAG = re.compile(r"</?[A-Za-z_][\w-]*>")
_SIGN = re.compile(r"[^\w\s]")  # what a control token has and neither a word nor white space
_LETTER = "q"
_ANCHORS = ("\n", ".", _LETTER)


def encode(tokenizer: Any, text: str) -> list[int]:
    """The ids of ``text`` alone, without any token before or after it."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def encode_first(tokenizer: Any, text: str) -> list[int]:
    """The ids of ``text`` at the beginning of a sequence, behind the token with which the model was trained to begin one."""
    alone = encode(tokenizer, _LETTER)
    begun: list[int] = tokenizer.encode(_LETTER, add_special_tokens=True)
    places = range(len(begun) - len(alone) + 1)
    before = next((place for place in places if begun[place : place + len(alone)] == alone), 0)
    return [*begun[:before], *encode(tokenizer, text)]


def encode_after(tokenizer: Any, text: str) -> list[int]:
    """The ids of ``text`` behind other text: decoded behind that, they are ``text`` and nothing more.

    Tokenizers that were made with SentencePiece put a space before every text, which no page begins with.
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
    """The texts that a tokenizer reads as control tokens wherever they stand.

    Those are all that it marks as special, whether they have a name such as ``eos_token`` or not (those of Llama 3 and
    gpt-oss have none), and those that its chat template writes, marked or not (``<｜User｜>`` of DeepSeek is not). Pairs of
    tags such as ``<think>`` and ``</think>`` belong to them only if they have a name, because prompts speak of them. Words
    and white space do not, which some tokenizers add as well (Gemma has a token of its own for each number of line breaks).

    Args:
        tokenizer: Of the policy.
        reader: Of its images, whose placeholder is a control token as well.
    """  # noqa: RUF002
    added = _added(tokenizer)
    template = _templates(tokenizer)
    written = [name for name in added if _SIGN.search(name) and name in template and not _TAG.fullmatch(name)]
    marked = [name for name, special in added.items() if special and not _is_of_pair(name, added)]
    placeholder = () if reader is None else (tokenizer.decode([reader.placeholder]),)
    named = getattr(tokenizer, "all_special_tokens", ())
    return tuple(dict.fromkeys(token for token in (*named, *marked, *written, *placeholder) if token))


def template_tags(tokenizer: Any) -> tuple[str, ...]:
    """The tags of one id that the chat template writes, such as ``<tool_response>`` of Qwen3, or that are marked as special.

    The result of a tool must not hold them: it could end itself, and go on as a call or a thought of the policy.
    """
    template, added = _templates(tokenizer), _added(tokenizer)
    return tuple(
        name
        for name, special in added.items()
        if _TAG.fullmatch(name) and (name in template or (special and _is_of_pair(name, added)))
    )


def normaliser(tokenizer: Any) -> Callable[[str], str] | None:
    """What ``tokenizer`` makes of a text before it looks for added tokens in it; None where it looks in the text as it is.

    Behind it a page may have written a token in another way: in capitals, in wide characters (NFKC), or with characters in
    between that are taken out.
    """
    found = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if found is None or not any(token.normalized for token in tokenizer.added_tokens_decoder.values()):
        return None
    normalise: Callable[[str], str] = found.normalize_str
    return normalise


def defused(text: str, control: Sequence[str], normalise: Callable[[str], str] | None = None) -> str:
    """``text`` in which no token of ``control`` can be read: a page that quotes ``<|im_end|>`` must not end a turn.

    Args:
        text: What somebody else wrote.
        control: From ``control_tokens``.
        normalise: From ``normaliser``; a text that holds a token behind it alone is given as it is there.
    """
    for token in control:
        text = _parted(text, token)
    if normalise is None:
        return text
    read = normalise(text)
    hidden = [token for name in control for token in (name, normalise(name)) if token in read]
    return defused(read, hidden) if hidden else text


def _parted(text: str, token: str) -> str:
    """``text`` with a space within every ``token``, also within two that overlap, such as ``<<`` in ``<<<``."""
    if token not in text:
        return text
    return re.sub(f"{re.escape(token[:1])}(?={re.escape(token[1:])})", lambda first: f"{first[0]} ", text)


def _is_of_pair(name: str, added: Mapping[str, bool]) -> bool:
    """Whether ``name`` begins or ends what stands between two tags; ``<s>`` and ``</s>`` begin and end whole texts."""
    inner = name.strip("</>")
    return inner != "s" and f"<{inner}>" in added and f"</{inner}>" in added


def _added(tokenizer: Any) -> dict[str, bool]:
    """The tokens beside those of the vocabulary, and whether each is marked as special."""
    found = getattr(tokenizer, "added_tokens_decoder", {})
    return {token.content: token.special for token in found.values()}


def _templates(tokenizer: Any) -> str:
    template = tokenizer.chat_template
    if isinstance(template, Mapping):
        return "\n".join(map(str, template.values()))
    return str(template or "")
