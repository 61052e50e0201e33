"""A router: which policy plays an episode, what it does with a reply that is no name, and its file."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.types import Completion, Sampling
from agentenv.errors import CheckpointMismatch, ConfigurationError, PolicyFault
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.policy_spec import check_policy, make_policy, policy_digest
from agentenv.policies.router import FILE, Route, RouterCard, RouterPolicy, read_router, write_router
from agentenv.policies.scripted import complete

TOKENIZER = ByteTokenizer()


class Saying:
    """Says one thing, and remembers what it was asked."""

    version, tokenizer, context_tokens, ends = 0, TOKENIZER, 4000, ()

    def __init__(self, text: str) -> None:
        self.text, self.asked, self.released = text, list[str](), list[str]()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.asked.append(TOKENIZER.decode(prompt_ids))
        return complete(self.text, TOKENIZER, sampling)

    def release(self, episode: str) -> None:
        self.released.append(episode)

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [0.0] * len(ids)


def played(router: RouterPolicy, episode: str | None, task: str = "Where was she born?") -> str:
    ids = TOKENIZER.encode(task)
    return asyncio.run(router.generate(ids, Sampling(max_tokens=64), episode=episode)).text


def router(base: Saying) -> tuple[RouterPolicy, Saying]:
    chain = Saying("chained")
    return RouterPolicy(base, {"chain": ("It chains searches.", chain)}, InlineFormat(TOKENIZER)), chain


def test_the_base_model_chooses_once_for_each_episode() -> None:
    base = Saying("chain\n")
    routed, chain = router(base)
    assert [played(routed, "e-1"), played(routed, "e-1")] == ["chained", "chained"]
    assert len(base.asked) == 1
    assert "chain: It chains searches." in base.asked[0]
    assert "Where was she born?" in base.asked[0]
    assert routed.chosen["e-1"] == "chain"
    routed.release("e-1")
    assert chain.released == ["e-1"]
    assert base.released == ["e-1-route"]


class Failing(Saying):
    """Fails at every request."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        raise PolicyFault("the engine is gone")


def test_what_was_kept_for_a_choice_that_failed_is_forgotten() -> None:
    base = Failing("")
    routed, _ = router(base)
    with pytest.raises(PolicyFault):
        played(routed, "e-1")
    assert base.released == ["e-1-route"]
    assert routed.chosen == {}


@pytest.mark.parametrize("said", ["none of them", "base", "", "chains"])
def test_any_other_reply_leaves_the_episode_to_the_base_model(said: str) -> None:
    routed, chain = router(Saying(said))
    assert played(routed, "e-1") == said
    assert chain.asked == []


def test_a_task_that_leaves_no_room_is_not_routed() -> None:
    base = Saying("chain")
    routed, chain = router(base)
    assert played(routed, "e-1", "x" * 3900) == "chain"
    assert chain.asked == []
    assert played(routed, None) == "chain"  # without an episode nothing is chosen


def test_its_file_is_read_from_any_folder(tmp_path: Path) -> None:
    write_router(tmp_path, RouterCard("tiny", (Route("chain", "It chains.", "hf:chain/policy"),)))
    card = read_router(tmp_path)
    assert card.base == "tiny"
    assert card.routes[0].policy == f"hf:{tmp_path / 'chain/policy'}"
    with pytest.raises(CheckpointMismatch, match="chain/policy"):
        check_policy(f"router:{tmp_path}")
    write_router(tmp_path, RouterCard("tiny", (Route("chain", "It chains.", "tiny"),)))
    check_policy(f"router:{tmp_path}")
    assert policy_digest(f"router:{tmp_path}") != policy_digest("tiny")
    with pytest.raises(ConfigurationError, match="router"):
        make_policy(f"router:{tmp_path}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"base": "tiny"}',
        '{"base": "tiny", "routes": [{"name": "base", "description": "", "policy": "tiny"}]}',
    ],
    ids=["empty", "list", "no-routes", "base-twice"],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(CheckpointMismatch, match=FILE):
        read_router(tmp_path)
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CheckpointMismatch, match=FILE):
        read_router(tmp_path)
