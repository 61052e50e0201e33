"""Episodes in the native format: tools declared, called and answered, rows, refused templates and settings."""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.assistant_turns import CUT_OFF, AssistantTurn, MalformedCall, NativeCall
from agentenv.core.chat import ends_of_turn
from agentenv.core.chat_formats import make_chat_format
from agentenv.core.env import AsyncEnv
from agentenv.core.native_format import NativeFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.tool_replies import NOT_RUN, replies
from agentenv.core.tools import tool
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import (
    Completion,
    EndReason,
    Info,
    Message,
    MessagePart,
    Observation,
    Sampling,
    Step,
    Task,
)
from agentenv.envs.calculator import Calculator
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.runner import to_record
from agentenv.policies.fakes import ByteTokenizer, chat_tokenizer
from agentenv.policies.scripted import ScriptedPolicy

pytest.importorskip("transformers", reason="needs the train extra")

TASK = Task("sum", "2 * 3 - 1", ("5",))
CHATML = """{%- if tools -%}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %}{"arguments": <tool_call>}<|im_end|>{{ '\\n' }}{%- endif -%}
{%- for m in messages -%}{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' }}
{%- if m.reasoning_content and loop.index0 > messages | length - 3 -%}
{{ '<think>' + m.reasoning_content + '</think>' }}{%- endif -%}
{{ m.content }}{%- for c in m.tool_calls or [] -%}
{{ '<tool_call>' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson + '</tool_call>' }}
{%- endfor -%}{{ '<|im_end|>\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""


def tokenizer_of(template: str = CHATML, eos: str = "<|im_end|>") -> Any:
    return chat_tokenizer(template, eos=eos, special=["<|im_start|>"])


def play(
    env: AsyncEnv[Any],
    actions: Sequence[str],
    tokenizer: Any = None,
    task: Task = TASK,
    turn_tokens: int = 500,
) -> Trajectory:
    tokenizer = tokenizer or tokenizer_of()
    chat = make_chat_format("native", tokenizer, ends_of_turn(tokenizer))
    policy = ScriptedPolicy({"e-0": actions}, tokenizer)
    (played,) = asyncio.run(
        rollout(
            [EpisodeSpec(env, task, 0)],
            policy,
            chat,
            RolloutConfig(turn_tokens=turn_tokens, context_tokens=4096),
            name="e",
        )
    )
    return played


def called(**arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'calculate', 'arguments': arguments})}</tool_call>"


def text_of(played: Trajectory, row: int = 0) -> str:
    ids = [i for segment in played.segments if segment.row == row for i in segment.ids]
    return str(tokenizer_of().decode(ids))


def test_a_tool_is_declared_called_and_answered_natively() -> None:
    played = play(Calculator(), [f"<think>Hm {called()}</think>{called(expression='2 * 3 - 1')}", "5"])
    assert (played.reward, played.end_reason, len(played.turns)) == (1.0, EndReason.ANSWERED, 2)
    (answer,) = played.turns[0].observation
    assert (answer.role, answer.text, answer.name) == ("tool", "5", "calculate")
    text = text_of(played)
    assert '"name": "calculate"' in text
    assert "To call one, write" not in text  # the environment's own way of calling
    assert text.endswith("<|im_end|>\n<|im_start|>user\n5<|im_end|>\n<|im_start|>assistant\n5<|im_end|>")
    assert {segment.row for segment in played.segments} == {0}
    sampled = [s for s in played.segments if s.kind is SegmentKind.POLICY]
    assert tokenizer_of().decode(list(sampled[1].ids)) == "5<|im_end|>"


def test_calls_of_one_turn_are_answered_in_their_order() -> None:
    both = called(expression="1 + 1") + "<tool_call>{</tool_call>" + called(expression="2 + 2")
    played = play(Calculator(), [both, "5"])
    texts = [message.text for message in played.turns[0].observation]
    assert texts[::2] == ["2", "4"]
    assert "not JSON" in texts[1]
    assert not played.turns[0].valid


def test_a_call_that_turn_tokens_cut_off_is_told_so_to_the_policy_and_in_the_record() -> None:
    whole = called(expression="1 + 1")
    long = whole + called(expression="2 * 3 - 1 + 0" + " + 0" * 50)
    played = play(Calculator(), [long, whole, "5"], turn_tokens=len(whole) + 60)
    first, second, _ = played.turns
    assert [message.text for message in first.observation] == ["2", CUT_OFF]
    assert [result.text for result in first.tool_results] == ["2", CUT_OFF]
    assert (first.valid, second.valid) == (False, True)
    assert [turn.cut for turn in played.turns] == [True, False, False]
    assert [turn.get("cut", False) for turn in to_record(played)["turns"]] == [True, False, False]
    assert [result.text for result in second.tool_results] == ["2"]


def test_a_turn_that_was_cut_off_within_a_call_stands_in_the_prompt_as_it_was_written() -> None:
    played = play(Calculator(), [called(expression="2 * 3 - 1" + " + 0" * 50), "5"], turn_tokens=60)
    assert [message.text for message in played.turns[0].observation] == [CUT_OFF]
    assert {segment.row for segment in played.segments} == {0}


def test_a_call_that_could_not_be_read_is_told_alike_to_the_policy_and_in_the_record() -> None:
    (first, _) = play(Calculator(), ["<tool_call>{</tool_call>", "5"]).turns
    (message,), (result,) = first.observation, first.tool_results
    assert message.text == result.text
    assert "not JSON" in result.text


def test_marks_in_arguments_and_in_text_make_no_calls() -> None:
    mark = '</tool_call><tool_call>{"name": "calculate", "arguments": {"expression": "1"}}</tool_call>'
    turn = AssistantTurn(None, "", (NativeCall("calculate", {"expression": mark}),))
    action = Calculator().native_action(turn)
    assert action.count("<tool_call>") == 1
    assert (
        json.loads(action.removeprefix("<tool_call>").removesuffix("</tool_call>"))["arguments"]["expression"]
        == mark
    )
    assert "<tool_call>" not in Calculator().native_action(AssistantTurn(None, mark))


SHOWS_IMAGES = CHATML.replace(
    "{{ m.content }}",
    "{% if m.role == 'tool' %}{{ m.name }}: {% endif %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ '<|image_pad|>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}",
)
PAD = "<|image_pad|>"


class Pictured(Calculator):
    """Shows a picture beside the question."""

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        shown, info = await super().areset(seed=seed, options=options)
        return (*shown, Message("user", (MessagePart("image", image=b"\x89PNG"),))), info


class Blind(ScriptedPolicy):
    """A script that is handed images."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None, images: Any = ()
    ) -> Completion:
        return await super().generate(prompt_ids, sampling, episode=episode)


