"""What the end of a search episode is worth, by hand; and sequential against parallel queries."""

from typing import Any

import pytest

from agentenv.core.types import Document, Step, Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.outcomes import (
    Ending,
    deliberative,
    flawed_positive,
    graded_format,
    is_one_action,
    knowledge_boundary,
)
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.retrievers.fakes import InMemoryRetriever

WORLD = FictionalWorld.generate(
    WorldConfig(documents=200, questions=12, families=("comparison",), hops=(2, 2))
)


@pytest.mark.parametrize(
    ("ending", "reward"),
    [
        (Ending(1.0, 0), 1.6),
        (Ending(1.0, 1), 1.4),
        (Ending(1.0, 2), 1.2),
        (Ending(1.0, 3), 1.0),
        (Ending(1.0, 9), 1.0),
        (Ending(0.0, 0), 0.0),
        (Ending(0.0, 1), 0.05),
        (Ending(0.0, 4), 0.05),
        (Ending(1.0, 1, mistakes=1), -1.0),
        (Ending(0.0, 0, mistakes=2), -1.0),
        (Ending(1.0, 1, thought=False), -1.0),
        (Ending(0.0, 4, answered=False), 0.0),  # published: .05
    ],
)
def test_the_knowledge_boundary_as_published(ending: Ending, reward: float) -> None:
    assert knowledge_boundary(ending) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("ending", "reward"),
    [
        (Ending(1.0), 1.0),
        (Ending(1.0, answer_seen=True), 1.0),
        (Ending(1.0, formed=False), 0.8),  # 1 - a
        (Ending(0.5), 0.2),  # half right is not right
        (Ending(0.0), 0.2),
        (Ending(0.0, answer_seen=True), 0.3),  # a + c
        (Ending(0.0, formed=False), 0.1),
        (Ending(0.0, formed=False, answer_seen=True), 0.1),
        (Ending(0.0, formed=False, answered=False), 0.0),  # published: .1
    ],
)
def test_the_graded_format_as_published(ending: Ending, reward: float) -> None:
    """Search-R1 v0.3 with a = .2, b = .1 and c = .1."""
    assert graded_format(ending, retrieval=0.1) == pytest.approx(reward)


def test_the_options_of_the_graded_format() -> None:
    assert graded_format(Ending(0.0, answer_seen=True)) == pytest.approx(0.2)  # c is 0 unless it is named
    assert graded_format(Ending(1.0, formed=False), structure=0.3) == pytest.approx(0.7)
    assert graded_format(Ending(0.0, formed=False), final=0.05) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("ending", "reward"),
    [
        (Ending(1.0, tool_turns=7), 1.0),
        (Ending(0.0, tool_turns=0), -1.0),
        (Ending(0.0, tool_turns=2), -0.8),
        (Ending(0.0, tool_turns=4), -0.6),
        (Ending(0.0, tool_turns=9), -0.6),
    ],
)
def test_deliberation_is_paid_where_the_answer_is_wrong(ending: Ending, reward: float) -> None:
    """min(-.6, -1 + .1 (messages - 2) / 2): without tools 2 messages, each tool turn adds 2."""
    assert deliberative(ending) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("ending", "penalty", "reward"),
    [
        (Ending(1.0), 1.0, 1.0),
        (Ending(1.0, grounded=False), 1.0, 0.5),  # published: 1 - 1 between 1 and -1
        (Ending(1.0, grounded=False), 2.0, 0.0),  # a flawed answer as a wrong one
        (Ending(1.0, grounded=False), 0.0, 1.0),
        (Ending(0.4, grounded=False), 1.0, 0.4),
        (Ending(0.0, grounded=False, answered=False), 1.0, 0.0),
    ],
)
def test_a_flawed_positive_earns_half(ending: Ending, penalty: float, reward: float) -> None:
    assert flawed_positive(ending, penalty=penalty) == pytest.approx(reward)


