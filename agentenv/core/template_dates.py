"""What a chat template is given: its arguments, and the day that it writes when it asks for today's.

The day is a fixed one, so that a prompt is the same whenever a run goes on.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from typing import Any

from agentenv.errors import ConfigurationError

ASKS = "strftime_now"
"""The function by which chat templates ask for the present time."""
TODAY = date(2026, 1, 1)
"""What is written where nothing else is said."""
_DIRECTIVES = re.compile(r"%-?[aAbBcCdDefFgGhHIjmMprRSTuUVwWxXyYzZ]")


def template_of(tokenizer: Any, tools: Sequence[Any] | None = None) -> str:
    """The template that ``tokenizer`` takes for a conversation with these tools."""
    template = tokenizer.chat_template
    if not isinstance(template, Mapping):
        return str(template)
    return str(template.get("tool_use" if tools and "tool_use" in template else "default", ""))


def dated_template(template: str, day: date = TODAY) -> dict[str, str]:
    """The argument of ``apply_chat_template`` that lets ``template`` write ``day``; none where it asks for no time."""
    return {"chat_template": dated(template, day)} if ASKS in template else {}


@cache
def dated(template: str, day: date) -> str:
    """``template`` with a ``strftime_now`` of its own, a macro that writes ``day``; the same text where it asks for no time.

    To hand the template a function of that name does not do: from transformers 5.24 on it gets plain data alone.

    Args:
        template: In Jinja, as `transformers` sets it up: the end of the line behind a block is left out.
        day: What is written; the time is midnight.
    """
    if ASKS not in template:
        return template
    written = {directive: _written(directive, day) for directive in sorted({*_DIRECTIVES.findall(template)})}
    replaced = "".join(f" | replace({directive!r}, {text!r})" for directive, text in written.items())
    return f"{{% macro {ASKS}(format) %}}{{{{ format{replaced} }}}}{{% endmacro %}}\n{template}"


def _written(directive: str, day: date) -> str:
    """What ``strftime`` makes of a directive; not every system knows those without leading zeros, such as ``%-d``."""
    text = day.strftime(directive.replace("-", ""))
    return text.lstrip("0") or "0" if "-" in directive else text


def template_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], date]:
    """What of ``options`` is handed to the template, and the day that it writes, which is the same whenever a run goes on.

    Raises:
        ConfigurationError: ``date`` is no date, or an option is one that the format fills itself.
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