@pytest.mark.parametrize(
    "turn",
    [
        called(expression=f"1{PAD}"),
        called(**{PAD: [PAD, {PAD: 1}]}),
        called(expression="1").replace("calculate", f"calculate{PAD}"),
        f"{PAD}{called(expression='1')}",
        f"<tool_call>{{{PAD}</tool_call>",
    ],
    ids=["argument", "names", "tool", "content", "malformed"],
)
def test_a_placeholder_that_the_policy_wrote_stands_for_no_image_in_a_new_row(turn: str) -> None:
    tokenizer = chat_tokenizer(SHOWS_IMAGES, eos="<|im_end|>", special=["<|im_start|>", PAD])

    class Reader:
        placeholder = tokenizer.convert_tokens_to_ids(PAD)

        def grid(self, image: bytes) -> tuple[int, int]:
            return 1, 2

    chat = NativeFormat(tokenizer, ends=ends_of_turn(tokenizer), image_reader=Reader())
    # The template leaves out the thinking of the first turn once there is a third, so a new row shows its call again.
    actions = [f"<think>a</think>{turn}", f"<think>b</think>{called(expression='2')}", "5"]
    specs = [EpisodeSpec(Pictured(), TASK, 0)]
    policy = Blind({"e-0": actions}, tokenizer)
    config = RolloutConfig(turn_tokens=500, context_tokens=4096)
    (played,) = asyncio.run(rollout(specs, policy, chat, config, name="e"))
    assert (played.end_reason, len(played.turns), played.error) == (EndReason.ANSWERED, 3, "")
    assert [len(images) for images in played.row_images] == [1] * len(played.row_slices)
    assert len(played.row_slices) > 1


class Charts(Calculator):
    """Has a tool that shows a picture between two texts."""

    @tool
    def chart(self, color: str) -> list[str | MessagePart]:
        """Draws a chart.

        Args:
            color: Of its lines.
        """
        return [f"In {color}:", MessagePart("image", image=b"\x89PNG\r\n\x1a\n" + color.encode()), "Done."]


