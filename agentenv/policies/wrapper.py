"""The base class of policies that change how another policy is sampled from and leave everything else to it."""

from collections.abc import Sequence
from typing import Any

from agentenv.core.protocols import Policy


class PolicyWrapper:
    """Forwards everything to ``policy``; a subclass overrides ``generate``.

    Args:
        policy: The policy that is wrapped.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @property
    def version(self) -> int:
        """Version of the policy's weights."""
        return self.policy.version

    def __getattr__(self, name: str) -> Any:
        """What else the policy offers, such as its tokenizer."""
        return getattr(self.__dict__["policy"], name)

    def release(self, episode: str) -> None:
        """Forgets what the policy kept for ``episode``."""
        self.policy.release(episode)

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0, **images: Any) -> Sequence[float]:
        """The log-probabilities that the policy gives; ``images`` is passed on where there are some."""
        return await self.policy.score(ids, temperature=temperature, **images)
