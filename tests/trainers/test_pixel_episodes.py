"""Episodes with images in every form that they take: whole contexts, a browser, forks, the native format, adapters.

Whatever form it is, the learner finds the log-probs of the sampler.
"""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import agentenv
from agentenv.core.chat import TemplateFormat
from agentenv.core.env import Env
from agentenv.core.native_format import NativeFormat
from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import Origin, Trajectory
from agentenv.core.types import EndReason, Sampling, Task
from agentenv.envs.browser.driver import unavailable
from agentenv.envs.semi_online import SemiOnlineGUI
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.policies.fake_vision import vision_policy
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import adapt
from agentenv.policies.quantized import is_quantized, quantize
from agentenv.trainers.learner.learner import Learner, Objective, rows_of
from agentenv.trainers.learner.logprobs import token_logprobs
from agentenv.trainers.learner.packing import micro_batches
from agentenv.trainers.strategies.guidance import guide, reopened, unguided
from agentenv.trainers.strategies.reflection import episode_log
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.splicing import rescore_logprobs
from agentenv.trainers.strategies.strategies import play_groups
from agentenv.trainers.strategies.tree import TreeStrategy
from agentenv.trainers.workers.recorded_policy import RecordedPolicy

NATS = 1e-5
DESKTOP = {"tree": False, "pixels": True, "pointing": "coordinate", "max_steps": 3}
CONFIG = RolloutConfig(context_tokens=1500, turn_tokens=10)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> HFPolicy:
    folder = tmp_path_factory.mktemp("policy")
    opening = agentenv.make("agentenv/DomSim-v0", **DESKTOP).reset(seed=0)[0]
    vision_policy(folder, [opening[0].text], spread=0.2)
    return HFPolicy.load(folder)


def template(policy: HFPolicy) -> ChatFormat:
    return TemplateFormat(policy.tokenizer, policy.ends, image_reader=policy.image_reader)


def played(
    policy: HFPolicy, envs: Sequence[Env[Any]], tasks: Sequence[Task], chat: ChatFormat | None = None
) -> list[Trajectory]:
    specs = [EpisodeSpec(env, task, seed) for seed, (env, task) in enumerate(zip(envs, tasks, strict=True))]
    done = asyncio.run(rollout(specs, policy, chat or template(policy), CONFIG, name="pixels"))
    for trajectory in done:
        assert trajectory.valid, trajectory.error
    return done


@torch.no_grad()
def gap(policy: HFPolicy, trajectories: Sequence[Trajectory], model: Any = None) -> float:
    rows = rows_of(trajectories, [np.where(t.loss_mask, 1.0, 0.0) for t in trajectories])
    found = [
        token_logprobs(model or policy.model, batch, 1.0, image_reader=policy.image_reader)[0] - batch.old
        for batch in micro_batches(rows, 4000)
    ]
    return float(torch.cat(found).abs().max())