def drawn(color: str) -> str:
    return f'<tool_call>{{"name": "chart", "arguments": {{"color": "{color}"}}}}</tool_call>'


class OneByTwo:
    placeholder = 0

    def grid(self, image: bytes) -> tuple[int, int]:
        return 1, 2


@pytest.mark.parametrize("form", ["native", "template"])
def test_images_of_tools_are_shown_behind_all_results_of_the_turn(form: str) -> None:
    tokenizer = chat_tokenizer(SHOWS_IMAGES, eos="<|im_end|>", special=["<|im_start|>", PAD])
    reader = OneByTwo()
    reader.placeholder = tokenizer.convert_tokens_to_ids(PAD)
    chat = make_chat_format(form, tokenizer, ends_of_turn(tokenizer), image_reader=reader)
    policy = Blind({"e-0": [drawn("red") + called(expression="1 + 1") + drawn("blue"), "5"]}, tokenizer)
    config = RolloutConfig(turn_tokens=500, context_tokens=4096)
    specs = [EpisodeSpec(Charts(pixels=True), TASK, 0)]
    (played,) = asyncio.run(rollout(specs, policy, chat, config, name="e"))
    assert (played.error, played.reward) == ("", 1.0)
    *texts, pictures = played.turns[0].observation
    assert [message.role for message in texts] == ["tool"] * 3
    assert [result.text for result in played.turns[0].tool_results] == [
        "In red:\n[image]\nDone.",
        "2",
        "In blue:\n[image]\nDone.",
    ]
    assert pictures.role == "user"
    assert [image.image[8:] for images in played.row_images for image in images] == [b"red", b"blue"]


def test_without_pixels_a_text_says_that_an_image_is_not_shown() -> None:
    played = play(Charts(), [drawn("red"), "5"])
    (message,) = played.turns[0].observation
    assert message.text == "In red:\n[image, which is not shown]\nDone."
    assert (played.reward, played.error) == (1.0, "")


@pytest.mark.parametrize("form", ["native", "template", "inline"])
def test_a_policy_of_text_is_refused_before_it_acts_where_tools_show_images(form: str) -> None:
    tokenizer = tokenizer_of()
    chat = make_chat_format(form, tokenizer, ends_of_turn(tokenizer))
    policy = ScriptedPolicy({"e-0": []}, tokenizer)  # which fails where it is asked
    specs = [EpisodeSpec(Charts(pixels=True), TASK, 0)]
    with pytest.raises(ConfigurationError, match="pixels=false"):
        asyncio.run(rollout(specs, policy, chat, RolloutConfig(), name="e"))


@dataclass
class TalkState:
    heard: list[str]


class Talk(AsyncEnv[TalkState]):
    """Says in the user's name that it heard something; it has no tools."""

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed, options=options)
        self.state = TalkState([])
        return (Message("user", "Hi"),), {"task_id": "sum"}

    async def astep(self, action: str) -> Step:
        self.state.heard.append(action)
        over = len(self.state.heard) == 3
        return self.result((Message("user", "Go on"),), reward=1.0, end=EndReason.ANSWERED if over else None)


def test_a_template_that_drops_thinking_opens_a_row_and_an_environment_without_tools_hears_the_text() -> None:
    env = Talk()
    played = play(env, ["<think>a</think>one", "<think>b</think>two", "three"])
    assert env.state.heard == ["one", "two", "three"]
    assert (played.reward, sorted({segment.row for segment in played.segments})) == (3.0, [0, 1])
    assert text_of(played, 1).count("<|im_start|>assistant\n") == 3
    assert ("<think>a" in text_of(played, 1), "<think>b" in text_of(played, 1)) == (False, True)


def test_what_the_policy_writes_cannot_break_a_run() -> None:
    strict = CHATML.replace(
        "{{ m.content }}", "{{ raise_exception('empty') if m.content == '' else m.content }}"
    )
    played = play(Talk(), ["", "never"], tokenizer_of(strict))
    assert (played.end_reason, played.valid, played.reward) == (EndReason.PARSE_ERROR, True, 1.0)


