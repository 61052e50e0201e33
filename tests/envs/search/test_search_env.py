"""The loop of search environments: what every variant keeps to, and a variant of one's own from the documentation."""

import ast
import copy
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.env import Env
from agentenv.core.registry import env_class, make, register, registered
from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.types import Document, EndReason, Task, ToolResult, ToolStatus
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.long_search import LongSearch
from agentenv.envs.search.outcomes import answer_reward, score_of, shows_answer_first
from agentenv.envs.search.search_env import SearchEnv
from agentenv.envs.search.search_state import SearchState, ToolReply
from agentenv.envs.search.self_search import SelfSearch
from agentenv.errors import EnvFault
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever

IDS = [id for id, entry in registered().items() if entry.entry_point.startswith("agentenv.envs.search.")]
DOCUMENTS = (
    Document("a", "Halvik", "Halvik lies in Norland."),
    Document("b", "Ketterby", "Ketterby has a lighthouse."),
)
TASK = Task("q", "Where is Halvik?", ("Norland",))
EM = get_scorer("em_squad")


def begun(kind: Callable[..., Env[Any]] = LocalSearch, **options: Any) -> Any:
    given: dict[str, Any] = {"tasks": [TASK], "retriever": InMemoryRetriever(DOCUMENTS), "k": 1}
    env = kind(**given | options)
    env.reset(seed=0)
    return env


def page(text: str, *, valid: bool = True) -> ToolReply:
    return ToolReply(text, ToolResult("search", ToolStatus.OK if valid else ToolStatus.ERROR))


@pytest.mark.parametrize("id", IDS)
def test_a_variant_overrides_no_private_method(id: str) -> None:
    """It names parts; what it may override is what every environment may."""
    above, *_ = [base for base in env_class(id).__mro__ if base.__module__ == Env.__module__]
    own = env_class(id).__mro__[: env_class(id).__mro__.index(above)]
    for number, kind in enumerate(own):
        private = {name for name in vars(kind) if re.match("_[a-z]", name) and callable(vars(kind)[name])}
        inherited = {name for base in own[number + 1 :] for name in vars(base)}
        assert not private & inherited, kind


@pytest.mark.parametrize("id", IDS)
def test_an_evaluation_measures_what_a_variant_is_trained_by(id: str) -> None:
    env = make(id)
    if isinstance(env, SearchEnv) and env.final_tag == "answer":
        assert env.scorer.name in type(env).scorers


@pytest.mark.parametrize("id", IDS)
def test_no_function_of_a_variant_touches_what_is_private_to_another_object(id: str) -> None:
    tree = ast.parse(inspect.getsource(inspect.getmodule(env_class(id)) or Env))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr):
            assert ast.unparse(node.value) == "self", ast.unparse(node)


def test_the_example_of_the_documentation_is_a_variant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its code is taken from ``docs/search_family.md``."""
    text = (Path(__file__).resolve().parents[3] / "docs" / "search_family.md").read_text(encoding="utf-8")
    (code,) = re.findall(r'```python title="titles.py"\n(.*?)```', text, re.DOTALL)
    (tmp_path / "titles_of_the_docs.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    register("docs/TitleSearch-v0", "titles_of_the_docs:TitleSearch")
    env = begun(env_class("docs/TitleSearch-v0"), price=0.25, found_reward=0.5)
    first, second = env.step("<search>Halvik</search>"), env.step("<read>Halvik</read>")
    assert first.observation[0].text == "\n\n<information>Halvik</information>\n\n"
    assert "Halvik lies in Norland." in second.observation[0].text
    rewards = [first.reward, second.reward, env.step("<answer>Norland</answer>").reward]
    assert rewards == [0.0, 0.5 - 0.25, 1.0]


def test_a_fault_of_a_tool_leaves_the_record_where_it_was() -> None:
    env = begun(retriever=FaultyRetriever(InMemoryRetriever(DOCUMENTS), fail_on={1}))
    env.step("<search>Halvik</search>")
    before = copy.deepcopy(env.state)
    with pytest.raises(EnvFault):
        env.step("<search>Ketterby</search>")
    assert env.state == before


def test_the_record_counts_turns_mistakes_and_pages() -> None:
    env = begun()
    for action in ("<search>Halvik</search>", "what?", "<read>Ketterby</read>", "<answer>Rome</answer>"):
        env.step(action)
    state = env.state
    assert [turn.action for turn in state.record][1:3] == ["what?", "<read>Ketterby</read>"]
    assert (state.turns, state.mistakes, len(state.pages), state.last.end) == (3, 1, 3, EndReason.ANSWERED)
    assert [turn.valid for turn in state.record] == [True, False, False, True]


def test_an_answer_is_shown_first_on_one_valid_page() -> None:
    state = SearchState(TASK, 0)
    first = []
    for reply in (page("Rome"), page("Norland", valid=False), page("Norland"), page("Norland")):
        state.record.append(reply)
        first.append(shows_answer_first(state))
    assert first == [False, False, True, False]


def test_the_reward_of_an_answer_is_a_function_of_the_state_alone() -> None:
    state = SearchState(TASK, 0, record=[page("Norland")], answer="Norland")
    assert answer_reward(state, scorer=EM, found=0.5) == {"found": 0.5}
    assert answer_reward(state, scorer=EM) == {}
    state.record.append(ToolReply(end=EndReason.ANSWERED))
    assert answer_reward(state, scorer=EM, found=0.5) == {"outcome": 1.0}
    assert answer_reward(state, scorer=EM, outcome=lambda ending: ending.searches) == {"outcome": 1}
    state.answer = None
    assert score_of(state, EM) == 0.0


def test_a_step_names_the_parts_of_its_reward() -> None:
    env = begun(found_reward=0.5)
    steps = [env.step(action) for action in ("<search>Halvik</search>", "<answer>Norland</answer>")]
    assert [step.info["reward_parts"] for step in steps] == [{"found": steps[0].reward}, {"outcome": 1.0}]


def test_a_copy_of_a_state_shares_what_has_happened() -> None:
    state = begun().state
    state.record.append(page("Norland"))
    twin = copy.deepcopy(state)
    twin.record.append(page("Rome"))
    assert twin.record[0] is state.record[0]
    assert len(state.record) == 1


def test_a_real_search_counts_for_the_expert_that_searches_in_itself() -> None:
    env = begun(
        SelfSearch, tasks=[Task("q", "Where?", ("Norland",), data={"supporting_ids": ("a",)})], real="always"
    )
    env.step("<search>Ketterby</search>")
    assert env.expert_gives_up() == "<answer></answer>"
    env.step("<search>Halvik</search>")
    assert env.expert_gives_up() is None


def test_addresses_come_with_as_many_words_as_a_search_may_show() -> None:
    env = begun(LongSearch, snippet_words=2)
    assert (
        env.step("<search>Halvik</search>")
        .observation[0]
        .text.endswith("(a): Halvik. Halvik lies</information>\n\n")
    )
