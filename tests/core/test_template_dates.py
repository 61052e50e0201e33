"""The day of a chat template: written as ``strftime`` would, and nothing else of the template changes."""

from datetime import date

import pytest

from agentenv.core.template_dates import dated

DAY = date(2026, 5, 4)
SAID = [{"role": "user", "content": "Hi"}]


def rendered(template: str, **options: str) -> str:
    pytest.importorskip("transformers", reason="needs the train extra")
    from agentenv.policies.fakes import chat_tokenizer

    tokenizer = chat_tokenizer(template, eos="<eos>")
    return str(tokenizer.apply_chat_template(SAID, tokenize=False, **options))


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("%Y-%m-%d", "2026-05-04"),
        ("%d. %B %Y", "04. May 2026"),
        ("%A, %b %-d", "Monday, May 4"),
        ("%-m/%y %H:%M", "5/26 00:00"),
        (
            "%D %T, %Cth century, %h, day %u of week %V in %G",
            "05/04/26 00:00:00, 20th century, May, day 1 of week 19 in 2026",
        ),
        ("day", "day"),
    ],
)
def test_every_form_is_written(form: str, written: str) -> None:
    template = f"{{% if strftime_now is defined %}}{{{{ strftime_now({form!r}) }}}}{{% endif %}}"
    assert rendered(dated(template, DAY)) == written


@pytest.mark.parametrize(
    "start", ["", "\n", "\n\n", "  ", "  {%- if messages %}\n{% endif %}", "\t{% set a = 1 %}\n"]
)
def test_nothing_else_of_a_template_changes(start: str) -> None:
    rest = "\n  {% for m in messages %}\n{{ m.content }}{% endfor %}\n"
    asks = start + rest + "{{ strftime_now('%d') }}"
    assert rendered(dated(asks, DAY)) == rendered(start + rest + "{{ '04' }}")


def test_a_macro_of_the_template_may_ask() -> None:
    template = "{% macro today() %}{{ strftime_now('%Y') }}{% endmacro %}{% for m in messages %}{{ today() }}{% endfor %}"
    assert rendered(dated(template, DAY)) == "2026"


def test_a_template_that_asks_for_no_day_stays_as_it_is() -> None:
    assert dated("{{ messages[0].content }} %d", DAY) == "{{ messages[0].content }} %d"