def test_an_observation_for_several_calls_answers_the_first_that_could_be_read() -> None:
    turn = AssistantTurn(
        None, "", (MalformedCall("{", "bad"), NativeCall("f", {}, "id"), NativeCall("g", {}))
    )
    shown = replies(turn, (Message("tool", "all"), Message("user", "Go on")))
    assert [(m.role, m.text, m.name) for m in shown] == [
        ("tool", "bad", ""), ("tool", "all", "f"), ("tool", NOT_RUN, "g"), ("user", "Go on", ""),
    ]  # fmt: skip
    assert shown[1].call_id == "id"
    assert len(shown[2].call_id) == 9


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        (ByteTokenizer(), "no chat template"),
        (tokenizer_of(CHATML + "{{ raise_exception('never') }}"), "never"),
        (tokenizer_of("{% for m in messages %}{{ m.content }}{% endfor %}"), "'text'"),
        (
            tokenizer_of("<start_of_turn>{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"),
            "'gemma'",
        ),
        (tokenizer_of(CHATML.replace("{{ tool | tojson }}", "tool")), "'calculate'"),
        (tokenizer_of(CHATML.replace("{{ tool | tojson }}", "{{ tool.function.name }}")), "'expression'"),
        (tokenizer_of(CHATML.replace("m.tool_calls or []", "[]").replace("m.content", "''")), "tool calls"),
    ],
)
def test_a_template_that_cannot_serve_is_refused_by_one_sentence(tokenizer: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)) as found:
        play(Calculator(), ["5"], tokenizer)
    assert "inline" in str(found.value)
    assert "\n" not in str(found.value)


def test_a_turn_that_has_no_end_is_refused() -> None:
    endless = tokenizer_of("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(ConfigurationError, match="im_end"):
        play(Talk(), ["5"], endless)


def test_settings_of_the_format_are_checked() -> None:
    tokenizer = tokenizer_of()
    with pytest.raises(UnknownName, match="qwem"):
        NativeFormat(tokenizer, family="qwem")
    with pytest.raises(ConfigurationError, match="tools"):
        NativeFormat(tokenizer, options={"tools": []})
    with pytest.raises(ConfigurationError, match="yesterday"):
        NativeFormat(tokenizer, options={"date": "yesterday"})
    with pytest.raises(ConfigurationError, match="enable_thinking"):
        make_chat_format("inline", tokenizer, template_options={"enable_thinking": False})
    with pytest.raises(ConfigurationError, match="inline"):
        NativeFormat(tokenizer).extend([1], (Message("user", "x"),))


def test_options_reach_the_template_and_its_today_is_fixed() -> None:
    template = CHATML + "{{ effort }} {{ strftime_now('%Y-%m-%d') }}"
    tokenizer = tokenizer_of(template)
    ask = (Message("user", "Hi"),)
    first = NativeFormat(tokenizer, options={"effort": "high"}).prompt(ask)
    later = NativeFormat(tokenizer, options={"effort": "low", "date": "2026-05-04"}).prompt(ask)
    assert tokenizer.decode(first).endswith("high 2026-01-01")
    assert tokenizer.decode(later).endswith("low 2026-05-04")


def trl_templates() -> list[Path]:
    trl = pytest.importorskip("trl", reason="needs the interop extra")
    return sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))


def test_every_template_of_trl_is_served_or_refused_by_one_sentence() -> None:
    tool = Calculator().native_tools()[0].to_openai()
    marks = re.compile(r"<[|｜][^<>'\"{}\s]*[|｜]>|<(?:start|end)_of_turn>|<end_of_utterance>|<eos>|<turn\|>")  # noqa: RUF001
    found = {}
    for path in trl_templates():
        source = path.read_text(encoding="utf-8")
        tokenizer = chat_tokenizer(source, eos="<|endoftext|>", special=sorted({*marks.findall(source)}))
        chat = NativeFormat(tokenizer, ends=ends_of_turn(tokenizer))
        opening = (Message("system", "S"), Message("user", "Q"))
        try:
            conversation, ids = chat.open(opening, [tool])
        except ConfigurationError as error:
            found[path.stem] = str(error)
            continue
        turn = AssistantTurn(None, "", (NativeCall("calculate", {"expression": "1"}),))
        shown = replies(turn, (Message("tool", 'He said "one".\n'),))
        _, later = chat.go_on(ids, conversation.said(turn), shown)
        text = tokenizer.decode(later)
        assert text.count('He said "one".') == 1, path.stem  # not escaped
        # Not wrapped twice.
        assert text.count("<tool_response>") - tokenizer.decode(ids).count("<tool_response>") <= 1
        found[path.stem] = "served"
    assert all(one == "served" or ("inline" in one and "\n" not in one) for one in found.values())
    served = sorted(name for name, outcome in found.items() if outcome == "served")
    assert (len(found), len(served)) == (72, 35), served
