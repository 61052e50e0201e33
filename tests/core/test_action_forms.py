"""What is form and what is content in the actions of an expert."""

import pytest

from agentenv.core.action_forms import ExpertEpisode, Form, contents, last_form, learn_forms, mapped
from agentenv.core.types import Message

DONE = '{"type": "done"}'


def episode(opening: str, *actions: str) -> ExpertEpisode:
    return ExpertEpisode(0, (Message("user", opening),), actions, 1.0)


@pytest.mark.parametrize(
    ("action", "changed"),
    [
        ("<search>who</search>", "<search>WHO</search>"),
        ("<think>a</think> and <search>b\nc</search>", "<think>A</think> and <search>B\nC</search>"),
        ("so <|begin_queries|>a;\nb<|end_queries|>", "so <|begin_queries|>A;\nB<|end_queries|>"),
        ("so \\boxed{who}", "so \\boxed{WHO}"),
        ("who", "WHO"),
        ("<search>who", "<SEARCH>WHO"),
        ('<call>{"n": "f", "a": {"x": ["y", 1]}}</call>', '<call>{"n": "F", "a": {"x": ["Y", 1]}}</call>'),
        ("<answer>42</answer>", "<answer>42</answer>"),
        ("<answer>{broken</answer>", "<answer>{BROKEN</answer>"),
    ],
)
def test_only_the_content_of_an_action_is_changed(action: str, changed: str) -> None:
    assert mapped(action, str.upper) == changed


def test_contents_are_in_order() -> None:
    assert contents('<a>x</a>\n<b>{"k": "y"}</b>') == ["x", "y"]


def test_a_form_keeps_its_constants_and_fills_the_rest_in_turn() -> None:
    form = Form("<judge>no</judge><search>who</search><note>why</note>", frozenset({"no"}))
    assert form.filled("1", "2") == "<judge>no</judge><search>1</search><note>2</note>"
    assert form.filled("1") == "<judge>no</judge><search>1</search><note>1</note>"
    assert form.has_content
    assert not Form("<judge>no</judge>", frozenset({"no"})).has_content


def test_what_stands_after_two_openings_is_form() -> None:
    """The verdict follows two openings; "Rome" follows the same opening twice, which says nothing about other tasks."""
    forms = learn_forms(
        [
            episode("a", "<judge>no</judge><search>x</search>", "<answer>Rome</answer>"),
            episode("a", "<search>y</search>", "<answer>Rome</answer>"),
            episode("b", "<judge>no</judge><search>z</search>", "<answer>Oslo</answer>"),
        ],
        ("</answer>",),
        most=6,
    )
    assert forms.constants == {"no"}
    assert [form.filled("?") for form in forms.middle] == [
        "<judge>no</judge><search>?</search>",
        "<search>?</search>",
    ]
    assert [form.filled("?") for form in forms.last] == ["<answer>?</answer>"]


def test_no_more_forms_than_asked_for() -> None:
    actions = [f"<t{n}>x</t{n}>" for n in range(9)]
    assert len(learn_forms([episode("a", *actions)], (), most=3).middle) == 3


def test_without_an_expert_the_closing_tags_are_the_form() -> None:
    forms = learn_forms([episode("a")], ("</search>", "</answer>"), most=6)
    assert [form.filled("x") for form in (*forms.middle, *forms.last)] == [
        "<search>x</search>",
        "<answer>x</answer>",
    ]
    plain = learn_forms([episode("a")], (), most=6)
    assert ([*plain.middle], [form.filled("x") for form in plain.last]) == ([], ["x"])


@pytest.mark.parametrize(
    ("action", "filled"),
    [
        ("north", "x"),
        ("<answer>north</answer>", "<answer>x</answer>"),
        ("\\boxed{north}", "\\boxed{x}"),
        ('<call>{"name": "north"}</call>', '<call>{"name": "north"}</call>'),  # a tool
        ('<call>{"name": "north", "shelf": "far"}</call>', '<call>{"name": "north", "shelf": "x"}</call>'),
        (DONE, DONE),
    ],
)
def test_an_answer_is_content_though_several_tasks_have_it(action: str, filled: str) -> None:
    assert last_form(action, frozenset({"north", DONE})).filled("x") == filled
