"""Self-search: the closed-form format reward by hand, the reward, and which searches are real."""

import asyncio
import math
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.types import Document, EndReason, Step, Task
from agentenv.envs.search.self_search import Real, SelfSearch, format_reward, query_entropy
from agentenv.errors import ConfigurationError, EnvFault, UnknownName
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever

T, S, I, A = (  # noqa: E741
    "<think>a</think>",
    "<search>b</search>",
    "<information>c</information>",
    "<answer>d</answer>",
)
TASK = Task("q", "Where is Halvik?", ("Norland",))
DOCUMENTS = [Document("d0", "Halvik", "Halvik is in Norland.")]


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (T + A, 0.5),  # one thought of at least two
        (T + S + I + T + A, 1.0),
        (f"\n{T}\n\n{S} {I}\n{T}{A}\n", 1.0),
        (T + (S + I + T) * 7 + A, 1.0),
        (T + T + A, 0.5),  # rho = 1 / 2
        (T + S + I + A, 0.25),  # one thought of two: 0.5 * 1 / 2
        (T + S + I + S + I + T + A, 2 / 3),  # two thoughts of three
        (T * 4 + A, 0.25),
        ("<think>a\nb</think><answer>d\ne</answer>", 0.5),
    ],
)
def test_the_closed_form(text: str, reward: float) -> None:
    assert format_reward(text) == pytest.approx(reward)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Halvik",
        A,
        T,
        A + T,
        S + I + T + A,  # does not begin with a thought
        T + S + I + T,  # does not end with an answer
        T + S + T + A,  # no information after the search
        T + S + T + I + A,  # not right after it
        T + I + A,  # information without a search
        "<think></think>" + A,
        "<think> \n </think>" + A,
        "<think>a<answer>d</answer>",  # open
        "<think>a<search>b</search></think>" + I + A,  # nested
        T + "<search>b\nc</search>" + I + T + A,  # a query of two lines
        T + S + I + "<read>x</read>" + T + A,  # another tag
        "<think>a <b>bold</b></think>" + A,
        "<think>a <5> b</think>" + A,
        "<think>a <!x> b</think>" + A,
        "<think>a < search> b</think>" + A,
        "<think>a </ answer > b</think>" + A,
        "<think>your thoughts</think>" + A,
        T + "<search>Your Query</search>" + I + T + A,
        "before " + T + A,
        T + A + " after",
        T + (S + I + T) * 8 + A,  # nine thoughts
        "</think>" + A,
    ],
)
def test_malformed_texts_have_none(text: str) -> None:
    assert format_reward(text) == 0.0


def test_comparisons_are_no_tags() -> None:
    assert format_reward("<think>1 < 2 and 3 > 2</think>" + A) == 0.5


@pytest.mark.parametrize(
    ("layout", "page"),
    [
        ("documents", "Doc 1(Title: Halvik) Halvik is ... in\nNorland \u2026 .\nDoc 2(Title: ) A port."),
        ("numbered", "1. Halvik: Halvik is in Norland .\n2. A port."),
        ("paragraph", "Halvik: Halvik is in Norland . A port."),
        ("bullets", "- Halvik: Halvik is in Norland .\n- A port."),
    ],
    ids=["documents", "numbered", "paragraph", "bullets"],
)
def test_a_real_search_writes_its_results_as_the_model_does(layout: str, page: str) -> None:
    cut = [Document("d0", "Halvik", "Halvik is ... in\nNorland \u2026 ."), Document("d1", "", "A port.")]
    env = SelfSearch(tasks=[TASK], retriever=InMemoryRetriever(cut), k=2, real="always", layout=layout)
    env.reset(seed=0)
    shown = env.step("<think>a</think><search>Halvik is port</search>").observation[0].text
    assert shown == f"\n\n<information>{page}</information>\n\n"
    with pytest.raises(UnknownName, match="'lines'"):
        SelfSearch(tasks=[TASK], retriever=InMemoryRetriever(cut), layout="lines")


