"""A vision-language policy: its log-probs are those of the model's own pass with the pixels, whatever the cache holds.

The reference is ``model.forward`` on the whole sequence with pixel values, which counts positions itself.
"""

import asyncio
import io
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

from agentenv.core.images import PlacedImage
from agentenv.core.types import Completion, Sampling
from agentenv.errors import CheckpointMismatch, ConfigurationError, EnvFault
from agentenv.policies.fake_vision import Kind, vision_policy
from agentenv.policies.hf import HFPolicy

NATS = 1e-5
"""Between sampler and model in float32 on a CPU."""


def picture(*box: int, size: tuple[int, int] = (112, 84)) -> bytes:
    """A white PNG with one black box."""
    drawn = Image.new("RGB", size, "white")
    if box:
        ImageDraw.Draw(drawn).rectangle(box, fill="black")
    held = io.BytesIO()
    drawn.save(held, "PNG")
    return held.getvalue()


LEFT, RIGHT, WIDE = picture(0, 0, 40, 80), picture(70, 0, 111, 80), picture(8, 8, 60, 20, size=(168, 56))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    kinds: tuple[Kind, ...] = ("qwen2_5_vl", "qwen3_vl")
    made = {kind: tmp_path_factory.mktemp(kind) for kind in kinds}
    for kind, folder in made.items():
        vision_policy(folder, ["What is on the screen?"], kind, spread=0.3)
    return made


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def loaded(folders: dict[Kind, Path], request: pytest.FixtureRequest) -> HFPolicy:
    return HFPolicy.load(folders[request.param])


@pytest.fixture
def policy(loaded: HFPolicy) -> Iterator[HFPolicy]:
    yield loaded
    loaded.close()


def prompt(policy: HFPolicy, *parts: str | bytes, after: Sequence[int] = ()) -> tuple[list[int], Any]:
    """Ids of texts and pictures behind ``after``, and the pictures with their places."""
    assert policy.image_reader is not None
    ids, images = list(after), []
    for part in parts:
        if isinstance(part, str):
            ids += policy.tokenizer.encode(part, add_special_tokens=False)
            continue
        found = PlacedImage(part, len(ids), *policy.image_reader.grid(part))
        images.append(found)
        ids += [policy.image_reader.placeholder] * (found.end - found.start)
    return ids, tuple(images)


def ask(policy: HFPolicy, ids: Sequence[int], images: Any, seed: int = 0, episode: Any = None) -> Completion:
    return asyncio.run(policy.generate(ids, Sampling(6, seed=seed), episode=episode, images=images))


@torch.no_grad()
def plainly(policy: HFPolicy, ids: Sequence[int], images: Sequence[PlacedImage]) -> torch.Tensor:
    """Log-probs [T - 1] of the ids after the first, by the model's own ``forward``."""
    model = policy.model
    tokens = torch.tensor([list(ids)])
    kinds = torch.zeros_like(tokens).int()
    for image in images:
        kinds[0, image.start : image.end] = 1
    inputs: dict[str, torch.Tensor] = {}
    if images and policy.image_reader is not None:
        inputs = {"mm_token_type_ids": kinds, **policy.image_reader.inputs([images], "cpu")}
    sampled = (tokens == model.config.image_token_id) & (kinds == 0)  # of no image
    fed = torch.where(sampled, 0, tokens)
    logprobs = torch.log_softmax(model.forward(input_ids=fed, use_cache=False, **inputs).logits[0], -1)
    model.base_model.rope_deltas = None
    return logprobs[:-1].gather(-1, tokens[0, 1:, None])[:, 0]


def gap(policy: HFPolicy, ids: Sequence[int], images: Any, done: Completion) -> float:
    wanted = plainly(policy, [*ids, *done.ids], images)[len(ids) - 1 :]
    return float((wanted - torch.tensor(done.logprobs)).abs().max())


def test_two_images_in_a_prompt_and_one_in_a_later_turn(policy: HFPolicy) -> None:
    ids, images = prompt(policy, "What is on ", LEFT, " and on ", WIDE, "?")
    first = ask(policy, ids, images, episode="e")
    assert gap(policy, ids, images, first) < NATS
    more, added = prompt(policy, " Now: ", RIGHT, " and?", after=[*ids, *first.ids])
    images = (*images, *added)
    second = ask(policy, more, images, seed=1, episode="e")
    assert gap(policy, more, images, second) < NATS
    assert ask(policy, more, images, seed=1).ids == second.ids  # without the cache


def test_rows_of_a_batch_have_their_own_images_and_positions(policy: HFPolicy) -> None:
    asked = [
        prompt(policy, "What is on ", LEFT, "?"),
        prompt(policy, "What is on ", RIGHT, "?"),  # the same ids
        prompt(policy, "What is on the screen?"),
        prompt(policy, WIDE, " and ", LEFT, " and ", RIGHT),
    ]

    async def together() -> list[Completion]:
        sampling = [Sampling(6 - place, seed=3) for place in range(len(asked))]
        calls = (policy.generate(i, s, images=p) for (i, p), s in zip(asked, sampling, strict=True))
        return await asyncio.gather(*calls)

    done = asyncio.run(together())
    assert asked[0][0] == asked[1][0]
    assert done[0].logprobs != done[1].logprobs
    for (ids, images), one in zip(asked, done, strict=True):
        assert gap(policy, ids, images, one) < NATS


