"""What probes of a reward earn, in environments whose rewards can be farmed in one way each."""

import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentenv.core.action_forms import ActionForms, ExpertEpisode, Form, contents, learn_forms
from agentenv.core.env import Env
from agentenv.core.env_contract import run_check
from agentenv.core.grammar import earliest_block
from agentenv.core.probes import PROBES, ProbeRow, ProbeState, probe_env
from agentenv.core.types import EndReason, Info, Message, Observation, Step
from agentenv.errors import EnvFault


class Lookup(Env[list[str]]):
    """One look-up shows the answer, which differs from task to task; three turns at most."""

    stop = ("</look>", "</answer>")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed, options=options)
        self.secret = f"secret {self.np_random.integers(10**6)}"
        self.state, self.box = [], f"box {seed}"
        return (Message("user", f"What is in {self.box}?"),), {"task_id": "t"}

    def step(self, action: str) -> Step:
        self.check_running()
        self.state.append(action)
        block = earliest_block(action, ("look", "answer"))
        if block is not None and block.tag == "answer":
            return self.result((), reward=self.paid(block.content), end=EndReason.ANSWERED)
        if len(self.state) > 3:
            return self.result((), reward=self.unpaid(), end=EndReason.TURN_LIMIT, truncated=True)
        looked = block is not None and self.box in block.content
        return self.result((Message("tool", self.secret if looked else "nothing"),), reward=self.turn(action))

    def paid(self, answer: str) -> float:
        return float(answer == self.secret)

    def unpaid(self) -> float:
        return 0.0

    def turn(self, action: str) -> float:
        return 0.0

    def expert(self) -> Sequence[str] | None:
        return (f"<look>{self.box}</look>", f"<answer>{self.secret}</answer>")


class PaysLooks(Lookup):
    def turn(self, action: str) -> float:
        return 0.5 * ("<look>" in action)


class PaysSilence(Lookup):
    def unpaid(self) -> float:
        return 1.0


class PaysLength(Lookup):
    def paid(self, answer: str) -> float:
        return max(super().paid(answer), min(1.0, answer.count("\n") / 10))

    def turn(self, action: str) -> float:
        return action.count("\n") / 10


class GoesOn(Lookup):
    """Its expert names an action for after the end, which no episode comes to."""

    def expert(self) -> Sequence[str]:
        return (*(super().expert() or ()), "<look>more</look>")


class PaysMention(Lookup):
    def paid(self, answer: str) -> float:
        return float(self.secret in answer)


class PaysForm(Lookup):
    def paid(self, answer: str) -> float:
        return 1.0


class Breaks(Lookup):
    """Ends by a fault where a look-up is long: a policy could leave out what it cannot solve."""

    def turn(self, action: str) -> float:
        if len(action) > 300:
            raise EnvFault("too long")
        return 0.0


class Goes(Lookup):
    """Never ends but by an answer."""

    def unpaid(self) -> float:
        self.state.clear()
        return 0.0

    def result(self, *given: Any, **options: Any) -> Step:
        if options.get("truncated"):
            options |= {"end": None, "truncated": False}
        return super().result(*given, **options)


class NoExpert(Lookup):
    def expert(self) -> None:
        return None


def rows_of(env: type[Lookup]) -> dict[str, ProbeRow]:
    return {row.probe: row for row in probe_env(env)}


def farms_of(env: type[Lookup]) -> list[str]:
    return [name for name, row in rows_of(env).items() if row.is_farm]


def test_a_sound_reward_pays_no_probe() -> None:
    rows = rows_of(Lookup)
    assert list(rows) == list(PROBES)
    assert {(row.reward, row.expert, row.episodes, row.masked) for row in rows.values()} == {(0.0, 1.0, 5, 0)}
    assert run_check("probes", Lookup).status == "ok"


