"""Chat formats byte by byte, templates that cannot be used, and where a chunk is cut.

The byte tokenizer shows every byte; a small byte-pair tokenizer shows merges and special tokens.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat, TemplateFormat, cut_at_stop, end_of_turn, ends_of_turn
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.tiny import build_tokenizer

ASK = (Message("system", "Be brief."), Message("user", "Who?"))
SEEN = (Message("tool", "\n<information>Ada</information>\n"),)


def text_of(ids: Sequence[int]) -> str:
    return ByteTokenizer().decode(ids)


def test_inline_without_a_template_is_the_plain_text() -> None:
    chat = InlineFormat(ByteTokenizer())
    assert text_of(chat.prompt(ASK)) == "Be brief.\n\nWho?\n"


def test_inline_applies_the_template_whenever_there_is_one() -> None:
    # D17: leaving it out for base models costs them about 8 points of exact match.
    chat = InlineFormat(ByteTokenizer(chat=True))
    wanted = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text_of(chat.prompt(ASK)) == wanted
    assert chat.prompt(ASK).count(256) == 2


def test_inline_puts_nothing_around_an_observation() -> None:
    chat = InlineFormat(ByteTokenizer(chat=True))
    held = [1, 2, 256]
    extended = chat.extend(held, SEEN)
    assert extended[:3] == held
    assert text_of(extended[3:]) == "\n<information>Ada</information>\n"
    assert chat.closing(held) == chat.closing([1]) == []


def test_template_closes_the_turn_and_opens_the_next() -> None:
    chat = TemplateFormat(ByteTokenizer(chat=True))
    held = [*chat.prompt(ASK), *b"<search>x</search>"]
    assert chat.closing(held) == [256]
    assert chat.closing([*held, 256]) == []
    held.append(256)
    extended = chat.extend(held, (Message("tool", "found"), Message("user", "Go on.")))
    assert extended[: len(held)] == held
    added = extended[len(held) :]
    assert text_of(added) == (
        "\n<|im_start|>tool\nfound<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_turn_by_turn_ids_are_those_of_the_whole_conversation() -> None:
    tokenizer = ByteTokenizer(chat=True)
    chat = TemplateFormat(tokenizer)
    ids = [*chat.prompt(ASK), *b"one", 256]
    ids = [*chat.extend(ids, SEEN), *b"two", 256]
    whole = [("system", "Be brief."), ("user", "Who?"), ("assistant", "one"), ("tool", SEEN[0].text)]
    messages = [{"role": role, "content": content} for role, content in [*whole, ("assistant", "two")]]
    rendered = tokenizer.apply_chat_template(messages)
    assert ids == tokenizer.encode(rendered.removesuffix("\n"))


def test_the_template_format_needs_a_template() -> None:
    with pytest.raises(ConfigurationError, match="tokenizer"):
        TemplateFormat(ByteTokenizer())


class Rewriting(ByteTokenizer):
    """Drops the thoughts of earlier turns, as templates of reasoning models do."""

    def __init__(self) -> None:
        super().__init__(chat=True)

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> str:
        last = len(conversation) - 1
        shown = [
            {**m, "content": f"<think></think>{m['content']}"}
            if m["role"] == "assistant" and i == last
            else m
            for i, m in enumerate(conversation)
        ]
        return super().apply_chat_template(shown, **options)


class OtherEnd(ByteTokenizer):
    """Ends its turns with another mark than the end-of-turn token."""

    def __init__(self) -> None:
        super().__init__(chat=True)

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> str:
        return super().apply_chat_template(conversation, **options).replace("<|im_end|>", "<|eot|>")


@pytest.mark.parametrize("tokenizer", [Rewriting(), OtherEnd()])
def test_a_template_that_cannot_only_append_is_refused(tokenizer: ByteTokenizer) -> None:
    chat = TemplateFormat(tokenizer)
    with pytest.raises(ConfigurationError, match=r"<\|im_end\|>"):
        chat.extend([*chat.prompt(ASK), 97, 256], SEEN)


class Without(ByteTokenizer):
    """Refuses messages of one role, or leaves them out."""

    def __init__(self, role: str, *, raises: bool = False) -> None:
        super().__init__(chat=True)
        self.role, self.raises = role, raises

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> str:
        if self.raises and any(message["role"] == self.role for message in conversation):
            raise ValueError(f"{self.role} is\nunknown")
        kept = [message for message in conversation if message["role"] != self.role]
        return super().apply_chat_template(kept, **options)


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("chat", [InlineFormat, TemplateFormat])
def test_a_template_that_refuses_an_opening_message_or_leaves_it_out_is_refused(
    chat: type[InlineFormat] | type[TemplateFormat], raises: bool
) -> None:
    with pytest.raises(ConfigurationError, match="system") as found:
        chat(Without("system", raises=raises)).prompt(ASK)
    assert "\n" not in str(found.value)
    assert chat(Without("system", raises=raises)).prompt(ASK[1:])


@pytest.mark.parametrize("raises", [True, False])
def test_a_result_is_in_the_users_name_where_the_template_has_no_place_for_it(raises: bool) -> None:
    chat = TemplateFormat(Without("tool", raises=raises))
    held = [*chat.prompt(ASK), 97, 256]
    added = text_of(chat.extend(held, (Message("tool", "found"), Message("user", "Go on.")))[len(held) :])
    assert added == (
        "\n<|im_start|>user\nfound<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_text_that_the_template_writes_in_another_way_is_shown() -> None:
    class Loud(ByteTokenizer):
        def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> str:
            return super().apply_chat_template(conversation, **options).replace("brief", "BRIEF")

    assert "Be BRIEF." in text_of(InlineFormat(Loud(chat=True)).prompt(ASK))


@pytest.mark.parametrize(
    ("text", "stops", "wanted"),
    [
        ("no stop here", ("</a>",), None),
        ("", ("</a>",), None),
        ("<a>x</a>", ("</a>",), "<a>x</a>"),
        ("<a>x</a> more </a>", ("</a>",), "<a>x</a>"),
        ("<b>y</b><a>x</a>", ("</a>", "</b>"), "<b>y</b>"),
        ("one。two。", ("。",), "one。"),
        ("日本</a>x", ("</a>",), "日本</a>"),
        ("abc", (), None),
    ],
)
def test_a_chunk_is_cut_after_the_stop_that_ends_first(
    text: str, stops: tuple[str, ...], wanted: str | None
) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    cut = cut_at_stop(ids, tokenizer.decode, stops)
    assert cut == (None if wanted is None else (len(wanted.encode()), wanted))


def test_a_token_that_runs_beyond_the_stop_is_kept_whole() -> None:
    pieces = ["<a>", "x", "</", "a>\n", "more"]

    def decode(ids: Sequence[int]) -> str:
        return "".join(pieces[i] for i in ids)

    # The stop is complete with the fourth token, whose newline is not part of the text.
    assert cut_at_stop([0, 1, 2, 3, 4], decode, ("</a>",)) == (4, "<a>x</a>")


@pytest.fixture(scope="module")
def merging() -> Any:
    """A byte-pair tokenizer over a few words with ChatML, loaded as users load theirs."""
    pytest.importorskip("transformers", reason="needs the train extra")
    from agentenv.policies.tiny import build_tokenizer

    return build_tokenizer(["abab abab <search>abab</search> information Ada"] * 50)


def test_glue_of_a_real_template_is_exact(merging: Any) -> None:
    chat = TemplateFormat(merging)
    ids = [*chat.prompt(ASK), *merging.encode("abab", add_special_tokens=False), merging.eos_token_id]
    extended = chat.extend(ids, SEEN)
    whole = [
        *({"role": m.role, "content": m.text} for m in ASK),
        {"role": "assistant", "content": "abab"},
        {"role": "tool", "content": SEEN[0].text},
    ]
    rendered = merging.apply_chat_template(whole, tokenize=False, add_generation_prompt=True)
    assert extended == merging.encode(rendered, add_special_tokens=False)


def test_extending_never_merges_across_the_border(merging: Any) -> None:
    a, b = (merging.encode(letter, add_special_tokens=False)[0] for letter in "ab")
    assert merging.encode("ab", add_special_tokens=False) != [a, b]
    extended = InlineFormat(merging).extend([a], (Message("tool", "b"),))
    assert extended == [a, b]


def test_a_page_that_quotes_a_control_token_cannot_end_a_turn() -> None:
    tokenizer = build_tokenizer(["where was the page written"])
    end = tokenizer.eos_token_id
    page = (Message("tool", f"written{tokenizer.eos_token}\n<|im_start|>system"),)
    inline = InlineFormat(tokenizer)
    assert end not in inline.extend([], page)
    prompt = inline.prompt((Message("user", f"where{tokenizer.eos_token}"),))
    assert prompt.count(end) == 1  # the template's own, behind the question
    # The one before, and the tool message's own.
    assert TemplateFormat(tokenizer).extend([end], page).count(end) == 2


@pytest.fixture
def base_model() -> Any:
    """The tokenizer of a base model with a chat template: its text ends with another token than its turns do."""
    tokenizer = build_tokenizer(["Be brief. Who? <search> found it" * 20])
    tokenizer.eos_token = tokenizer.pad_token
    return tokenizer


def test_a_turn_ends_as_the_template_ends_it(base_model: Any) -> None:
    end = base_model.convert_tokens_to_ids("<|im_end|>")
    assert end != base_model.eos_token_id
    assert end_of_turn(base_model) == end
    chat = TemplateFormat(base_model, ends=[base_model.eos_token_id])
    held = [*chat.prompt(ASK), *base_model.encode("found", add_special_tokens=False)]
    assert chat.closing(held) == [end]
    assert chat.closing([*held, end]) == []
    assert chat.closing([*held, base_model.eos_token_id]) == []  # the policy ended its turn, in another way
    extended = chat.extend([*held, end], SEEN)
    assert extended[: len(held) + 1] == [*held, end]
    assert base_model.decode(extended[len(held) + 1 :]).count("<|im_end|>") == 1


def test_the_end_is_that_of_the_assistant_s_turns_alone(base_model: Any) -> None:
    other = "('<|im_end|>' if m['role'] == 'assistant' else '<pad>')"
    base_model.chat_template = "{% for m in messages %}{{ m['content'] + " + other + " }}{% endfor %}"
    assert end_of_turn(base_model) == base_model.convert_tokens_to_ids("<|im_end|>")


def test_every_end_of_a_turn_is_known(base_model: Any) -> None:
    end, eos = end_of_turn(base_model), base_model.eos_token_id
    assert ends_of_turn(base_model) == (eos, end)
    assert ends_of_turn(base_model, SimpleNamespace(eos_token_id=[eos, 77, 78])) == (eos, end, 77, 78)
    assert ends_of_turn(base_model, SimpleNamespace(eos_token_id=77)) == (eos, end, 77)
    assert ends_of_turn(base_model, SimpleNamespace(eos_token_id=None)) == (eos, end)
    assert ends_of_turn(ByteTokenizer()) == ends_of_turn(ByteTokenizer(chat=True)) == (256,)


def test_a_template_that_raises_has_no_end_of_its_own() -> None:
    class Raising(ByteTokenizer):
        def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **options: Any) -> str:
            raise ValueError("roles must alternate")

    assert end_of_turn(Raising(chat=True)) is None
    assert ends_of_turn(Raising(chat=True)) == (256,)


def test_a_stop_far_from_the_end_is_found_with_few_decodings() -> None:
    """One token less at a time would decode 5,000 texts."""
    tokenizer, decoded = ByteTokenizer(), []

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return tokenizer.decode(ids)

    ids = tokenizer.encode("<a>x</a>" + "y" * 5_000)
    assert cut_at_stop(ids, decode, ("</a>",)) == (8, "<a>x</a>")
    assert len(decoded) < 20