def test_a_cache_is_not_taken_for_another_image_with_the_same_ids(policy: HFPolicy) -> None:
    ids, images = prompt(policy, "What is on ", LEFT, " and on ", LEFT, "?")
    ask(policy, ids, images, episode="e")
    for changed in (
        (images[0], replace(images[1], image=RIGHT)),
        (replace(images[0], image=RIGHT), images[1]),
    ):
        assert gap(policy, ids, changed, ask(policy, ids, changed, episode="e")) < NATS


def test_a_rewound_episode_goes_on_from_before_an_image(policy: HFPolicy) -> None:
    ids, images = prompt(policy, "What is on ", LEFT, "?")
    first = ask(policy, ids, images, episode="e")
    more, added = prompt(policy, RIGHT, "?", after=[*ids, *first.ids])
    ask(policy, more, (*images, *added), episode="e")
    again = ask(policy, ids, images, seed=5, episode="e")
    assert gap(policy, ids, images, again) < NATS
    other, later = prompt(policy, WIDE, "!", after=[*ids, *again.ids])
    assert gap(policy, other, (*images, *later), ask(policy, other, (*images, *later), episode="e")) < NATS


def test_score_and_the_two_likeliest_see_the_image(policy: HFPolicy) -> None:
    ids, images = prompt(policy, "What is on ", LEFT, " now?")
    wanted = plainly(policy, ids, images)
    found = asyncio.run(policy.score(ids, images=images))
    assert torch.tensor(found[1:]).allclose(wanted, atol=NATS)
    other = asyncio.run(policy.score(ids, images=(replace(images[0], image=RIGHT),)))
    assert found[-1] != pytest.approx(other[-1], abs=1e-3)
    ranked = asyncio.run(policy.top_two(ids, len(ids) - 1, images=images))
    logprob = dict(ranked[0]).get(ids[-1], -float("inf"))
    assert logprob == pytest.approx(float(wanted[-1]), abs=NATS) or min(dict(ranked[0]).values()) > wanted[-1]


def test_a_placeholder_that_the_policy_sampled_stands_for_no_image(policy: HFPolicy) -> None:
    reader = policy.image_reader
    assert reader is not None
    ids, images = prompt(policy, "What is on ", LEFT, "?")
    sampled = [*ids, reader.placeholder]
    more, added = prompt(policy, " Now: ", RIGHT, "!", after=sampled)
    images = (*images, *added)
    done = ask(policy, more, images)
    fed = [*ids, 0, *more[len(sampled) :]]
    assert gap(policy, fed, images, done) < NATS
    alone = ask(policy, [*more[:3], reader.placeholder, 4], ())
    assert gap(policy, [*more[:3], 0, 4], (), alone) < NATS


def test_an_image_takes_as_many_tokens_as_the_processor_makes(policy: HFPolicy) -> None:
    reader = policy.image_reader
    assert reader is not None
    side = {"qwen2_5_vl": 28, "qwen3_vl": 32}[policy.model.config.model_type]
    assert reader.grid(picture(size=(3 * side, 2 * side))) == (2, 3)
    values, sizes = reader.pixels(picture(size=(3 * side, 2 * side)))
    assert sizes.tolist() == [1, 4, 6]
    assert len(values) == 24
    with pytest.raises(EnvFault, match="5 bytes"):
        reader.grid(b"12345")


def test_a_folder_without_a_processor_reads_text_alone(folders: dict[Kind, Path], tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(folders["qwen3_vl"], folder)
    settings = folder / "preprocessor_config.json"
    kept = json.loads(settings.read_text())
    settings.write_text(json.dumps(kept | {"image_processor_type": "NoSuchProcessor"}))
    with pytest.raises(CheckpointMismatch, match="image processor"):
        HFPolicy.load(folder)
    settings.unlink()
    policy = HFPolicy.load(folder)
    ids = policy.tokenizer.encode("What is on the screen?")
    assert gap(policy, ids, (), ask(policy, ids, ())) < NATS
    with pytest.raises(ConfigurationError, match=r"preprocessor_config\.json"):
        ask(policy, [1, 2, 3], (PlacedImage(LEFT, 1, 1, 1),))


def test_a_model_that_counts_positions_otherwise_is_refused(folders: dict[Kind, Path]) -> None:
    policy = HFPolicy.load(folders["qwen2_5_vl"])

    def shifted(*args: Any, **kwargs: Any) -> Any:
        positions, deltas = type(policy.model.base_model).get_rope_index(
            policy.model.base_model, *args, **kwargs
        )
        return positions * 2, deltas

    policy.model.base_model.get_rope_index = shifted
    with pytest.raises(ConfigurationError, match="nats"):
        HFPolicy(policy.model, policy.tokenizer, image_reader=policy.image_reader)
