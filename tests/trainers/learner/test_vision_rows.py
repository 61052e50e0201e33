"""Rows with images in the learner: log-probs of the sampler, shared prompts, several episodes in a batch, gradients, a step.

Episodes are played by a small random vision-language model in DomSim, from pixels alone.
"""

import asyncio
import copy
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import agentenv
from agentenv.core.chat import TemplateFormat
from agentenv.core.images import PlacedImage
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.errors import ConfigurationError
from agentenv.policies.fake_vision import vision_policy
from agentenv.policies.hf import HFPolicy
from agentenv.trainers.learner.learner import Learner, Objective, rows_of
from agentenv.trainers.learner.logprobs import token_logprobs
from agentenv.trainers.learner.packing import Layout, Packed, TrainingRow, micro_batches, strips_of
from agentenv.trainers.learner.sharded import refuse_rows_with_images

NATS = 1e-5
"""Between sampler and learner in float32 on a CPU."""
PIXELS = {"tree": False, "pixels": True, "pointing": "coordinate", "max_steps": 3}


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def policy(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> HFPolicy:
    folder = tmp_path_factory.mktemp("policy")
    env = agentenv.make("agentenv/DomSim-v0", **PIXELS)
    ((message,), _) = env.reset(seed=0)
    vision_policy(folder, [message.text], request.param, spread=0.2)
    return HFPolicy.load(folder)


@pytest.fixture(scope="module")
def played(policy: HFPolicy) -> list[Trajectory]:
    """Two episodes of one task and one of another, three turns each, some of which end at the limit of tokens."""
    env = agentenv.make("agentenv/DomSim-v0", **PIXELS)
    first, second = env.make_tasks(2)
    specs = [
        EpisodeSpec(agentenv.make("agentenv/DomSim-v0", **PIXELS), task, seed)
        for seed, task in enumerate([first, first, second])
    ]
    chat = TemplateFormat(policy.tokenizer, policy.ends, image_reader=policy.image_reader)
    config = RolloutConfig(context_tokens=1200, turn_tokens=12)
    return asyncio.run(rollout(specs, policy, chat, config, name="played"))


def rows(played: Sequence[Trajectory]) -> list[TrainingRow]:
    return rows_of(played, [np.where(t.loss_mask, 1.0, 0.0) for t in played])


def logprobs(policy: HFPolicy, batch: Packed) -> torch.Tensor:
    return token_logprobs(policy.model, batch, 1.0, image_reader=policy.image_reader)[0]


def test_an_episode_holds_an_image_a_turn_and_trains_no_token_of_it(played: list[Trajectory]) -> None:
    for trajectory in played:
        assert trajectory.valid, trajectory.error
        ((images,), (row,)) = trajectory.row_images, trajectory.row_slices
        assert len(images) == 3
        assert len({image.image for image in images}) >= 1
        for image in images:
            assert not trajectory.loss_mask[row][image.start : image.end].any()
        kinds = [segment.kind for segment in trajectory.segments if segment.images]
        assert kinds == [SegmentKind.PROMPT, SegmentKind.ENV, SegmentKind.ENV]
    assert any(SegmentKind.FORMAT in [s.kind for s in t.segments] for t in played)  # a turn was cut off


@pytest.mark.parametrize("layout", ["padded", "line", "shared_line"])
@pytest.mark.parametrize("micro_tokens", [1, 100_000])
def test_the_learner_finds_the_log_probs_of_the_sampler(
    policy: HFPolicy, played: list[Trajectory], layout: Layout, micro_tokens: int
) -> None:
    batches = list(micro_batches(rows(played), micro_tokens, 1.0, layout))
    assert len(batches) == (3 if micro_tokens == 1 else 2)  # two episodes share a prompt
    with torch.no_grad():
        for batch in batches:
            assert (logprobs(policy, batch) - batch.old).abs().max() < NATS


def negative(image: PlacedImage) -> PlacedImage:
    """The same place with other pixels."""
    held = io.BytesIO()
    with Image.open(io.BytesIO(image.image)) as picture:
        ImageOps.invert(picture.convert("RGB")).save(held, "PNG")
    return replace(image, image=held.getvalue())


def shared_rows(played: list[Trajectory]) -> list[TrainingRow]:
    """Four rows of one prompt, so long that a strip of them is worth it; two of them show another image later on."""
    base = rows(played)[:2]
    changed = [replace(row, images=(row.images[0], negative(row.images[1]))) for row in base]
    whole = [*base, *changed]
    cut = [int(row.images[1].end) + 4 for row in whole]
    parts = [
        replace(
            row,
            ids=row.ids[:end],
            mask=row.mask[:end].copy(),
            logprobs=row.logprobs[:end],
            mismatch=row.mismatch[:end],
            advantages=row.advantages[:end],
            age=None,
            images=tuple(image for image in row.images if image.end <= end),
        )
        for row, end in zip(whole, cut, strict=True)
    ]
    for row in parts:  # what follows the second image is trained, so that it matters
        row.mask[-4:] = True
    return parts


def test_rows_that_share_a_prompt_with_an_image_are_computed_behind_one_copy(
    policy: HFPolicy, played: list[Trajectory]
) -> None:
    parts = shared_rows(played)
    (strip,) = strips_of(parts, 100_000)
    assert len(strip.rows) == 4
    assert len(strip.images) == 5
    (together,) = micro_batches(parts, 100_000)
    assert together.attends is not None
    with torch.no_grad():
        found = logprobs(policy, together)
        apart = torch.cat([logprobs(policy, batch) for row in parts for batch in micro_batches([row], 1)])
    assert (found - apart).abs().max() < NATS
    assert (apart[: len(apart) // 2] - apart[len(apart) // 2 :]).abs().max() > 1e-3


def test_rows_of_equal_ids_and_other_images_share_nothing(played: list[Trajectory]) -> None:
    row = rows(played)[0]
    twin = replace(row, images=(negative(row.images[0]), *row.images[1:]))
    assert len(strips_of([row, row], 100_000)) == 1
    assert len(strips_of([row, twin], 100_000)) == 2


def test_a_step_moves_language_and_vision_and_pads_without_effect(
    policy: HFPolicy, played: list[Trajectory]
) -> None:
    grads = []
    for micro_tokens in (1, 100_000):
        model = copy.deepcopy(policy.model)
        objective = Objective(micro_tokens=micro_tokens)
        learner = Learner(model, objective, learning_rate=1e-3, image_reader=policy.image_reader)
        learner.accumulate(rows(played))
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        figures = learner.step(rows(played))
        assert figures["approx_kl"] == pytest.approx(0.0, abs=1e-6)
        moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        assert any(".visual." in name for name in moved)
        assert any(".language_model." in name for name in moved)
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        assert torch.allclose(grad, grads[1][name], atol=1e-5), name


def test_a_learner_of_text_refuses_rows_with_images(policy: HFPolicy, played: list[Trajectory]) -> None:
    learner: Any = Learner(copy.deepcopy(policy.model), Objective(), learning_rate=1e-3)
    with pytest.raises(ConfigurationError, match="image"):
        learner.accumulate(rows(played))


def test_positions_of_images_matter(policy: HFPolicy, played: list[Trajectory]) -> None:
    """That equal log-probs are no accident: with positions counted as for text they differ."""
    (batch,) = micro_batches(rows(played[1:]), 100_000)
    assert batch.turns is not None
    plain = replace(batch, turns=torch.arange(batch.ids.shape[1]).expand_as(batch.turns))
    with torch.no_grad():
        assert (logprobs(policy, plain) - batch.old).abs().max() > 1e-3


def test_several_processes_refuse_rows_with_images(played: list[Trajectory]) -> None:
    with pytest.raises(ConfigurationError, match="torchrun"):
        refuse_rows_with_images(rows(played))
    refuse_rows_with_images([replace(row, images=()) for row in rows(played)])


def test_rows_without_images_do_not_move_a_vision_tower_that_learns_alone(
    policy: HFPolicy, played: list[Trajectory]
) -> None:
    """They stay in the mean; a step of them alone changes nothing."""
    model = copy.deepcopy(policy.model)
    for name, weight in model.named_parameters():
        weight.requires_grad_(".visual." in name)
    seen = rows(played)[0]
    places = np.arange(20)
    zeros = np.zeros(20, dtype=np.float32)
    text = TrainingRow(places + 5, places > 4, zeros - 5, places < 0, np.ones(20))
    goal = Objective(micro_tokens=1)
    learner = Learner(model, goal, learning_rate=1e-3, image_reader=policy.image_reader)
    found: list[list[torch.Tensor]] = []
    for batch in ([text, seen], [seen]):
        learner.optimizer.zero_grad(set_to_none=True)
        learner.accumulate(batch, tokens=100, sequences=2)
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert found[0]
    assert all(map(torch.equal, *found))
    before = copy.deepcopy(model.state_dict())
    assert learner.step([text])["grad_norm"] == 0.0
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
    assert learner.measure([text])[1] == 0.0