class PaysTheQuestion(Lookup):
    """A look-up of the question shows the answer, and what is shown is paid, as PlannedSearch once did."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        _, info = super().reset(seed=seed, options=options)
        return (Message("user", f"<look> looks things up.\nQuestion: What is in {self.box}?\nGo on."),), info

    def turn(self, action: str) -> float:
        return float(action == f"<look>What is in {self.box}?</look>")


def test_an_environment_without_an_expert_is_held_against_its_ceiling() -> None:
    class Farmed(PaysForm):
        def expert(self) -> None:
            return None

    assert {row.has_expert for row in rows_of(NoExpert).values()} == {False}
    assert {row.has_expert for row in rows_of(Lookup).values()} == {True}
    assert "the expert earns 1" in run_check("probes", Lookup).detail
    for env in (NoExpert, Farmed):
        said = run_check("probes", env).detail
        assert "the expert earns" not in said
        assert "reward_ceiling declares 1" in said


@pytest.mark.parametrize(
    ("env", "farms"),
    [
        (PaysLooks, {"nonsense, no answer", "nonsense, then an answer", "first action repeated"}),
        (PaysSilence, {"silence", "random text", "nonsense, no answer", "first action repeated"}),
        (PaysLength, {"flood of queries"}),
        (PaysMention, {"everything as answer", "answers of all tasks"}),
        (PaysTheQuestion, {"question as query, no answer"}),
        (PaysForm, {"answer at once", "empty answer", "answer of another task", "expert, wrong answer"}),
        (NoExpert, set()),
    ],
)
def test_each_kind_of_farm_is_found_by_its_probes(env: type[Lookup], farms: set[str]) -> None:
    found = set(farms_of(env))
    assert found >= farms
    assert bool(found) == bool(farms)


def test_the_question_is_what_one_opening_has_and_the_others_have_not() -> None:
    def seen(*texts: str) -> ProbeState:
        episodes = [ExpertEpisode(i, (Message("user", text),), (), 1.0) for i, text in enumerate(texts)]
        return ProbeState(learn_forms([], ("</look>", "</answer>"), 6), episodes, episodes[0], 0)

    assert (
        seen("Use <look>.\nQuestion: Who: me?\nGo!", "Use <look>.\nQuestion: Who is it?\nGo!").question
        == "Who: me?"
    )
    assert seen("Go\non", "Go\non").question == "Go\non"  # nothing differs, so that all of it is the question


def test_a_farm_fails_the_check_which_tells_what_it_earns() -> None:
    """Three looks at nonsense and then one more earn .5 each, an honest look and an answer 1.5."""
    result = run_check("probes", PaysLooks)
    assert result.status == "failed"
    row = {row.probe: row for row in result.probes}["nonsense, no answer"]
    assert (row.reward, row.expert, row.action[:6]) == (1.5, 1.5, "<look>")
    assert "'nonsense, no answer' earns 1.5" in result.detail


def test_a_probe_whose_every_episode_is_masked_is_a_farm() -> None:
    row = rows_of(Breaks)["flood of queries"]
    assert (row.reward, row.episodes, row.masked, row.is_farm) == (None, 0, 5, True)
    assert "flood of queries" in run_check("probes", Breaks).detail


def test_an_episode_that_does_not_end_is_cut_and_counts_as_far_as_it_came() -> None:
    row = rows_of(Goes)["silence"]
    assert (row.reward, row.cut, row.is_farm) == (0.0, 5, False)


def test_an_episode_that_hangs_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    class Hangs(Lookup):
        def turn(self, action: str) -> float:
            if not action:
                gate.wait(20)
            return 0.0

    monkeypatch.setattr("agentenv.core.probes.EPISODE_S", 0.05)
    row = rows_of(Hangs)["silence"]
    gate.set()
    assert (row.reward, row.masked) == (None, 5)


def test_what_the_expert_says_by_chance_is_left_out() -> None:
    """The answer of another task is this task's own, so the probe has nothing wrong to say."""

    class Same(Lookup):
        def reset(self, **given: Any) -> tuple[Observation, Info]:
            shown = super().reset(**given)
            self.secret = "one" if given["seed"] < 4 else "two"
            return shown

        def expert(self) -> Sequence[str] | None:
            return ("<look>box</look>", f"<answer>{self.secret}</answer>")

    assert rows_of(Same)["answer of another task"].reward is not None
    assert not rows_of(Same)["answer of another task"].is_farm


def test_a_task_that_one_action_solves_is_not_farmed_by_that_action() -> None:
    """As a page with one button: whoever clicks it has solved the task."""

    class Button(Lookup):
        def paid(self, answer: str) -> float:
            return float(answer == "click")

        def expert(self) -> Sequence[str] | None:
            return ("<answer>click</answer>",)

    rows = rows_of(Button)
    assert (rows["answer at once"].reward, rows["answer at once"].is_farm) == (0.0, False)
    assert (rows["answer of another task"].episodes, rows["silence"].reward) == (0, 0.0)


