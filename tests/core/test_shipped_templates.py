"""Every chat template that TRL ships, in the formats ``template`` and ``native``: served, or refused with one sentence.

A template is served where the conversation shows all that was said, ids that were sampled stay or a new row begins, and the
text that the template itself writes for a tool call is read as that call. The counts are those of the documentation.
"""

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.assistant_turns import AssistantTurn, NativeCall
from agentenv.core.chat import TemplateFormat, ends_of_turn
from agentenv.core.native_format import NativeFormat
from agentenv.core.tool_replies import replies
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import chat_tokenizer

trl = pytest.importorskip("trl", reason="needs the interop extra, which brings the templates")
pytest.importorskip("transformers", reason="needs the train extra")

FOLDER = Path(trl.__file__).parent / "chat_templates"
PAGE = Path(__file__).parents[2] / "docs" / "chat_formats.md"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
OPENING = (Message("system", "Be brief."), Message("user", "Who is it?"))
TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds pages.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
CALL = NativeCall("search", {"query": "who 日本"}, "call00000")
_TOKENS = re.compile(
    r"<[|｜][^<>'\"{}\s]*[|｜]>|</?s>|\[/?[A-Z_]+\]|<(?:start|end)_of_turn>|<turn\|>|<\|turn>"  # noqa: RUF001
)
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>", "<|end_of_text|>", "<end_of_turn>", "<turn|>"),  # noqa: RUF001
    *("<|return|>", "<|END_OF_TURN_TOKEN|>", "<|eot|>", "<end_of_utterance>", "<|endoftext|>"),
)


def tokenizer_of(source: str) -> Any:
    """A tokenizer with the tokens of the template."""
    eos = next((end for end in _ENDS if end in source), "</s>")
    eos = "<|endoftext|>" if "<|end|>" in source and "<|channel|>" not in source else eos  # as Phi-3 has it
    special = sorted({*_TOKENS.findall(source), eos})
    tokenizer = chat_tokenizer(source, eos=eos, special=special, added=[t for t in _TAGS if t in source])
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    return tokenizer


def in_template(tokenizer: Any) -> None:
    """An opening, an answer, a result and a further question in the format ``template``."""
    chat = TemplateFormat(tokenizer, ends_of_turn(tokenizer))
    ids = chat.prompt(OPENING)
    assert all(message.text in tokenizer.decode(ids) for message in OPENING)
    for message in (Message("tool", "Ada 日本"), Message("user", "And?")):
        held = [*ids, *tokenizer.encode("Yes.", add_special_tokens=False)]
        held += chat.closing(held)
        ids = chat.extend(held, (message,))
        assert ids[: len(held)] == held
        assert message.text in tokenizer.decode(ids[len(held) :])


def in_native(tokenizer: Any) -> None:
    """An opening, the template's own text of a call, its result and a further question in the format ``native``."""
    chat = NativeFormat(tokenizer, ends=ends_of_turn(tokenizer))
    conversation, ids = chat.open(OPENING, [TOOL])
    assert all(message.text in conversation.prompt for message in OPENING)
    said = chat.family.read(written(tokenizer, chat, conversation.prompt), False, {"search": {}})
    assert [(c.name, c.arguments) for c in said.calls if isinstance(c, NativeCall)] == [
        ("search", CALL.arguments)
    ]
    for turn, new in (
        (said, replies(said, (Message("tool", "Ada"),))),
        (AssistantTurn(None, "Yes."), (Message("user", "And?"),)),
    ):
        held = [*ids, *tokenizer.encode("Yes.", add_special_tokens=False), tokenizer.eos_token_id]
        conversation, ids = chat.go_on(held, conversation.said(turn), new)
        text = tokenizer.decode(ids)
        assert all(message.text in text for message in (*OPENING, *new))


def written(tokenizer: Any, chat: NativeFormat, prompt: str) -> str:
    """What the template writes for a turn with a call, up to the end of that turn."""
    function: dict[str, Any] = {"name": CALL.name, "arguments": CALL.arguments}
    asked = [{"role": message.role, "content": message.text} for message in OPENING]
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": CALL.id, "function": function}],
    }
    template = re.sub(
        r"""strftime_now\((["'])(.*?)\1\)""",
        lambda asks: repr(date(2026, 1, 1).strftime(asks[2])),
        tokenizer.get_chat_template(tools=[TOOL]),
    )
    text = tokenizer.apply_chat_template(
        [*asked, called], tools=[TOOL], tokenize=False, chat_template=template
    )
    text = text[len(prompt) :] if text.startswith(prompt) else text.partition("Who is it?")[2]
    ends = [text.rfind(tokenizer.decode([end])) for end in ends_of_turn(tokenizer)]
    return str(text[: max(ends)] if max(ends) >= 0 else text)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list[str]]:
    """Of each template, what ``template`` and ``native`` do: ``served``, or the sentence of a refusal."""
    found: dict[str, list[str]] = {}
    for name in NAMES:
        tokenizer = tokenizer_of((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
        found[name] = []
        for play in (in_template, in_native):
            try:
                play(tokenizer)
                found[name].append("served")
            except ConfigurationError as error:
                found[name].append(str(error))
    return found


def test_every_template_of_trl_is_served_or_refused_as_the_table_counts_it(
    outcomes: dict[str, list[str]],
) -> None:
    served = [sum(row[place] == "served" for row in outcomes.values()) for place in (0, 1)]
    counted = [served[0], len(NAMES) - served[0], served[1], len(NAMES) - served[1]]
    assert f"| {len(NAMES)} | {' | '.join(map(str, counted))} |" in PAGE.read_text(encoding="utf-8")


def test_a_refusal_is_one_sentence_that_says_what_to_use(outcomes: dict[str, list[str]]) -> None:
    refusals = {said for row in outcomes.values() for said in row if said != "served"}
    assert refusals
    for said in refusals:
        assert "\n" not in said
        assert "inline" in said or "save one" in said
