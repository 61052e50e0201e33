"""Results of MCP tools: texts, images among them, and images that cannot be shown, from answers and from a server."""

import asyncio
import base64
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the mcp extra")
pytest.importorskip("PIL", reason="needs the gui extra")

from PIL import Image

from agentenv.core.chat import ends_of_turn
from agentenv.core.chat_formats import make_chat_format
from agentenv.core.images import images_of
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.tool_results import ImageResult
from agentenv.core.trajectory import from_record, to_record
from agentenv.core.types import Completion, EndReason, Sampling, Step, Task, ToolStatus
from agentenv.envs.mcp.results import MOST_IMAGES, read_result, shown
from agentenv.envs.mcp.tools_env import McpTools
from agentenv.errors import MissingExtra
from agentenv.policies.fakes import chat_tokenizer
from agentenv.policies.scripted import ScriptedPolicy

COMMAND = f"stdio:{sys.executable} {Path(__file__).with_name('servers.py')} stdio"
TASK = Task("color", "Which color is it?", ("red",))


def saved(
    size: tuple[int, int] = (112, 56), file_format: str = "PNG", mode: str = "RGB", **more: Any
) -> bytes:
    held = io.BytesIO()
    Image.new(mode, size, 255).save(held, file_format, **more)
    return held.getvalue()


def image(data: bytes | str, mime_type: str = "image/png") -> Any:
    text = data if isinstance(data, str) else base64.b64encode(data).decode()
    return SimpleNamespace(type="image", mime_type=mime_type, data=text)


def text(said: str) -> Any:
    return SimpleNamespace(type="text", text=said)


def answer(*blocks: Any, is_error: bool = False) -> Any:
    return SimpleNamespace(content=blocks, structured_content=None, is_error=is_error)


def test_content_that_is_no_text_is_named() -> None:
    blocks = [
        SimpleNamespace(type="text", text="a"),
        SimpleNamespace(type="image", mime_type="image/png", data="..."),
        SimpleNamespace(type="resource", resource=SimpleNamespace(text="b", uri="file:///b")),
        SimpleNamespace(type="resource_link", name="c", uri="file:///c"),
    ]
    answer = SimpleNamespace(content=blocks, structured_content=None)
    assert shown(answer) == "a\n[image of type image/png, which is not shown]\nb\n[c: file:///c]"
    assert shown(SimpleNamespace(content=[], structured_content={"x": 1})) == '{"x": 1}'


def test_an_image_is_shown_among_the_texts_at_a_size_that_models_see() -> None:
    blob = SimpleNamespace(blob=base64.b64encode(saved()).decode(), mime_type="image/png")
    found = read_result(
        "look",
        answer(
            text("a"),
            image(saved((100, 50), "JPEG"), "image/jpeg"),
            SimpleNamespace(type="resource", resource=blob),
        ),
        pixels=True,
    )
    assert isinstance(found, ImageResult)
    told, (first, second) = found.rendered(shown=True)
    assert (told.name, told.status, told.text) == ("look", ToolStatus.OK, "a\n[image]\n[image]")
    for part, size in ((first, (112, 56)), (second, (112, 56))):
        with Image.open(io.BytesIO(part.image)) as picture:
            assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", size)


def test_what_stands_beside_the_pixels_is_not_kept() -> None:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("time", "x" * 100_000)
    wordy = saved(pnginfo=info, icc_profile=b"y" * 100_000)
    assert read_result("look", answer(image(wordy)), pixels=True) == read_result(
        "look", answer(image(saved())), pixels=True
    )


