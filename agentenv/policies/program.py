"""A policy that is a function of the user: it takes the message that the policy is shown and returns what it writes.

It plays a role for which no model is needed, such as a judge that can compute its verdict.
"""

import asyncio
from collections.abc import Callable, Sequence

from agentenv.core.concurrency.threads import DaemonThreads
from agentenv.core.registry import describe_error
from agentenv.core.types import Completion, Sampling
from agentenv.errors import PolicyFault
from agentenv.policies.endpoint_formats import MessageFormat, PieceTokenizer
from agentenv.policies.scripted import complete

_THREADS = DaemonThreads(4, "agentenv-program")
"""Where functions are called: one that does not return is left behind when the time of its turn is over."""


class ProgramPolicy:
    """Writes what a function returns. Log-probs are 0: what it writes was certain. It cannot be trained.

    Args:
        name: ``module:name`` of the function, for errors.
        function: From the text of the latest message to what is written. It is called in one of four threads, and has to
            return the same for the same message, or a run cannot be repeated.
    """

    version = 0

    def __init__(self, name: str, function: Callable[[str], str]) -> None:
        self.name, self.function = name, function
        self.tokenizer = PieceTokenizer()
        self.chat = MessageFormat(images=False)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """What the function returns, cut at a stop string or after ``max_tokens`` pieces of text.

        Raises:
            PolicyFault: the function fails, or returns no text. The messages that it sees are written by policies, so that
                one of them does not end a run.
        """
        message = self.chat.messages(prompt_ids)[-1]["content"]
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(_THREADS, self._written, message)
        return complete(text, self.tokenizer, sampling)

    def _written(self, message: str) -> str:
        try:
            text = self.function(message)
        except BaseException as error:  # SystemExit as well: it would end the thread
            raise PolicyFault(f"{self.name} failed: {describe_error(error)}") from error
        if not isinstance(text, str):
            raise PolicyFault(f"{self.name} returned {text!r:.80}; it must return text")
        return text

    def release(self, episode: str) -> None:
        """Nothing is kept."""

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """A log-prob of 0 for each id."""
        return [0.0] * len(ids)