def test_entropy_of_a_query_by_hand() -> None:
    """-p log2 p: 1/2 -> 1/2, 1/4 -> 1/2, 1 -> 0; their mean is 1/3."""
    assert query_entropy([0.5, 0.25, 1.0]) == pytest.approx(1 / 3)
    assert query_entropy([]) == query_entropy([0.0]) == 0.0
    assert math.isnan(query_entropy([0.5, math.nan]))  # of a policy that tells no log-probs


def begun(real: Real = "never", **options: Any) -> SelfSearch:
    retriever = options.pop("retriever", InMemoryRetriever(DOCUMENTS))
    env = SelfSearch(tasks=[TASK], retriever=retriever, real=real, **options)
    env.reset(seed=0, options={"task": TASK})
    return env


def play(env: SelfSearch, *actions: str) -> list[Step]:
    return [env.step(action) for action in actions]


def test_nothing_is_said_to_a_policy_that_searches_in_itself() -> None:
    first, last = play(
        begun(),
        T + "<search>Halvik</search>",
        "<information>Norland</information>" + T + "<answer>Norland</answer>",
    )
    assert first.observation == ()
    assert first.info["tool_results"][0].name == "self_search"
    assert last.reward == pytest.approx(1.0)
    assert last.info["end_reason"] is EndReason.ANSWERED


@pytest.mark.parametrize(
    ("actions", "reward"),
    [
        ([T + "<answer>Norland</answer>"], 0.9 + 0.05),
        (["<answer>Norland</answer>"], 0.9),
        ([T + S, I + T + "<answer>Rome</answer>"], 0.1),
        ([T + S, I + "<answer>Rome</answer>"], 0.025),
    ],
)
def test_the_reward_is_score_and_format(actions: list[str], reward: float) -> None:
    assert play(begun(), *actions)[-1].reward == pytest.approx(reward)


def real_searches(env: SelfSearch, entropies: list[float]) -> list[bool]:
    found = []
    for entropy in entropies:
        env.tell_entropy(entropy)
        found.append(bool(env.step(T + "<search>Halvik</search>").observation))
    return found


@pytest.mark.parametrize(
    ("real", "expected"),
    [
        ("never", [False] * 4),
        ("first", [True, False, False, False]),
        ("always", [True] * 4),
        ("entropy", [True, True, False, False]),  # 0.3 > 0.2; 0.3 is no rise; 0.1 falls
    ],
)
def test_which_searches_are_real(real: Real, expected: list[bool]) -> None:
    env = begun(real)
    assert real_searches(env, [0.2, 0.3, 0.3, 0.1]) == expected
    assert len(env.state.retrieved) == sum(expected)


def test_a_real_search_shows_what_it_finds_and_counts_as_information() -> None:
    env = begun("always")
    first, last = play(env, T + "<search>Halvik</search>", T + "<answer>Norland</answer>")
    assert (
        first.observation[0].text
        == "\n\n<information>Doc 1(Title: Halvik) Halvik is in Norland.</information>\n\n"
    )
    assert last.reward == pytest.approx(1.0)


def test_entropies_that_nobody_tells_are_asked_for() -> None:
    env = begun("entropy")
    env.step(S)
    with pytest.raises(ConfigurationError, match="'self_search'"):
        env.step(S)


def test_what_ends_an_episode() -> None:
    ends = {
        EndReason.PARSE_ERROR: begun().step(T),
        EndReason.TURN_LIMIT: begun(max_turns=0).step(T + S),
        EndReason.ANSWERED: begun(max_turns=0).step(A),
    }
    for end, step in ends.items():
        assert step.info["end_reason"] is end
        assert step.truncated is (end is EndReason.TURN_LIMIT)
    assert begun().step("<search> </search>").info["end_reason"] is EndReason.PARSE_ERROR


LAST = "<information>c</information>" + T + "<search>z</search>" + I + T + "<answer>Norland</answer>"


def test_the_last_turn_prefers_the_answer_to_a_query_before_it() -> None:
    """Two searches, three thoughts and a right answer: all of the reward. In a turn before the last the query decides."""
    first, last = play(begun(max_turns=1), T + S, LAST)
    assert (first.terminated, last.info["answer"]) == (False, "Norland")
    assert last.reward == pytest.approx(1.0)
    assert not play(begun(max_turns=2), T + S, LAST)[-1].terminated


