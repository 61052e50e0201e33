"""A policy that is a function of somebody's own: from the message that it is shown to the text that it writes.

It plays a role for which no model is needed, such as a judge that can compute its verdict.
"""

from collections.abc import Callable, Sequence

from agentenv.core.registry import describe_error
from agentenv.core.types import Completion, Sampling
from agentenv.errors import ConfigurationError
from agentenv.policies.endpoint_formats import MessageFormat, PieceTokenizer
from agentenv.policies.scripted import complete


class ProgramPolicy:
    """Writes what a function returns. Log-probs are 0: what it writes was certain. It cannot be trained.

    Args:
        name: ``module:name`` of the function, for errors.
        function: From the text of the latest message to what is written. It is called in the event loop, so that it should
            take milliseconds, and it has to return the same for the same message, or a run cannot be repeated.
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
            ConfigurationError: the function fails, or returns no text.
        """
        message = self.chat.messages(prompt_ids)[-1]["content"]
        try:
            text = self.function(message)
        except Exception as error:
            raise ConfigurationError(f"{self.name} failed: {describe_error(error)}") from error
        if not isinstance(text, str):
            raise ConfigurationError(f"{self.name} returned {text!r:.80}; it must return text")
        return complete(text, self.tokenizer, sampling)

    def release(self, episode: str) -> None:
        """Nothing is kept."""

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """A log-prob of 0 for each id."""
        return [0.0] * len(ids)
