"""The cache of episodes: turns that copy nothing, random conversations, what diverged, and the memory of a device.

The reference is a policy without a cache, asked for one prompt at a time.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentenv.core.types import Completion, Sampling
from agentenv.policies.compute import ComputeSettings
from agentenv.policies.decoding import Request
from agentenv.policies.episode_cache import copy_slots
from agentenv.policies.fakes import ByteTokenizer, random_model
from agentenv.policies.hf import HFPolicy
from agentenv.policies.policy_spec import make_policy

Asked = tuple[Sequence[int], Sampling, str | None]


def fresh(seed: int = 0) -> HFPolicy:
    return HFPolicy(random_model(257, seed=seed, context=128, spread=0.2), ByteTokenizer())


def batch(policy: HFPolicy, asked: Sequence[Asked]) -> list[Completion]:
    return policy._batch([Request(list(ids), sampling, episode) for ids, sampling, episode in asked])


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what is written to caches of several layers, which alone have five dimensions and more."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = [one.untyped_storage()._cdata for one in tree_leaves(args) if isinstance(one, Tensor)]
        own = isinstance(made, Tensor) and made.untyped_storage()._cdata not in given
        if isinstance(made, Tensor) and made.dim() >= 5 and (own or not func.is_view):
            self.seen.append(func.overloadpacket.__name__)
        return made


def test_episodes_that_all_go_on_are_never_copied() -> None:
    """Three turns behind the first, the last one rewound; slots were long enough from the start."""
    policy, ids = fresh(), {str(i): [65 + i, 66, 67] for i in range(4)}
    batch(policy, [(ids[name], Sampling(100, seed=1, stop=("a",)), name) for name in ids])
    slots = policy._cache.held["0"].slots
    for turn in range(3):
        longer = {name: [*policy._cache.held[name].ids[:6], 70 + turn] for name in ids}
        with Copies() as copies:
            done = batch(policy, [(longer[name], Sampling(3, seed=turn), name) for name in ids])
        assert copies.seen == []
        assert [policy._cache.held[name].slot for name in ids] == [0, 1, 2, 3]
        assert all(cached.slots is slots for cached in policy._cache.held.values())
        for name, one in zip(ids, done, strict=True):
            assert one.ids == batch(fresh(), [(longer[name], Sampling(3, seed=turn), None)])[0].ids


def conversation(rng: random.Random, known: dict[str, list[int]]) -> list[Asked]:
    """One batch: new episodes, longer, rewound and forked ones, some asked for twice, some without a name."""
    names = [str(i) for i in range(7)]
    chosen = names if rng.random() < 0.4 else rng.sample(names, rng.randint(1, 7))
    opening = [rng.randrange(256) for _ in range(rng.randint(1, 12))]
    asked: list[Asked] = []
    for name in chosen:
        past, kind = known.get(name) or opening, rng.random()
        ids = [*past, rng.randrange(256)]
        if kind < 0.2:
            ids = opening  # back to nothing, and the same for all
        elif kind < 0.4:
            ids = [*past[: rng.randint(1, len(past))], rng.randrange(256)]
        elif kind < 0.5:
            ids = [*(known.get(rng.choice(names)) or opening), 9]  # the past of another episode
        stop = tuple("abcdef") if rng.random() < 0.5 else ()
        heat, tokens, seed = rng.choice([0, 0.7, 1]), rng.randint(1, 12), rng.randrange(99)
        sampling = Sampling(tokens, temperature=heat, stop=stop, seed=seed)
        asked.append((ids[:100], sampling, name if rng.random() < 0.9 else None))
    return asked + asked[:1] * (rng.random() < 0.2)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_asked_is_answered_as_without_a_cache(seed: int) -> None:
    rng, policy, known = random.Random(seed), fresh(seed), dict[str, list[int]]()
    alone = fresh(seed)
    for _ in range(10):
        asked = conversation(rng, known)
        for one, done in zip(asked, batch(policy, asked), strict=True):
            ids, sampling, name = one
            (wanted,) = batch(alone, [(ids, sampling, None)])
            assert (done.ids, done.text, done.finish) == (wanted.ids, wanted.text, wanted.finish)
            assert done.logprobs == pytest.approx(wanted.logprobs, abs=1e-5)
            if name is not None:
                known[name] = [*ids, *done.ids]
        if rng.random() < 0.3:
            policy.release(str(rng.randrange(7)))
        if rng.random() < 0.1:
            policy.set_weights()


def test_how_slots_grow_by_hand() -> None:
    """Of rows and tokens: by half at least, up to the context, and not to more than twice what was ever needed at once."""
    cache, model = fresh()._cache, random_model(257)
    found = []
    for count, tokens in [(4, 20), (4, 24), (3, 60), (4, 61), (1, 90), (1, 120), (40, 10), (2, 100)]:
        cache._slots = cache._with_room(count, tokens, model)
        found.append((cache._slots.shape[2], cache._slots.shape[4]))
    assert found == [
        (4, 20),
        (4, 30),  # half as much again
        (4, 60),
        (4, 90),
        (4, 90),  # has room
        (4, 128),  # 135 would be beyond the context
        (40, 10),  # 40 slots of 128 tokens would be ten times what there is
        (2, 100),  # so would 40 slots of 100 tokens
    ]


def test_slots_that_change_places_keep_what_they_had() -> None:
    slots = torch.arange(2 * 2 * 4 * 1 * 3 * 1.0).view(2, 2, 4, 1, 3, 1)
    before = slots.clone()
    copy_slots(slots, [(1, 0), (0, 1), (1, 3)], 2)
    for target, source in enumerate((1, 0, 2, 1)):
        assert torch.equal(slots[:, :, target, :, :2], before[:, :, source, :, :2])
    assert torch.equal(slots[..., 2, :], before[..., 2, :])


def test_what_diverged_does_not_reach_other_episodes() -> None:
    """The embedding of one token is not finite: rows that read it fail, and later ones in their slots do not."""
    policy, other = fresh(), fresh()
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[200] = torch.nan
    sampling = Sampling(6, temperature=0.0)
    first = batch(policy, [([65] * 9 + [200] * 9, sampling, "bad"), ([66, 67], sampling, "good")])
    assert [one.finish.value for one in first] == ["abort", "length"]
    longer = [66, 67, *first[1].ids, 68]
    later = batch(policy, [([70, 71], sampling, "new"), (longer, sampling, "good")])
    for ids, one in (([70, 71], later[0]), (longer, later[1])):
        assert one.ids == batch(other, [(ids, sampling, None)])[0].ids


def test_a_batch_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slots hold what is not finite, and the next batch, whose rows are placed there, does not read them."""
    policy, other, sampling = fresh(), fresh(), Sampling(6, temperature=0.0)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[200] = torch.nan
    with monkeypatch.context() as broken:
        broken.setattr(policy._cache, "close", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            batch(policy, [([200] * 18, sampling, "bad"), ([66, 67], sampling, "good")])
    prompts = [70, 71], [66] * 12  # behind the shorter one the slot is masked and looked at
    later = batch(policy, [(ids, sampling, None) for ids in prompts])
    for ids, one in zip(prompts, later, strict=True):
        assert one.ids == batch(other, [(ids, sampling, None)])[0].ids


def test_an_episode_that_is_released_while_its_batch_runs_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cancelled episode is released once, and perhaps before the batch that it waited for has ended."""
    policy = fresh()
    forward = policy._forward

    def releasing(*given: Any, **named: Any) -> Tensor:
        policy.release("over")
        return forward(*given, **named)

    monkeypatch.setattr(policy, "_forward", releasing)
    batch(policy, [([65, 66], Sampling(2), "over"), ([67], Sampling(2), "on")])
    assert list(policy._cache.held) == ["on"]
    monkeypatch.undo()
    batch(policy, [([65, 66], Sampling(2), "over")])  # the name may be taken again
    assert "over" in policy._cache.held


def test_a_device_gets_its_memory_back_with_the_last_episode(fake_device: str) -> None:
    policy = make_policy("tiny", ComputeSettings(device=fake_device))
    batch(policy, [([5, 6], Sampling(2), "a"), ([7], Sampling(2), "b")])
    policy.release("a")
    assert policy._cache._slots is not None
    policy.release("b")
    assert policy._cache._slots is None
    here = make_policy("tiny", ComputeSettings(device="cpu"))
    batch(here, [([5, 6], Sampling(2), "a")])
    here.release("a")
    assert here._cache._slots is not None  # on the processor fresh memory costs more than what is kept


def test_a_release_while_a_batch_runs_harms_nobody(fake_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may release the last episode that is held just then."""
    policy, wanted = (make_policy("tiny", ComputeSettings(device=fake_device)) for _ in range(2))
    batch(policy, [([5, 6], Sampling(2), "idle")])
    forward = policy._forward

    def releasing(*given: Any, **named: Any) -> Tensor:
        policy.release("idle")
        return forward(*given, **named)

    monkeypatch.setattr(policy, "_forward", releasing)
    (first,) = batch(policy, [([7, 8], Sampling(4, seed=1), "a")])
    longer = [7, 8, *first.ids, 9]
    (second,) = batch(policy, [(longer, Sampling(4, seed=2), "a")])
    assert batch(wanted, [([7, 8], Sampling(4, seed=1), "a")]) == [first]
    assert batch(wanted, [(longer, Sampling(4, seed=2), "a")]) == [second]


def test_episodes_that_take_turns_keep_what_they_have() -> None:
    """Each has a copy of its own while the other one plays, and only what is new is fed."""
    policy, fed = fresh(), list[int]()
    forward = policy._forward

    def counting(cache: Any, ids: Tensor, *rest: Any, **more: Any) -> Tensor:
        fed.append(ids.shape[1])
        return forward(cache, ids, *rest, **more)

    policy._forward = counting  # type: ignore[method-assign]
    ids = {"a": [70, 71], "b": [70, 71, 72]}
    for seed in range(4):
        for name, past in ids.items():
            fed.clear()
            (done,) = batch(policy, [(past, Sampling(4, seed=seed), name)])
            assert fed[0] == (len(past) if seed == 0 else 2)
            assert done.ids == batch(fresh(), [(past, Sampling(4, seed=seed), None)])[0].ids
            ids[name] = [*past, *done.ids, 33]