def test_in_the_last_turn_a_query_does_not_stop_the_policy() -> None:
    policy = ScriptedPolicy({"e-0": [T + S + "never sampled", LAST + "never sampled"]})
    config = RolloutConfig(context_tokens=9999, turn_tokens=999, stop=SelfSearch.stop)
    env = begun(max_turns=1)
    chat = InlineFormat(policy.tokenizer)
    (played,) = asyncio.run(rollout([EpisodeSpec(env, TASK, 0)], policy, chat, config, name="e"))
    assert [turn.action for turn in played.turns] == [T + S, LAST]
    assert played.reward == pytest.approx(1.0)


def test_a_fault_of_the_real_search_changes_nothing() -> None:
    env = begun("always", retriever=FaultyRetriever(InMemoryRetriever(DOCUMENTS), fail_on={0}))
    with pytest.raises(EnvFault):
        env.step(T + S)
    assert (env.state.text, env.state.turns) == ("", 0)
    assert env.step(T + "<search>Halvik</search>").observation


def test_time_travel_takes_text_and_entropies_back() -> None:
    env = begun("entropy")
    real_searches(env, [0.2])
    snapshot = env.snapshot()
    assert real_searches(env, [0.1]) == [False]
    env.restore(snapshot)
    assert env.state.text.endswith("</information>\n\n")
    assert real_searches(env, [0.4]) == [True]


@pytest.mark.parametrize("real", ["never", "first", "always"])
def test_the_expert_scores_full_in_every_mode(real: Real) -> None:
    env = SelfSearch(real=real)
    asyncio.run(env.areset(seed=3))
    actions = env.expert()
    assert actions is not None
    assert math.isclose(play(env, *actions)[-1].reward, 1.0)
    assert begun("entropy").expert() is None


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UnknownName, match="'never'"):
        SelfSearch(real="nevr")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("real", "first", "expected"),
    [
        ("never", 3, [False] * 4),
        ("first", 1, [True, False, False, False]),
        ("first", 2, [True, True, False, False]),
        ("first", 3, [True, True, True, False]),
        ("always", 1, [True] * 4),
        # Entropies .5, .9, .3, .4: only the fourth has risen after the first two.
        ("entropy", 2, [True, True, False, True]),
    ],
)
def test_the_first_k_searches_are_real(real: Real, first: int, expected: list[bool]) -> None:
    env = SelfSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), real=real, first=first)
    env.reset(seed=0)
    shown = []
    for entropy in (0.5, 0.9, 0.3, 0.4):
        env.tell_entropy(entropy)
        shown.append(bool(env.step(T + S).observation))
    assert shown == expected


def test_no_first_search_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="first=0"):
        SelfSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), real="first", first=0)


def test_a_real_search_may_show_a_prefix_of_what_it_found() -> None:
    documents = [Document(f"d{n}", f"Title {n}", "halvik " * (9 - n)) for n in range(4)]
    lengths: list[int] = []
    again: list[int] = []
    for found in (lengths, again):
        for seed in range(40):
            env = SelfSearch(
                tasks=[TASK], retriever=InMemoryRetriever(documents), real="always", prefix=True, k=4
            )
            env.reset(seed=seed)
            env.step(T + "<search>halvik</search>")
            (ids,) = env.state.retrieved
            assert ids == [f"d{n}" for n in range(len(ids))]
            found.append(len(ids))
    assert set(lengths) == {1, 2, 3, 4}
    assert lengths == again


@pytest.mark.parametrize("text", ["Paris <br> is old.", "Is this your answer?", ""])
def test_what_a_real_page_holds_is_no_mistake_of_the_policy(text: str) -> None:
    documents = [Document("p", "Paris" if text else "", text or "x")]
    env = SelfSearch(
        tasks=[Task("t", "Which city?", ("Paris",))], retriever=InMemoryRetriever(documents), real="always"
    )
    env.reset(seed=0)
    env.step("<think>a</think><search>Paris</search>")
    assert env.step("<think>b</think><answer>Paris</answer>").reward == pytest.approx(1.0)
