"""Whether two policies have the same tokens."""

from typing import Any

from agentenv.core.io.digests import value_digest


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of the pieces of a tokenizer and their ids, and of its chat template."""
    return value_digest([sorted(tokenizer.get_vocab().items()), getattr(tokenizer, "chat_template", None)])