def test_the_sign_of_a_flawed_positive_flips_where_clean_answers_outnumber_wrong_ones() -> None:
    """FAPO's reason for a penalty of 1: it is above the mean of its group as long as most of that fails."""
    clean, flawed, wrong = (
        flawed_positive(e) for e in (Ending(1.0), Ending(1.0, grounded=False), Ending(0.0))
    )
    for right, failed, sign in ((1, 3, 1), (2, 2, 0), (3, 1, -1)):
        group = [clean] * right + [flawed] * 2 + [wrong] * failed
        above = flawed - sum(group) / len(group)
        assert (above > 1e-9) - (above < -1e-9) == sign


def test_an_answer_is_flawed_where_a_needed_passage_was_not_found() -> None:
    """A guess and a jump are flawed, and the expert's way is not."""
    option: dict[str, Any] = {"outcome": "flawed_positive", "k": 20}
    task = WORLD.questions[0]
    assert len(task.data["supporting_ids"]) > 1
    assert played(RIGHT, **option)[-1].reward == 0.5
    titles = {document.id: document.title for document in WORLD.documents}
    searches = [f"<search>{titles[one]}</search>" for one in task.data["supporting_ids"]]
    assert played(searches[0], RIGHT, **option | {"k": 1})[-1].reward == 0.5
    assert played(*searches, RIGHT, **option | {"max_turns": 5})[-1].reward == 1.0
    assert played(*searches, WRONG, **option | {"max_turns": 5})[-1].reward == 0.0
    ends = [[RIGHT], [*searches, RIGHT], [WRONG]]
    said = [played(*actions, **option | {"max_turns": 5})[-1].info.get("flawed") for actions in ends]
    assert said == [True, False, None]
    assert "flawed" not in played(RIGHT)[-1].info


@pytest.mark.parametrize(
    ("answers", "page", "grounded"),
    [
        (("Leeds",), "born in Leeds", True),
        (("York",), "born in Leeds", False),
        (("yes",), "born in Leeds", True),
    ],
)
def test_a_task_without_passages_is_judged_by_its_pages(
    answers: tuple[str, ...], page: str, grounded: bool
) -> None:
    env = LocalSearch(
        tasks=[Task("t", "Where?", answers)],
        retriever=InMemoryRetriever([Document("a", "A", page)]),
        outcome="flawed_positive",
    )
    for searches, found in ((0, False), (1, grounded)):
        env.reset(seed=0)
        for _ in range(searches):
            env.step("<search>A</search>")
        assert env.step(f"<answer>{answers[0]}</answer>").reward == (1.0 if found else 0.5)


def test_the_knowledge_boundary_asks_for_few_searches() -> None:
    """A message that invites to search would ask for the contrary of what is paid."""
    asked, retriever = {}, InMemoryRetriever(WORLD.documents)
    for outcome in ("answer", "knowledge_boundary"):
        for native in (False, True):
            env = LocalSearch(tasks=WORLD.questions, retriever=retriever, outcome=outcome)
            env.native = native
            asked[outcome, native] = env.reset(seed=0)[0][0].text
    for native in (False, True):
        assert "often as you need" in asked["answer", native]
        assert "often as you need" not in asked["knowledge_boundary", native]
        assert "clear gap" in asked["knowledge_boundary", native]
    own = LocalSearch(
        tasks=WORLD.questions, retriever=retriever, outcome="knowledge_boundary", prompt="Q: {question}"
    )
    assert own.reset(seed=0)[0][0].text.startswith("Q: ")


def played(*actions: str, **options: Any) -> list[Step]:
    env = LocalSearch(tasks=WORLD.questions, retriever=InMemoryRetriever(WORLD.documents), **options)
    env.reset(seed=0, options={"task": WORLD.questions[0]})
    return [env.step(action) for action in actions]


RIGHT, WRONG = f"<answer>{WORLD.questions[0].answers[0]}</answer>", "<answer>nobody</answer>"
THINK, SEARCH = "<think>Who is it?</think>", "<search>a</search>"