def test_an_error_of_a_tool_keeps_its_images() -> None:
    found = read_result("look", answer(image(saved()), is_error=True), pixels=True)
    assert isinstance(found, ImageResult)
    told, images = found.rendered(shown=True)
    assert (told.status, told.error_class, len(images)) == (ToolStatus.ERROR, "ToolError", 1)


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([image("no base64!")], "base64"),
        ([image("abc")], "padding"),
        ([image("")], "0 bytes"),
        ([image("ü")], "ASCII"),
        ([image(saved(), "image/jpeg")], "no JPEG"),
        ([image(saved(), "image/svg+xml")], "'image/svg\\+xml'"),
        ([text("a"), image(saved()), image(saved()[:60])], "truncated"),
        ([image(saved((9000, 9000), mode="1"))], "9000x9000"),
        ([image(saved((20_000, 20_000), mode="1"))], "400000000 pixels"),
        ([image(saved((300, 1)))], "300x1"),
        ([image(saved())] * (MOST_IMAGES + 1), f"there are {MOST_IMAGES + 1}"),
    ],
)
def test_an_image_that_cannot_be_shown_is_an_error_of_the_tool(blocks: list[Any], said: str) -> None:
    found = read_result("look", answer(*blocks), pixels=True)
    assert (found.status, found.error_class, type(found).__name__) == (
        ToolStatus.ERROR,
        "ImageError",
        "ToolResult",
    )
    assert len(found.text.splitlines()) == 1
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(found.text)
    assert read_result("look", answer(*blocks), pixels=False).status is ToolStatus.OK


class Blind(ScriptedPolicy):
    """A script that is handed images."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None, images: Any = ()
    ) -> Completion:
        return await super().generate(prompt_ids, sampling, episode=episode)


class OneByTwo:
    """Every image is two tokens."""

    placeholder = 0

    def grid(self, image: bytes) -> tuple[int, int]:
        return 1, 2


SHOWS_IMAGES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<pad>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def drawn(color: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'chart', 'arguments': {'color': color}})}</tool_call>"


@pytest.mark.parametrize("server_state", ["replayed", "none"])
def test_images_of_a_server_reach_the_policy_and_the_record(server_state: Any) -> None:
    pytest.importorskip("transformers", reason="needs the train extra")
    tokenizer = chat_tokenizer(SHOWS_IMAGES, eos="<|im_end|>", special=["<|im_start|>", "<pad>"])
    reader = OneByTwo()
    reader.placeholder = tokenizer.convert_tokens_to_ids("<pad>")
    chat = make_chat_format("template", tokenizer, ends_of_turn(tokenizer), image_reader=reader)
    broken = '<tool_call>{"name": "half_chart", "arguments": {}}</tool_call>'
    policy = Blind({"e-0": [drawn("red") + drawn("blue"), broken, "red"]}, tokenizer)
    env = McpTools(server=COMMAND, server_state=server_state, pixels=True)
    specs = [EpisodeSpec(env, TASK, 0)]
    config = RolloutConfig(turn_tokens=500, context_tokens=16_000)
    (played,) = asyncio.run(rollout(specs, policy, chat, config, name="e"))
    env.close()
    assert (played.error, played.end_reason, played.reward) == ("", EndReason.ANSWERED, 1.0)
    first, second = played.turns[0].tool_results
    assert (first.text, second.text) == ("In red:\n[image]\nDone.", "In blue:\n[image]\nDone.")
    assert played.turns[1].tool_results[0].error_class == "ImageError"
    (images,) = played.row_images
    colors = []
    for placed in images:
        with Image.open(io.BytesIO(placed.image)) as picture:
            colors.append(picture.getpixel((0, 0)))
    assert colors == [(255, 0, 0), (0, 0, 255)]
    assert from_record(to_record(played, whole=True), TASK).row_images == played.row_images


def pictures(step: Step) -> list[bytes]:
    return images_of(step.observation)


def test_episodes_with_images_go_back_and_fork() -> None:
    env = McpTools(server=COMMAND, pixels=True)
    env.reset(seed=0, options={"task": TASK})
    env.step(drawn("red"))
    snapshot = env.snapshot()
    blue = env.step(drawn("blue"))
    (twin,) = env.fork(1)
    env.restore(snapshot)
    assert pictures(env.step(drawn("blue"))) == pictures(blue) == pictures(twin.step(drawn("blue")))
    twin.close()
    env.close()


def test_the_limit_of_characters_holds_for_the_texts_beside_images() -> None:
    env = McpTools(server=COMMAND, pixels=True, result_chars=6)
    env.reset(seed=0, options={"task": TASK})
    step = env.step(drawn("red"))
    assert "characters left out" in step.info["tool_results"][0].text
    assert len(pictures(step)) == 1
    env.close()


def test_without_pillow_the_extra_is_named_before_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"agentenv-suite\[gui\]"):
        McpTools(server="stdio:no-other-test-names-this", pixels=True)