def moved(policy: HFPolicy, trajectories: Sequence[Trajectory]) -> set[str]:
    """The parameters that one training step on ``trajectories`` changes."""
    model = copy.deepcopy(policy.model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    learner = Learner(model, Objective(), learning_rate=1e-3, image_reader=policy.image_reader)
    learner.step(rows_of(trajectories, [np.where(t.loss_mask, 1.0, 0.0) for t in trajectories]))
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


def test_recorded_screens_that_leave_the_context_open_new_rows(policy: HFPolicy) -> None:
    tasks = SemiOnlineGUI.make_tasks(2, templates=("mail-archive",), pixels=True)
    envs = [SemiOnlineGUI(pixels=True, patch_budget=3, window=2) for _ in tasks]
    done = played(policy, envs, tasks)
    assert [len(row) for row in done[0].row_images][:3] == [1, 2, 2]
    assert done[0].row_images[0][0].image == done[0].row_images[1][0].image
    assert gap(policy, done) < NATS
    assert any(".visual." in name for name in moved(policy, done[:1]))


def test_recordings_without_screenshots_are_refused_and_with_pixels_no_ids_are_shown() -> None:
    (task,) = SemiOnlineGUI.make_tasks(1, templates=("mail-archive",))
    with pytest.raises(DatasetError, match=task.id):
        SemiOnlineGUI(pixels=True).reset(options={"task": task})
    env = SemiOnlineGUI(pixels=True)
    assert '"id": 3' not in env.reset(seed=0)[0][0].text
    assert not any('"id"' in action for action in env.expert())
    with pytest.raises(ConfigurationError, match="thoughts"):
        SemiOnlineGUI(pixels=True, patch="off_policy", thoughts=lambda prompt: "so")


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
def test_a_browser_is_played_from_screenshots(policy: HFPolicy) -> None:
    from agentenv.envs.browser.sites import miniwob_task

    task = miniwob_task("click-button")
    env = agentenv.make("agentenv/Browser-v0", tasks=[task], tree=False, pixels=True, max_steps=2)
    try:
        done = played(policy, [env], [task])
    finally:
        env.close()
    assert len(done[0].row_images[0]) == 2
    assert gap(policy, done) < NATS
    assert any(".visual." in name for name in moved(policy, done))


def test_the_native_format_shows_images_too(policy: HFPolicy) -> None:
    env = agentenv.make("agentenv/DomSim-v0", **DESKTOP)
    tasks = env.make_tasks(2)
    chat = NativeFormat(policy.tokenizer, family="qwen", ends=policy.ends, image_reader=policy.image_reader)
    envs = [agentenv.make("agentenv/DomSim-v0", **DESKTOP) for _ in tasks]
    done = played(policy, envs, tasks, chat)
    assert [len(t.row_images[-1]) for t in done] == [3, 3]
    assert gap(policy, done) < NATS
    plain = played(policy, envs, tasks)
    assert plain[0].row_images[0][0] == done[0].row_images[0][0]


def test_adapters_leave_the_vision_tower_alone(policy: HFPolicy) -> None:
    env = agentenv.make("agentenv/DomSim-v0", **DESKTOP)
    (task,) = env.make_tasks(1)
    done = played(policy, [env], [task])
    model = adapt(copy.deepcopy(policy.model), rank=2, alpha=4, seed=0)
    assert gap(policy, done, model) < NATS  # B is 0
    learner = Learner(model, Objective(), learning_rate=1e-2, image_reader=policy.image_reader)
    rows = rows_of(done, [np.where(t.loss_mask, 1.0, 0.0) for t in done])
    assert learner.step(rows)["grad_norm"] > 0
    named = [name for name, p in model.named_parameters() if p.requires_grad]
    assert named
    assert not any("visual" in name for name in named)
    assert gap(policy, done, model) > 1e-4


def test_a_base_in_4_bits_keeps_its_vision_tower_whole(policy: HFPolicy) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the extra quantized")
    model = quantize(copy.deepcopy(policy.model))
    found = {name for name, layer in model.named_modules() if is_quantized(layer)}
    assert "model.language_model.layers.0.mlp.down_proj" in found
    assert not any("visual" in name for name in found)


@pytest.mark.parametrize("fork_at", ["every_turn", "token"])
def test_a_tree_forks_episodes_behind_images(policy: HFPolicy, fork_at: Any) -> None:
    env = agentenv.make("agentenv/DomSim-v0", **DESKTOP)
    (task,) = env.make_tasks(1)
    specs = [
        EpisodeSpec(agentenv.make("agentenv/DomSim-v0", **DESKTOP), task, seed, "g") for seed in range(4)
    ]
    context = RolloutContext(policy, template(policy), CONFIG, policy.tokenizer.decode)
    strategy = TreeStrategy(roots=1, fork_at=fork_at, min_probability=0.0, max_gap=1.0, max_similarity=2.0)
    (group,) = asyncio.run(
        play_groups(
            [specs],
            strategy,
            context,
        )
    )
    assert all(t.valid for t in group), [t.error for t in group]
    forked = [t for t in group if t.origin is Origin.BRANCH]
    assert forked
    assert all(len(t.row_images[0]) == 3 for t in forked)
    assert gap(policy, group) < NATS


def test_guidance_before_an_image_is_cut_out_again(policy: HFPolicy) -> None:
    env = agentenv.make("agentenv/DomSim-v0", **DESKTOP)
    (task,) = env.make_tasks(1)
    chat, (base,) = template(policy), played(policy, [env], [task])
    state = reopened(base, 1, EpisodeSpec(env, task, 0))
    images = state.images
    assert len(images) == 2
    guide(state, chat, "Look at the left.")
    assert state.images == images
    state.close(0.0, EndReason.ABORTED, {})
    assert state.ended is not None
    assert unguided(state.ended).segments == base.cut(1).segments


def test_a_report_on_an_episode_with_images_is_refused(policy: HFPolicy) -> None:
    env = agentenv.make("agentenv/DomSim-v0", **DESKTOP)
    (task,) = env.make_tasks(1)
    (base,) = played(policy, [env], [task])
    with pytest.raises(ConfigurationError, match="image"):
        episode_log(base, 1.0)


def test_tokens_of_another_context_are_scored_with_the_images_before_them(policy: HFPolicy) -> None:
    env = agentenv.make("agentenv/DomSim-v0", **DESKTOP)
    (task,) = env.make_tasks(1)
    (base,) = played(policy, [env], [task])
    forgotten = [
        replace(s, logprobs=(0.0,) * len(s.ids), context_mismatch=True) if s.logprobs else s
        for s in base.segments
    ]
    found = asyncio.run(rescore_logprobs(base.with_segments(forgotten), policy, 1.0))
    assert np.abs(found.logprobs - base.logprobs).max() < NATS


def test_an_answer_of_an_interrupted_run_is_for_the_same_images_alone(policy: HFPolicy) -> None:
    env = agentenv.make("agentenv/DomSim-v0", **DESKTOP)
    (task,) = env.make_tasks(1)
    (base,) = played(policy, [env], [task])
    ids, (image, *_) = list(base.segments[0].ids), base.row_images[0]
    other = replace(image, image=base.row_images[0][-1].image + b" ")  # a PNG ends before what follows it
    recorded = RecordedPolicy(policy)
    first = asyncio.run(recorded.generate(ids, Sampling(4), episode="e", images=(image,)))

    class Silent:
        version = 0

        async def generate(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("asked")

    def again(shown: Any) -> Any:
        silent: Any = Silent()
        return asyncio.run(
            RecordedPolicy(silent, recorded.state_dict()).generate(
                ids, Sampling(4), episode="e", images=(shown,)
            )
        )

    assert again(image) == first
    with pytest.raises(AssertionError, match="asked"):
        again(other)
