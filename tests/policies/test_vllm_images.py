"""Images on the real engine: log-probs are those of the trainer, before new weights and after."""

import asyncio
import io
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch

from agentenv.core.images import PlacedImage
from agentenv.core.types import Sampling
from agentenv.policies.engine import EngineConfig
from agentenv.policies.fake_vision import vision_policy
from agentenv.policies.hf import HFPolicy
from agentenv.policies.vllm import VLLMPolicy


def picture(box: tuple[int, int, int, int], size: tuple[int, int]) -> bytes:
    drawn = Image.new("RGB", size, "white")
    ImageDraw.Draw(drawn).rectangle(box, fill="black")
    held = io.BytesIO()
    drawn.save(held, "PNG")
    return held.getvalue()


def prompt(policy: HFPolicy, *pictures: bytes) -> tuple[list[int], tuple[PlacedImage, ...]]:
    """The ids of a question about pictures, and where these are."""
    reader, convert = policy.image_reader, policy.tokenizer.convert_tokens_to_ids
    assert reader is not None
    ids, images = policy.tokenizer.encode("What is on ", add_special_tokens=False), []
    for one in pictures:
        ids.append(convert("<|vision_start|>"))
        images.append(PlacedImage(one, len(ids), *reader.grid(one)))
        ids += [reader.placeholder] * (images[-1].end - images[-1].start)
        ids.append(convert("<|vision_end|>"))
    return [*ids, *policy.tokenizer.encode("?", add_special_tokens=False)], tuple(images)


def test_log_probs_with_images_agree_with_the_trainer(tmp_path: Path) -> None:
    vision_policy(tmp_path, ["What is on the screen?"], width=128)
    hf = HFPolicy.load(tmp_path)
    left, wide = picture((0, 0, 40, 80), (112, 84)), picture((8, 8, 60, 20), (168, 56))
    asked = [prompt(hf, left), prompt(hf, wide, left), prompt(hf)]
    assert hf.image_reader is not None
    placeholder = hf.image_reader.placeholder
    asked.append(([*asked[0][0], placeholder, *asked[2][0], placeholder, placeholder, 33], asked[0][1]))
    asked.append(([*asked[2][0], placeholder], ()))
    strays = 0

    def gap(engine: VLLMPolicy) -> float:
        gaps = []
        for ids, images in asked:
            done = asyncio.run(engine.generate(ids, Sampling(24, seed=1), images=images))
            nonlocal strays
            strays += done.ids.count(placeholder)
            scores = asyncio.run(hf.score([*ids, *done.ids], images=images))[len(ids) :]
            again = asyncio.run(engine.score([*ids, *done.ids], images=images))[len(ids) :]
            found = torch.tensor([scores, again, done.logprobs])
            gaps.append(float((found - found[0]).abs().max()))
        return max(gaps)

    config = EngineConfig(kind="vllm", kv_gib=0.25)
    with VLLMPolicy.load(tmp_path, config, hf.model, context_tokens=512) as engine:
        assert gap(engine) < 1e-4
        with torch.no_grad():
            for parameter in hf.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
            (likely,) = asyncio.run(
                hf.generate(asked[0][0], Sampling(1, temperature=0), images=asked[0][1])
            ).ids
            head = hf.model.get_output_embeddings().weight
            head[placeholder] = head[likely]  # so that the placeholder is sampled
        assert gap(engine) > 1e-2
        engine.set_weights()
        strays = 0
        assert gap(engine) < 1e-4
        assert strays > 0
