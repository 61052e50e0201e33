"""What a policy answered to the episodes under way, so that they survive the process that plays them.

An episode is a function of its seed and of the policy's answers. Played again with the answers given so far it comes to
where it stood, tokens, log-probs and versions included, whatever strategy plays it; from there on the policy is asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

from agentenv.core.images import PlacedImage, image_kwargs
from agentenv.core.protocols import Policy
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.policies.wrapper import PolicyWrapper


class RecordedPolicy(PolicyWrapper):
    """A policy that gives again the answers of an interrupted run, asks ``policy`` for the others and keeps them all."""

    def __init__(self, policy: Policy, answers: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Begins a record.

        Args:
            policy: Answers what is not recorded.
            answers: What ``state_dict`` gave.
        """
        super().__init__(policy)
        self._given = {key: _completion(answer) for key, answer in (answers or {}).items()}
        self._kept: dict[str, Completion] = {}

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        episode: str | None = None,
        images: Sequence[PlacedImage] = (),
    ) -> Completion:
        """The answer of the interrupted run to the same request, where there is one; otherwise the policy's.

        Raises:
            PolicyFault: the engine failed.
            ContextTooSmall: the prompt alone fills the context.
        """
        key = _key(prompt_ids, sampling, episode, images)
        answer = self._given.pop(key, None)
        if answer is None:
            answer = await self.policy.generate(prompt_ids, sampling, episode=episode, **image_kwargs(images))
        self._kept[key] = answer
        return answer

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Every answer so far in plain values, those not yet asked for again included."""
        answers = self._given | self._kept
        return {key: asdict(answer) | {"finish": str(answer.finish)} for key, answer in answers.items()}


def _key(
    prompt_ids: Sequence[int], sampling: Sampling, episode: str | None, images: Sequence[PlacedImage]
) -> str:
    # By all that decides an answer and not by its number, because the episodes of a group ask in an order that
    # depends on time.
    request = f"{episode}/{sampling}/{list(prompt_ids)}"
    if images:
        request += "".join(f"/{image.start} {image.digest}" for image in images)
    return blake2b(request.encode(), digest_size=16).hexdigest()


def _completion(answer: Mapping[str, Any]) -> Completion:
    plain = {name: tuple(answer[name]) for name in ("ids", "logprobs", "versions")}
    return Completion(**(dict(answer) | plain | {"finish": FinishReason(answer["finish"])}))
