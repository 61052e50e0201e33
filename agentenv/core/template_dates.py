"""The arguments of a chat template, and the date that it writes as today's.

The date is fixed, so that a resumed run has the same prompts.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from typing import Any

from agentenv.errors import ConfigurationError

ASKS = "strftime_now"
"""The function with which chat templates ask for the current time."""
TODAY = date(2026, 1, 1)
"""The default date."""
_DIRECTIVES = re.compile(r"%-?[aAbBcCdDefFgGhHIjmMprRSTuUVwWxXyYzZ]")


def template_of(tokenizer: Any, tools: Sequence[Any] | None = None) -> str:
    """Returns the template that ``tokenizer`` uses for a conversation with these tools."""
    template = tokenizer.chat_template
    if not isinstance(template, Mapping):
        return str(template)
    return str(template.get("tool_use" if tools and "tool_use" in template else "default", ""))


def dated_template(template: str, day: date = TODAY) -> dict[str, str]:
    """Returns the argument of ``apply_chat_template`` that makes ``template`` write ``day``; empty without a date."""
    return {"chat_template": dated(template, day)} if ASKS in template else {}


@cache
def dated(template: str, day: date) -> str:
    """Returns ``template`` with its own ``strftime_now``, a macro that writes ``day``; unchanged if it asks for no time.

    Passing a function of that name to the template does not work: since transformers 5.24, only plain data is accepted.

    Args:
        template: A Jinja template. Its first newline after a block is removed, as `transformers` configures Jinja.
        day: The date to write; the time is midnight.
    """
    if ASKS not in template:
        return template
    written = {directive: _written(directive, day) for directive in sorted({*_DIRECTIVES.findall(template)})}
    replaced = "".join(f" | replace({directive!r}, {text!r})" for directive, text in written.items())
    return f"{{% macro {ASKS}(format) %}}{{{{ format{replaced} }}}}{{% endmacro %}}\n{template}"


def _written(directive: str, day: date) -> str:
    """Evaluates one directive of ``strftime``. Not every system knows those without leading zeros, such as ``%-d``."""
    text = day.strftime(directive.replace("-", ""))
    return text.lstrip("0") or "0" if "-" in directive else text


def template_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], date]:
    """Splits ``options`` into the arguments of the template and the date that it writes.

    Raises:
        ConfigurationError: ``date`` is not a date, or an option is one that the format sets itself.
    """
    filled = {"messages", "conversation", "tools", "tokenize", "add_generation_prompt", "chat_template"}
    if taken := sorted(filled & options.keys()):
        raise ConfigurationError(
            f"the template's argument {taken[0]!r} is filled by the format; leave it out"
        )
    day = options.get("date", TODAY.isoformat())
    try:
        today = date.fromisoformat(str(day))
    except ValueError:
        raise ConfigurationError(f"chat.options.date is {day!r}; write it as 2026-01-31") from None
    rest = {name: value for name, value in options.items() if name != "date"}
    return rest, today


__all__ = ["ASKS", "TODAY", "dated", "dated_template", "template_of", "template_options"]
