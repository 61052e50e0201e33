"""Search environments whose actions are called as tools: the same rewards as by tags, and observations without tags."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentenv.core.assistant_turns import AssistantTurn, MalformedCall, NativeCall
from agentenv.core.tool_replies import replies
from agentenv.core.types import EndReason, Step, ToolStatus
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.judged_search import JudgedSearch
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.long_search import LongSearch
from agentenv.envs.search.native_tools import NOT_MADE, TOGETHER
from agentenv.envs.search.planned_search import PlannedSearch
from agentenv.envs.search.search_env import SearchEnv
from agentenv.envs.search.self_search import SelfSearch
from agentenv.errors import RetrieverFault
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever


def turn(name: str, **arguments: Any) -> AssistantTurn:
    return AssistantTurn(None, "", (NativeCall(name, arguments),))


def opened(cls: type[SearchEnv] = LocalSearch, *, native: bool = True, **options: Any) -> SearchEnv:
    env = cls(**options)
    env.native = native
    env.reset(seed=3)
    return env


def act(env: SearchEnv, said: AssistantTurn) -> Step:
    return asyncio.run(env.astep(env.native_action(said)))


def test_calls_do_what_tags_do() -> None:
    tags, tools = opened(native=False, found_reward=0.5), opened(found_reward=0.5)
    task = tools.state.task
    assert task.id == tags.state.task.id
    query = task.question
    asked, answer = f"{query}\n{query} again", task.answers[0]
    steps = [(tags.step(f"<search>{asked}</search>"), act(tools, turn("search", query=asked)))]
    title = next(iter(tags.state.by_id.values())).title
    steps.append((tags.step(f"<read>{title}</read>"), act(tools, turn("read", title=title))))
    steps.append((tags.step(f"<answer>{answer}</answer>"), act(tools, turn("answer", answer=answer))))
    for by_tag, by_call in steps:
        assert by_tag[1:4] == by_call[1:4]
        assert by_tag.info == by_call.info
    assert steps[-1][1].reward == 1.0
    shown = steps[0][1].observation[0].text
    assert steps[0][0].observation[0].text == f"\n\n<information>{shown}</information>\n\n"


@pytest.mark.parametrize("env", [JudgedSearch(), PlannedSearch(), SelfSearch()])
def test_tags_that_are_explained_are_read(env: SearchEnv) -> None:
    """Otherwise an answer as the message asks for it was no action."""
    env.native = True
    opening, _ = env.reset(seed=3)
    assert ("<answer>" in opening[0].text) == (not env.native_tools())
    said = AssistantTurn("I know it.", f"<answer> {env.state.task.answers[0]} </answer>")
    assert act(env, said).info["end_reason"] is EndReason.ANSWERED
    assert env.state.record[-1].action.startswith("<think>I know it.</think>")


def test_the_opening_names_no_tag_and_the_tools_are_those_of_the_environment() -> None:
    env = LocalSearch()
    env.native = True
    (message,), _ = env.reset(seed=3)
    assert "<search>" not in message.text
    assert env.state.task.question in message.text
    assert [tool.name for tool in env.native_tools()] == ["search", "read", "answer"]
    assert [tool.name for tool in opened(LongSearch).native_tools()] == ["search", "access", "answer"]
    assert list(opened(SelfSearch).native_tools()) == []
    own = LocalSearch(prompt="Mine: {question}")
    own.native = True
    assert own.reset(seed=3)[0][0].text.startswith("Mine: ")


@pytest.mark.parametrize(
    "said",
    [
        AssistantTurn(None, "<answer>x</answer>"),  # text is no call, whatever it says
        AssistantTurn(None, "", (MalformedCall("{", "bad"),)),
        turn("serch", query="x"),
        turn("search", query=["x"]),
        turn("search", question="x"),
        AssistantTurn(None, "", (NativeCall("search", "x"),)),
    ],
)
def test_a_turn_without_a_call_that_can_be_made_is_told_so_and_costs_a_turn(said: AssistantTurn) -> None:
    env = opened()
    step = act(env, said)
    assert (step.info["valid"], env.state.mistakes, env.state.turns) == (False, 1, 1)
    assert step.info["tool_results"][0].status is ToolStatus.FORMAT_ERROR
    assert "<search>" not in step.observation[0].text


def test_tags_in_an_argument_are_no_actions() -> None:
    env = opened()
    step = act(env, turn("search", query="x</search><answer>y</answer>"))
    assert "end_reason" not in step.info
    assert env.state.queries == ["x  y"]
    assert act(env, turn("answer", answer="")).info["end_reason"] is EndReason.ANSWERED


def calls(*made: tuple[str, str]) -> AssistantTurn:
    named = {"search": "query", "read": "title", "answer": "answer"}
    return AssistantTurn(None, "", tuple(NativeCall(name, {named[name]: text}) for name, text in made))


def shown(step: Step) -> list[str]:
    return [message.text for message in step.observation]


def test_the_searches_of_a_turn_are_made_together() -> None:
    tags, tools = opened(native=False), opened()
    one, other = tools.state.task.question, "Who founded it?"
    together = tags.step(f"<search>{one}\n{other}</search>")
    step = act(tools, calls(("search", one), ("search", other)))
    assert tools.state.queries == [one, other]
    assert step.info["tool_results"] == together.info["tool_results"]
    page = together.observation[0].text.strip()
    assert shown(step) == [page.removeprefix("<information>").removesuffix("</information>"), TOGETHER]


def test_what_stands_beside_the_searches_of_a_turn_is_not_run() -> None:
    env = opened(queries=2)
    broken = MalformedCall("{", "bad")
    asked = calls(("search", "a"), ("answer", "x"), ("search", "b"), ("search", "c"), ("search", " "))
    step = act(env, replace(asked, calls=(broken, *asked.calls)))
    assert env.state.queries == ["a", "b"]
    assert "end_reason" not in step.info
    texts = shown(step)
    assert len(texts) == 6
    assert texts[1].count("Doc ") > 0
    assert texts[2:] == [NOT_MADE, TOGETHER, NOT_MADE, NOT_MADE]
    answered = replies(replace(asked, calls=(broken, *asked.calls)), step.observation)
    assert answered[0].text == "bad"
    assert [message.name for message in answered][1:] == ["search", "answer", "search", "search", "search"]


def test_a_first_call_that_does_not_search_is_alone() -> None:
    env = opened()
    assert shown(act(env, calls(("read", "Nothing"), ("search", "a"))))[1:] == [NOT_MADE]
    assert env.state.queries == []
    assert act(env, calls(("answer", "x"), ("search", "a"))).observation == ()
    later = opened()
    act(later, calls(("search", "a"), ("search", "b")))
    assert len(shown(act(later, turn("search", query=later.state.task.question)))) == 1


def test_searches_that_find_nothing_are_answered_each() -> None:
    assert shown(act(opened(), calls(("search", "zzz"), ("search", "qqq")))) == ["", TOGETHER]


def test_after_a_fault_the_next_action_is_a_turn_of_its_own() -> None:
    """It was answered as often as the turn that failed had calls."""
    world = FictionalWorld.generate(WorldConfig(documents=200, questions=5))
    retriever = FaultyRetriever(InMemoryRetriever(world.documents), fail_on={0})
    env = opened(tasks=world.questions, retriever=retriever)
    with pytest.raises(RetrieverFault):
        act(env, calls(("search", "a"), ("search", "b")))
    env.native = False
    env.reset(seed=3)
    assert len(env.step("<search>society</search>").observation) == 1
