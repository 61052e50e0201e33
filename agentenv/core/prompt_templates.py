"""Templates of opening messages, with placeholders that an environment fills."""

from agentenv.core.grammar import shortened
from agentenv.errors import ConfigurationError


def require_placeholder(template: str, name: str) -> None:
    """Checks that a template contains the placeholder that an environment fills.

    Args:
        template: The template.
        name: The placeholder without its braces, such as ``question``.

    Raises:
        ConfigurationError: the template does not contain it.
    """
    if f"{{{name}}}" not in template:
        raise ConfigurationError(f"the prompt must hold {{{name}}}, not only {shortened(template, 200)!r}")
