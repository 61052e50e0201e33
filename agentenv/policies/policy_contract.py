"""The contract of a policy as a test class: inherit it, say how a policy is made, and run pytest."""

import asyncio
import math
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.protocols import Policy
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import ConfigurationError

T = TypeVar("T")

_DEADLINE_S = 600
"""Seconds after which a call has hung; an engine that compiles at its first one takes minutes on a busy machine."""


def _run(work: Coroutine[Any, Any, T]) -> T:
    return run_to_completion(asyncio.wait_for(work, _DEADLINE_S))


class PolicyContract:
    """What every ``Policy`` keeps; a subclass gives ``make``.

    Example:
        ```python
        class TestMine(PolicyContract):
            def make(self) -> Policy:
                return MyPolicy()
        ```
    """

    episodes: ClassVar[tuple[str, ...]] = ("one", "two", "three")
    """Ids that the tests use; a scripted policy needs an action under each."""
    prompts: ClassVar[tuple[tuple[int, ...], ...]] = ((72, 101, 121), (65, 66, 67, 68, 69, 70, 71), (90,))
    reads_episode: ClassVar[bool] = False
    """True for fakes whose action is chosen by the episode's id; an engine's never is."""
    exact_tokens: ClassVar[bool] = True
    """False for endpoints that give text alone: the log-probs are then NaN and ``score`` refuses."""
    tolerance: ClassVar[float] = 1e-4
    """Of log-probs, in nats: batches of another make-up add in another order."""

    def make(self) -> Policy:
        """A fresh policy, the same each time."""
        raise NotImplementedError

    def decode(self, policy: Any, ids: Sequence[int]) -> str:
        """The text of ``ids``."""
        text: str = policy.tokenizer.decode(list(ids))
        return text

    def test_one_finite_log_prob_an_id(self) -> None:
        """Lengths agree, no log-prob is above 0, and the completion names the weights' version."""
        policy = self.make()
        for prompt, episode in zip(self.prompts, self.episodes, strict=True):
            done = _run(policy.generate(prompt, Sampling(16, seed=3), episode=episode))
            assert 0 < len(done.ids) == len(done.logprobs) <= 16
            assert done.exact_tokens is self.exact_tokens
            if self.exact_tokens:
                assert all(math.isfinite(value) and value <= 0 for value in done.logprobs)
            else:
                assert all(map(math.isnan, done.logprobs))
            assert done.version == policy.version

    def test_text_is_a_view_of_the_ids(self) -> None:
        """The ids decode to the text, but for an end-of-turn token or what a token holds behind a stop."""
        policy = self.make()
        for prompt, episode in zip(self.prompts, self.episodes, strict=True):
            done = _run(policy.generate(prompt, Sampling(16, seed=4), episode=episode))
            whole = self.decode(policy, done.ids)
            assert whole == done.text if done.finish is FinishReason.LENGTH else whole.startswith(done.text)

    def test_max_tokens_is_kept_and_said(self) -> None:
        """One token at most; a cut chunk says ``length``."""
        policy = self.make()
        done = _run(policy.generate(self.prompts[0], Sampling(1, seed=5), episode=self.episodes[0]))
        assert len(done.ids) == 1
        assert done.finish in (FinishReason.LENGTH, FinishReason.EOS)

    def test_a_stop_string_ends_the_chunk_and_stays_in_it(self) -> None:
        """The stop is a string that the policy is known to write; nothing after its last token is kept."""
        seed, free, stop = self._known_text()
        policy = self.make()
        sampling = Sampling(16, seed=seed, stop=(stop, "never written \u2603"))
        done = _run(policy.generate(self.prompts[0], sampling, episode=self.episodes[0]))
        assert done.finish is FinishReason.STOP
        assert done.text == free.text[: free.text.index(stop) + len(stop)]
        if self.exact_tokens:
            assert done.ids == free.ids[: len(done.ids)]
        assert stop not in self.decode(policy, done.ids[:-1])

    def _known_text(self) -> tuple[int, Completion, str]:
        """A seed, what the policy writes under it, and a character from the second half of that."""
        for seed in range(6, 26):
            free = _run(
                self.make().generate(self.prompts[0], Sampling(16, seed=seed), episode=self.episodes[0])
            )
            whole = [character for character in free.text[len(free.text) // 2 :] if character != "\ufffd"]
            if whole:
                return seed, free, whole[0]
        raise AssertionError("under none of 20 seeds does the policy write a whole character")

    def test_company_in_a_batch_changes_nothing(self) -> None:
        """Requests made together sample the same ids as each alone."""

        def request(policy: Policy, i: int) -> Coroutine[Any, Any, Completion]:
            sampling = Sampling(12 - i, temperature=0.5 + i / 2, seed=40 + i)
            return policy.generate(self.prompts[i], sampling, episode=self.episodes[i])

        async def together() -> list[Completion]:
            policy = self.make()
            return await asyncio.gather(*(request(policy, i) for i in range(len(self.prompts))))

        for i, joint in enumerate(_run(together())):
            self._assert_same(joint, _run(request(self.make(), i)))

    def test_the_seed_decides_and_zero_temperature_ignores_it(self) -> None:
        """Equal seeds give equal samples; greedy gives one sample for all seeds."""
        for sampling in (Sampling(8, seed=7), Sampling(8, temperature=0.0, seed=7)):
            first, second = (
                _run(self.make().generate(self.prompts[1], sampling, episode=self.episodes[1]))
                for _ in range(2)
            )
            self._assert_same(first, second)
        other = Sampling(8, temperature=0.0, seed=8)
        greedy = _run(self.make().generate(self.prompts[1], other, episode=self.episodes[1]))
        assert greedy.ids == first.ids

    def test_what_is_kept_for_an_episode_changes_nothing(self) -> None:
        """A second turn after a kept cache samples what a fresh policy samples from the whole prompt."""
        if self.reads_episode:
            import pytest

            pytest.skip("the actions of this policy are chosen by the episode's id")
        policy = self.make()
        first = _run(policy.generate(self.prompts[0], Sampling(6, seed=9), episode="kept"))
        longer = [*self.prompts[0], *first.ids, *self.prompts[1]]
        second = _run(policy.generate(longer, Sampling(6, seed=10), episode="kept"))
        self._assert_same(second, _run(self.make().generate(longer, Sampling(6, seed=10))))
        # The same episode may come back with another history after a rollback.
        rewound = _run(policy.generate(self.prompts[1], Sampling(6, seed=11), episode="kept"))
        self._assert_same(rewound, _run(self.make().generate(self.prompts[1], Sampling(6, seed=11))))

    def test_releasing_is_harmless(self) -> None:
        """An unknown episode and a second release do nothing; a released one can begin again."""
        policy = self.make()
        policy.release("never seen")
        request = (self.prompts[2], Sampling(4, seed=12))
        first = _run(policy.generate(*request, episode=self.episodes[2]))
        policy.release(self.episodes[2])
        policy.release(self.episodes[2])
        self._assert_same(first, _run(policy.generate(*request, episode=self.episodes[2])))

    def test_scores_are_the_sampler_s_log_probs(self) -> None:
        """``score`` gives what ``generate`` reported, at any temperature; the first is 0."""
        policy = self.make()
        prompt = self.prompts[1]
        if not self.exact_tokens:
            import pytest

            with pytest.raises(ConfigurationError):
                _run(policy.score(prompt))
            return
        for temperature in (1.0, 0.5):
            sampling = Sampling(8, temperature=temperature, seed=13)
            done = _run(policy.generate(prompt, sampling, episode=self.episodes[1]))
            policy.release(self.episodes[1])
            scores = _run(policy.score([*prompt, *done.ids], temperature=temperature))
            assert scores[0] == 0
            assert len(scores) == len(prompt) + len(done.ids)
            pairs = zip(scores[len(prompt) :], done.logprobs, strict=True)
            assert all(abs(a - b) <= self.tolerance for a, b in pairs)

    def _assert_same(self, one: Completion, other: Completion) -> None:
        assert (one.ids, one.text, one.finish) == (other.ids, other.text, other.finish)
        if not self.exact_tokens:
            return
        pairs = zip(one.logprobs, other.logprobs, strict=True)
        assert all(abs(a - b) <= self.tolerance for a, b in pairs)