def test_an_empty_answer_is_empty_where_several_tasks_have_one_answer() -> None:
    """Of two answers each is right for some of the tasks; who writes one of them answers, and says so in its own row."""

    class Two(Lookup):
        def reset(self, **given: Any) -> tuple[Observation, Info]:
            shown = super().reset(**given)
            self.secret = "north" if given["seed"] % 2 else "south"
            return shown

        def expert(self) -> Sequence[str] | None:
            return ("<look>box</look>", f"<answer>{self.secret}</answer>")

    rows = rows_of(Two)
    for name in ("empty answer", "answer at once", "question as answer", "expert, wrong answer"):
        assert (rows[name].reward, rows[name].episodes) == (0.0, 5), name
    assert rows["answer of another task"].reward == 0.5


@pytest.mark.parametrize("paid", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_no_finite_number_is_found(paid: float) -> None:
    """Whoever brings it about spoils the advantages of the whole group; a form that earns one is shown before any other."""

    class Unbounded(Lookup):
        def turn(self, action: str) -> float:
            return paid if "vlurb" in action else 0.0

    rows = rows_of(Unbounded)
    assert rows["nonsense, no answer"].is_farm
    assert not rows["silence"].is_farm
    assert run_check("probes", Unbounded).status == "failed"


def played(name: str, number: int = 0, count: int = 5) -> list[str]:
    """The first actions of a probe where the expert looks twice and answers, after the opening "<b>What?</b>"."""
    actions = ("<look>one</look>", "<look>all</look>", "<answer>two</answer>")
    opening = (Message("user", "<b>What?</b>"),)
    expert = ExpertEpisode(3, opening, actions, 1.0)
    other = ExpertEpisode(4, (Message("user", "Who?"),), ("<answer>three</answer>",), 1.0)
    third = ExpertEpisode(5, (Message("user", "When?"),), ("<answer>four</answer>",), 1.0)
    idle = ExpertEpisode(6, (Message("user", "Why?"),), (), 1.0)
    constants = frozenset({"all"})
    forms = ActionForms(
        tuple(Form(action, constants) for action in actions[:2]),
        (Form(actions[2], constants), Form("<end>x</end>", constants)),
        constants,
    )
    seen = ProbeState(forms, (expert, idle, other, third), expert, number)
    seen.see(opening)
    seen.see((Message("tool", "a page"), Message("tool", "more")))
    return list(itertools.islice(PROBES[name](seen), count))


FIRST, SECOND = "vlurb zonka prix quelto dramb siv", "yorth mabek"


@pytest.mark.parametrize(
    ("name", "number", "actions"),
    [
        ("nonsense, no answer", 0, [f"<look>{FIRST}</look>"] * 5),
        ("nonsense, no answer", 1, ["<look>all</look>"] * 5),
        ("nonsense, no answer", 2, []),
        ("nonsense, then an answer", 0, [f"<look>{FIRST}</look>"] * 3 + [f"<answer>{FIRST}</answer>"] * 2),
        ("nonsense, then an answer", 1, ["<look>all</look>"] * 3 + [f"<end>{FIRST}</end>"] * 2),
        ("first action repeated", 0, ["<look>one</look>"] * 5),
        ("answer at once", 0, [f"<answer>{FIRST}</answer>"] * 5),
        ("answer at once", 1, [f"<end>{FIRST}</end>"] * 5),
        ("answer at once", 5, [f"<end>{FIRST}</end>"] * 5),
        ("empty answer", 0, ["<answer></answer>"] * 5),
        ("question as answer", 0, ["<answer> What? </answer>"] * 5),
        ("answer of another task", 0, ["<answer>three</answer>"] * 5),
        ("answer of another task", 1, ["<answer>four</answer>"] * 5),
        ("answer of another task", 2, []),
        ("answers of all tasks", 0, ["<answer>two, three, four</answer>"] * 5),
        ("everything as answer", 0, ["<look>one</look>", "<look>all</look>", "<answer> What? \na page\nmore</answer>"]),
        ("expert, wrong answer", 0, ["<look>one</look>", "<look>all</look>", f"<answer>{FIRST}</answer>"]),
        ("silence", 0, [""] * 5),
        ("prompt copied", 0, ["<b>What?</b>"] * 5),
    ],
)  # fmt: skip
def test_what_a_probe_plays(name: str, number: int, actions: list[str]) -> None:
    assert played(name, number) == actions


def test_floods_put_fifty_queries_or_actions_into_one() -> None:
    many = played("flood of queries", count=2)
    assert many[0] == "<look>" + "\n".join(f"{FIRST} {number}" for number in range(50)) + "</look>"
    assert many[1] == f"<answer>{FIRST}</answer>"
    assert played("flood of actions", count=2) == [
        f"<look>{FIRST}</look>" * 50,
        f"<answer>{FIRST}</answer>" * 50,
    ]
    assert played("flood of actions", 2, 1) == [f"<end>{FIRST}</end>" * 50]  # without a look the last form


def test_random_text_follows_the_seed_of_the_episode() -> None:
    assert played("random text") == played("random text")
    assert len(set(played("random text"))) > 1


def test_a_form_has_its_contents_filled_in_turn() -> None:
    form = Form('<a>x</a><b>y</b><c>{"k": ["z", 1], "l": "keep"}</c>', frozenset({"keep"}))
    assert form.filled("1", "2") == '<a>1</a><b>2</b><c>{"k": ["1", 1], "l": "keep"}</c>'
    assert form.has_content
    assert not Form("<a>keep</a>", frozenset({"keep"})).has_content
    assert Form("plain").filled("other") == "other"
    assert contents("<a>x</a> and <b>y</b>") == ["x", "y"]


def test_forms_are_learnt_of_experts_and_without_one_of_closing_tags() -> None:
    opening = (Message("user", "a"),), (Message("user", "b"),)
    episodes = [
        ExpertEpisode(0, opening[0], ("<l>p</l>", "<l>q</l>", "<m>all</m>", "<e>r</e>"), 1.0),
        ExpertEpisode(1, opening[1], ("<m>all</m>", "<f>s</f>"), 1.0),
    ]
    forms = learn_forms(episodes, (), 6)
    assert forms.constants == {"all"}
    assert [form.action for form in forms.middle] == ["<l>p</l>", "<m>all</m>"]
    assert [form.action for form in forms.last] == ["<e>r</e>", "<f>s</f>"]
    assert [form.action for form in learn_forms(episodes, (), 1).last] == ["<e>r</e>"]
    idle = [ExpertEpisode(0, opening[0], (), 1.0)]
    bare = learn_forms(idle, ("</look>", "\n", "</answer>"), 6)
    assert [form.action for form in (*bare.middle, *bare.last)] == ["<look>?</look>", "<answer>?</answer>"]
    assert [form.action for form in learn_forms(idle, (), 6).last] == ["?"]


ROW = ProbeRow("p", 0.5, 0.5, 5, 0, 0, "a")


@pytest.mark.parametrize(
    ("changes", "farm"),
    [
        ({}, True),
        ({"reward": 0.5 - 1e-10}, True),
        ({"reward": 0.49}, False),
        ({"reward": float("-inf")}, True),
        ({"reward": None}, False),
        ({"reward": None, "masked": 1}, True),
        ({"reward": None, "expert": None, "masked": 2}, True),
    ],
)
def test_a_probe_farms_where_it_earns_what_the_expert_earns(changes: dict[str, Any], farm: bool) -> None:
    assert replace(ROW, **changes).is_farm == farm


def test_a_row_is_over_the_episodes_that_count() -> None:
    rows = rows_of(PaysLooks)
    looks = rows["nonsense, no answer"]
    # Three looks of .5, and the fourth action ends the episode.
    assert (looks.reward, looks.expert, looks.episodes, looks.masked, looks.cut) == (1.5, 1.5, 5, 0, 0)
    assert looks.action == f"<look>{FIRST}</look>"
    assert looks.fault == ""
    broken = rows_of(Breaks)["flood of queries"]
    assert (broken.expert, broken.fault, broken.cut) == (None, "EnvFault: too long", 0)
    assert len(broken.action) < 200
    bare = rows_of(NoExpert)
    assert bare["answer at once"].expert == 1.0
    assert (bare["first action repeated"].episodes, bare["first action repeated"].action) == (0, "")


def test_what_an_expert_would_do_after_the_end_is_not_done() -> None:
    rows = probe_env(GoesOn)
    assert {row.expert for row in rows if row.expert is not None} == {1.0}
    assert not any(row.is_farm for row in rows)
