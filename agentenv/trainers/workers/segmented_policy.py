"""Turns that are sampled in segments, so that an episode that is stopped within a turn keeps whole segments of it.

UloRL, Du et al. 2025, arXiv:2507.19766, divides long outputs into segments, each of which the weights of its step sample.
APRIL, Zhou et al. 2025, arXiv:2509.18521, keeps what an aborted reply has. Here a segment is one request to the policy. Its
answer is recorded like any other, so that segments survive a stop and a checkpoint with their ids, log-probs and versions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from agentenv.core.chat import cut_at_stop
from agentenv.core.protocols import Policy
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import ContextTooSmall
from agentenv.policies.wrapper import PolicyWrapper


class SegmentedPolicy(PolicyWrapper):
    """Asks ``policy`` for at most so many tokens at once and joins what it answers to one turn.

    Args:
        policy: The policy that answers.
        tokens: Most tokens of one answer.
        decode: Text of a run of token ids.
    """

    def __init__(self, policy: Policy, tokens: int, decode: Callable[[Sequence[int]], str]) -> None:
        super().__init__(policy)
        self._tokens = tokens
        self._decode = decode

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None, **images: Any
    ) -> Completion:
        """One turn; a stop string that two segments share ends it too, at the token in which it ends.

        Raises:
            PolicyFault: the engine failed.
            ContextTooSmall: the prompt alone fills the context.
        """
        whole: Completion | None = None
        while whole is None or self._goes_on(whole, sampling):
            written = () if whole is None else whole.ids
            request = replace(
                sampling,
                max_tokens=min(self._tokens, sampling.max_tokens - len(written)),
                seed=sampling.seed if whole is None else _seed(sampling.seed, len(written)),
            )
            try:
                segment = await self.policy.generate(
                    [*prompt_ids, *written], request, episode=episode, **images
                )
            except ContextTooSmall:
                if whole is None:
                    raise
                # What was written is kept: the turn ends as one that ran out of tokens, not as a failure.
                break  # the turn has filled the context
            if not segment.ids and whole is not None:
                # An empty answer adds no token and would be asked for again without end.
                whole = replace(whole, finish=segment.finish)
                break
            whole = segment if whole is None else self._joined(whole, segment, sampling.stop)
        return whole

    def _goes_on(self, whole: Completion, sampling: Sampling) -> bool:
        return whole.finish is FinishReason.LENGTH and len(whole.ids) < sampling.max_tokens

    def _joined(self, first: Completion, second: Completion, stop: Sequence[str]) -> Completion:
        """Both as one completion, cut behind the first stop string in it, with the text of a single request."""
        ids, finish = first.ids + second.ids, second.finish
        if cut := cut_at_stop(ids, self._decode, stop):  # the first segment alone has none
            (count, text), finish = cut, FinishReason.STOP
        else:
            count, text = len(ids), self._decode(ids[: len(ids) - self._ends(second)])
        return Completion(
            ids=ids[:count],
            text=text,
            logprobs=(first.logprobs + second.logprobs)[:count],
            finish=finish,
            version=second.version,
            exact_tokens=first.exact_tokens and second.exact_tokens,
            versions=(_versions(first) + _versions(second))[:count],
        )

    def _ends(self, segment: Completion) -> bool:
        """Whether the last id of a segment is one that ends the turn, which is no part of the text."""
        return segment.finish is FinishReason.EOS and self._decode(segment.ids[:-1]) == segment.text


def _versions(completion: Completion) -> tuple[int, ...]:
    return completion.versions or (completion.version,) * len(completion.ids)


def _seed(seed: int, written: int) -> int:
    """The seed of a later segment."""
    # A hash, because seed + written could be the seed of another turn, whose draws would then repeat.
    return int.from_bytes(blake2b(f"{seed}/{written}".encode(), digest_size=6).digest())
