"""Policies that no model stands behind: written actions, and the floor below which no policy can be."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentenv.core.chat import cut_at_stop
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import PolicyFault
from agentenv.policies.fakes import ByteTokenizer


class ScriptedPolicy:
    """Plays written actions, turn by turn. Log-probs are 0: every action was certain."""

    version = 0

    def __init__(
        self,
        actions: Mapping[str, Sequence[str]],
        tokenizer: Any = None,
        failures: Mapping[str, str] | None = None,
    ) -> None:
        """Takes the script.

        Args:
            actions: The actions of each episode, by episode id (``name-index`` in ``rollout``).
            tokenizer: Turns text into ids; None takes a ``ByteTokenizer``.
            failures: Why an episode has no script, by episode id.
        """
        self.actions = actions
        self.failures = failures or {}
        self.tokenizer = tokenizer or ByteTokenizer()
        self._played: dict[str, int] = {}

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """The next action of ``episode``, cut as an engine would: at a stop string or after ``max_tokens``.

        Raises:
            PolicyFault: no script for this episode, or it is exhausted.
        """
        if (reason := self.failures.get(episode or "")) is not None:
            # Without its id: equal reasons are counted together.
            raise PolicyFault(f"the episode has no script: {reason}")
        turn = self._played.get(episode or "", 0)
        script = self.actions.get(episode or "", ())
        if turn >= len(script):
            raise PolicyFault(f"the script of episode {episode!r} has {len(script)} actions, not {turn + 1}")
        self._played[episode or ""] = turn + 1
        return complete(script[turn], self.tokenizer, sampling)

    def release(self, episode: str) -> None:
        """Begins the script of ``episode`` anew."""
        self._played.pop(episode, None)

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """A log-prob of 0 for each id."""
        return [0.0] * len(ids)


def complete(text: str, tokenizer: Any, sampling: Sampling) -> Completion:
    """``text`` as an engine would have sampled it: cut at a stop string or after ``max_tokens``, log-probs 0."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    finish = FinishReason.EOS
    if (cut := cut_at_stop(ids, tokenizer.decode, sampling.stop)) and cut[0] <= sampling.max_tokens:
        ids, text, finish = ids[: cut[0]], cut[1], FinishReason.STOP
    elif len(ids) >= sampling.max_tokens:
        ids, finish = ids[: sampling.max_tokens], FinishReason.LENGTH
        text = tokenizer.decode(ids)
    else:
        ids = [*ids, tokenizer.eos_token_id]
    return Completion(tuple(ids), text, (0.0,) * len(ids), finish, ScriptedPolicy.version)