@pytest.mark.parametrize(
    ("actions", "reward"),
    [
        ([THINK + RIGHT], 1.6),
        ([THINK + SEARCH, RIGHT], 1.4),  # one thought in all is enough
        ([THINK + "<search>a\nb\nc\nd\ne</search>", RIGHT], 1.0),  # five queries of one block are five
        ([THINK + "<search>a\nb</search>", RIGHT], 1.2),
        ([THINK + SEARCH, "<read>nowhere</read>", RIGHT], 1.2),
        ([THINK + SEARCH, WRONG], 0.05),
        ([THINK + WRONG], 0.0),
        ([RIGHT], -1.0),  # no thought
        (["<think></think>" + RIGHT], -1.0),  # an empty one
        (["<think> \n</think>" + RIGHT], -1.0),
        (["</think><think>" + RIGHT], -1.0),  # one that ends before it begins
        (["<think></think><think>so</think>" + RIGHT], 1.6),
        ([SEARCH, "<think>Who?" + RIGHT], -1.0),
        ([THINK + "(search) a" + SEARCH, RIGHT], -1.0),
        ([THINK, RIGHT], -1.0),  # a turn without an action
        ([THINK + SEARCH, SEARCH, SEARCH], 0.0),  # never answers
    ],
)
def test_the_environment_ends_with_the_outcome_that_it_was_given(actions: list[str], reward: float) -> None:
    steps = played(*actions, outcome="knowledge_boundary", max_turns=2)
    assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [pytest.approx(reward)]


HOP = f"<search>{WORLD.questions[0].data['path'][0]['query']}</search>"


@pytest.mark.parametrize(
    ("actions", "reward"),
    [
        ([THINK + RIGHT], 1.0),
        ([f"\n{THINK}\n{SEARCH}\n", f" {THINK} {RIGHT} "], 1.0),
        ([THINK + SEARCH, THINK + SEARCH, THINK + WRONG], 0.2),
        ([RIGHT], 0.8),  # no thought
        ([THINK + SEARCH, RIGHT], 0.8),  # no thought after the page
        ([THINK + "so" + RIGHT], 0.8),  # text between the blocks
        ([THINK + SEARCH + " then", THINK + RIGHT], 0.8),
        ([THINK + THINK + RIGHT], 0.8),
        (["<think>a <think>b</think>" + RIGHT], 0.8),  # opened twice
        ([THINK + RIGHT + "<answer>", THINK], 0.8),  # the first answer ends it
        ([THINK + "<read>nowhere</read>", THINK + RIGHT], 0.8),
        ([THINK, THINK + RIGHT], 0.8),  # a turn without an action
        ([WRONG], 0.1),
        ([THINK + SEARCH, THINK + SEARCH, THINK + SEARCH], 0.0),  # never answers
        (["nothing", "nothing", "nothing"], 0.0),
    ],
)
def test_the_form_of_an_episode_is_graded(actions: list[str], reward: float) -> None:
    env = LocalSearch(
        tasks=WORLD.questions,
        retriever=InMemoryRetriever(WORLD.documents),
        outcome="graded_format",
        max_turns=2,
    )
    env.reset(seed=0, options={"task": WORLD.questions[0]})
    earned = 0.0
    for action in actions:
        step = env.step(action)
        earned += step.reward
        if step.terminated or step.truncated:
            break
    assert earned == pytest.approx(reward)


def test_a_page_with_the_answer_is_paid_where_the_answer_is_wrong() -> None:
    options = {"outcome": "graded_format", "outcome_options": {"retrieval": 0.1}, "k": 20}
    assert played(THINK + HOP, THINK + WRONG, **options)[-1].reward == pytest.approx(0.3)
    assert played(THINK + SEARCH, THINK + WRONG, **(options | {"k": 1}))[-1].reward == pytest.approx(0.2)
    with pytest.raises(UnknownName, match="'retrieve'"):
        played(outcome="graded_format", outcome_options={"retrieve": 0.1})


def test_the_expert_earns_all_of_the_graded_format() -> None:
    env = LocalSearch(
        tasks=WORLD.questions,
        retriever=InMemoryRetriever(WORLD.documents),
        outcome="graded_format",
        queries=1,
    )
    env.reset(seed=0)
    assert sum(env.step(action).reward for action in env.expert() or ()) == pytest.approx(1.0)


def test_the_expert_thinks_where_the_outcome_asks_for_it() -> None:
    """Two searches, each with a thought: 1 + .6 - .2 * 2."""
    env = LocalSearch(
        tasks=WORLD.questions,
        retriever=InMemoryRetriever(WORLD.documents),
        outcome="knowledge_boundary",
        queries=1,
    )
    env.reset(seed=0)
    assert sum(env.step(action).reward for action in env.expert() or ()) == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("action", "one"),
    [
        ("<search>a</search>", True),
        ("nothing", True),
        ("<search>a", False),
        ("a</search>", False),
        ("<search>a</search><answer>b</answer>", False),
    ],
)
def test_one_action_is_one_whole_block(action: str, one: bool) -> None:
    assert is_one_action(action, ("search", "answer")) is one


def test_an_unknown_outcome_and_no_queries_are_refused() -> None:
    with pytest.raises(UnknownName, match="'deliberative'"):
        LocalSearch(outcome="deliberate")
    with pytest.raises(ConfigurationError, match="queries=0"):
        LocalSearch(queries=0)


def test_parallel_queries_take_fewer_turns_at_equal_accuracy() -> None:
    """Comparisons of two entities: both facts in one turn, or one after the other."""

    def solve(task: Any, queries: int | None) -> tuple[int, float, int]:
        env = LocalSearch(tasks=[task], retriever=InMemoryRetriever(WORLD.documents), queries=queries)
        env.reset(seed=0)
        wanted = [hop["query"] for hop in task.data["path"]]
        turns = 0
        while missing := [query for query in wanted if query not in done(env)]:
            turns += 1
            result = env.step("<search>" + "\n".join(missing) + "</search>").info["tool_results"][0]
            asked.setdefault(id(env), set()).update(result.text.splitlines())
        return turns, env.step(f"<answer>{task.answers[0]}</answer>").reward, len(env.state.retrieved)

    asked: dict[int, set[str]] = {}

    def done(env: LocalSearch) -> set[str]:
        return asked.get(id(env), set())

    parallel = [solve(task, None) for task in WORLD.questions]
    sequential = [solve(task, 1) for task in WORLD.questions]
    assert parallel == [(1, 1.0, 2)] * 12
    assert sequential == [(2, 1.0, 2)] * 12


@pytest.mark.parametrize(
    "outcome", ["answer", "knowledge_boundary", "deliberative", "graded_format", "flawed_positive"]
)
def test_an_episode_that_is_cut_earns_what_one_without_an_answer_earns(outcome: str) -> None:
    """A policy that fills its context must not lose less than one that comes to the last turn."""
    env = LocalSearch(
        tasks=WORLD.questions, retriever=InMemoryRetriever(WORLD.documents), outcome=outcome, max_turns=1
    )
    env.reset(seed=0)
    env.step(THINK + SEARCH)
    cut = env.cut_reward()
    assert env.cut_reward() == cut  # asking changes nothing
    assert env.step(SEARCH).reward == cut
    assert (cut < 0) == (outcome == "deliberative")


def test_a_page_is_paid_for_whole_words_of_an_answer_alone() -> None:
    """Until then the letters of "no" were found on nearly every page, so that any search earned the reward."""
    documents = [Document("o", "Oslo", "It is known as a city of the north, because it is.")]
    for answer in ("no", "us"):
        env = LocalSearch(
            tasks=[Task("t", "Is it?", (answer,))], retriever=InMemoryRetriever(documents), found_reward=0.5
        )
        env.reset(seed=0)
        assert env.step("<search>Oslo</search>").reward == 0.0


@pytest.mark.parametrize("guess", ["Ada Stone", "2"])
def test_a_guess_that_a_notice_repeats_is_not_found(guess: str) -> None:
    env = LocalSearch(
        tasks=[Task("t", "Who?", (guess,))],
        retriever=InMemoryRetriever([Document("o", "Oslo", "A city.")]),
        found_reward=0.5,
        repeat_notice=True,
    )
    env.reset(seed=0)
    step = env.step(f"<search>{guess}\n{guess}</search>")
    assert "searched before" in step.observation[0].text
    assert step.reward == 0.0
