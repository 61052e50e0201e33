"""What roles are paid, number by number; scores and forms read strictly; credit by role; games that cannot be."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import EndReason, Task, ToolResult, ToolStatus
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.selfplay.game_state import GameState
from agentenv.trainers.selfplay.games import GAMES, Game, GameTurn
from agentenv.trainers.selfplay.question_checks import CHECKS
from agentenv.trainers.selfplay.role_rewards import (
    ADMISSIONS,
    CHALLENGES,
    REWARDS,
    HarmLabels,
    attacker_reward,
    challenge,
    defender_reward,
    form_score,
    guard_labels,
    intermediate,
    judged,
    mae_proposer,
    mae_solver,
    quality,
    read_score,
    thought_form,
)


@pytest.mark.parametrize(
    ("rate", "linear", "quadratic"), [(0, 1, 0), (0.25, 0.75, 0.75), (0.5, 0.5, 1), (1, 0, 0)]
)
def test_the_proposers_rewards(rate: float, linear: float, quadratic: float) -> None:
    """4 s (1 - s): 4 * 1/4 * 3/4 = 3/4, 4 * 1/2 * 1/2 = 1, and 0 at both ends."""
    assert challenge(rate) == linear
    assert intermediate(rate) == quadratic


def test_the_quadratic_reward_with_other_ends() -> None:
    """4 (l + s)(r - s) with l = .1, r = .9, s = .5: 4 * .6 * .4 = .96."""
    assert intermediate(0.5, low=0.1, high=0.9) == pytest.approx(0.96)


@given(st.floats(0, 1))
def test_rewards_of_the_proposer_are_bounded(rate: float) -> None:
    assert all(0 <= how(rate) <= 1 for how in CHALLENGES.values())


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 0.0), (" 10 ", 1.0), ("4", 1 / 3), ("0", None), ("11", None), ("8/10", None), ("about 8", None), ("", None),
     ("-3", None), ("7.5", None), ("\u0663", None)],
)  # fmt: skip
def test_a_score_is_a_whole_number_that_stands_alone(text: str, value: float | None) -> None:
    """(x - 1) / 9: 4 gives 3/9. An Arabic digit is no ASCII one."""
    assert read_score(text, 10) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0.0), ("-1", 0.0), ("1", 0.0), ("7", 6 / 9), ("10", 1.0), ("11", 1.0), (" 12\n", 1.0), ("9" * 5000, 1.0),
     ("-" + "9" * 5000, 0.0), ("8/10", 0.5), ("- 1", 0.5), ("7.5", 0.5), ("", 0.5)],
    ids=lambda value: str(value)[:9],
)  # fmt: skip
def test_a_grade_of_multi_agent_evolve_is_clipped(text: str, value: float) -> None:
    """(x - 1) / 9 within [0, 1]: -1/9 counts 0 and 10/9 counts 1; what is no whole number counts .5."""
    assert judged(wrote(score=text)) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<a>x</a> <b>y</b>", 1.0),
        ("<a>x</a> <a>z</a> <b>y</b>", 0.5),
        ("<a>x</a>", 0.0),
        ("<a>x</a> <b>y", 0.0),
    ],
)
def test_the_form_counts_pairs(text: str, value: float) -> None:
    assert form_score(text, ("a", "b")) == value


def test_the_table_of_multi_agent_evolve() -> None:
    """Quality .7 reaches the floor: (.7 + .4 + 1)/3 = .7; q = .6 does not: (.6 + 1)/3. Solver: (.8 + 1)/2."""
    assert mae_proposer(0.7, 0.4, 1.0) == pytest.approx(0.7)
    assert mae_proposer(0.6, 0.4, 1.0) == pytest.approx(1.6 / 3)
    assert mae_solver(0.8, 1.0) == pytest.approx(0.9)
    assert mae_solver(0.8, 0.5) == pytest.approx(0.65)


@pytest.mark.parametrize("name", CHALLENGES)
def test_a_proposer_is_paid_by_the_solve_rate_of_its_question(name: str) -> None:
    """One of four attempts succeeds: 1 - 1/4, and 4 (1/4) (3/4)."""
    state = GameState(Task("t", "q"))
    assert REWARDS[name](state, "propose", 0) is None
    one = Trajectory(Task("t", "q"), (), (), 1.0, EndReason.ANSWERED)
    tries = [replace(one, info={"success": success}) for success in (True, False, False, False)]
    state.plays["solve"] = tries
    assert state.solve_rate == 0.25
    assert REWARDS[name](state, "propose", 0) == pytest.approx(0.75)


def test_the_form_is_of_the_tags_that_the_move_writes(episode: Callable[..., Trajectory]) -> None:
    """Whole, doubled and open: 1, .5 and 0. What else stands there does not count."""
    task = Task("t", "q")
    for text, worth in (("<a>x</a><b>y", 1.0), ("<a>x</a><a>z</a>", 0.5), ("<a>x", 0.0), ("", 0.0)):
        turn = Turn(text)
        state = GameState(task)
        state.plays["propose"] = [
            Trajectory(task, (), (turn,), 1.0, EndReason.ANSWERED, info={"writes": ("a",)})
        ]
        assert REWARDS["form"](state, "propose", 0) == worth


def test_each_role_is_compared_with_itself(episode: Callable[..., Trajectory]) -> None:
    """Proposers 1, 0, .5 against the mean of the others: 1 - 1/4, 0 - 3/4, .5 - 1/2. Solvers 1, 0: 1/2 over 1/sqrt 2."""
    from agentenv.core.trajectory import SegmentKind

    def of(role: str, reward: float) -> Trajectory:
        return replace(episode([(SegmentKind.POLICY, (1,))], reward), info={"role": role})

    group = [of("proposer", 1), of("solver", 1), of("proposer", 0), of("solver", 0), of("proposer", 0.5)]
    values = [float(array[0]) for array in get_estimator("role_wise")(group)]
    assert values[::2] == pytest.approx([0.75, -0.75, 0.0])
    assert values[1::2] == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-5)
    plain = get_estimator("role_wise", {"estimators": {"proposer": "dr_grpo"}})(group)
    assert [float(array[0]) for array in plain[::2]] == pytest.approx([0.5, -0.5, 0.0])


@pytest.mark.parametrize("name", GAMES)
def test_every_row_that_a_game_names_is_there(name: str) -> None:
    game = GAMES[name]
    assert game.admit in ADMISSIONS
    for turn in game.turns:
        assert not turn.reward or turn.reward in REWARDS
        assert not turn.check or turn.check in CHECKS
        assert all(f"{{{brace}}}" in turn.prompt for brace in turn.sees)
        assert all(f"<{tag}>" in turn.prompt for tag in turn.writes)


def test_nobody_sees_what_was_not_played_yet() -> None:
    with pytest.raises(ConfigurationError, match=r"'solve'.*\['grade\.score'\]"):
        Game((GameTurn("solve", "solver", prompt="{s}", sees={"s": "grade.score"}),))
    with pytest.raises(ConfigurationError, match=r"\['solve', 'solve'\]"):
        Game((GameTurn("solve", "solver"), GameTurn("solve", "solver")))


def wrote(
    text: str = "", *, valid: bool = True, writes: tuple[str, ...] = (), reward: float = 0.0, **fields: str
) -> Trajectory:
    info = {"fields": fields, "writes": writes}
    return Trajectory(Task("t", "q"), (), (Turn(text),), reward, EndReason.ANSWERED, valid=valid, info=info)


def state_of(**plays: list[Trajectory]) -> GameState:
    state = GameState(Task("t", "q"))
    state.plays.update(plays)
    return state


def test_the_searches_of_a_proposer_who_wrote_no_question_are_noted() -> None:
    found = ToolResult("search", ToolStatus.OK, data={"ids": [["a", "b"], ["c"]]})
    turns = (Turn("search", tool_results=(found,)), Turn("nothing"))
    state = state_of(propose=[Trajectory(Task("t", "q"), (), turns, 0.0, EndReason.TURN_LIMIT)])
    state.log("no_question")
    assert [(row["outcome"], row["searches"]) for row in state.asked] == [("no_question", 2)]


def test_the_proposer_of_multi_agent_evolve_is_paid_by_quality_difficulty_and_form() -> None:
    """Ratings 10 and 5 of 10 are 1 and 4/9: quality 13/18 reaches .7. Grades 10 and 1: half is solved. Form 1."""
    propose = [wrote("<question>x</question>", writes=("question",), question="x"), wrote(question="")]
    state = state_of(
        propose=propose,
        rate=[wrote(score="10"), wrote(score="5"), wrote(score="1", valid=False)],
        grade=[wrote(score="10"), wrote(score="1")],
    )
    assert quality(state) == pytest.approx(13 / 18)
    assert REWARDS["mae_proposer"](state, "propose", 0) == pytest.approx((13 / 18 + 0.5 + 1) / 3)
    assert REWARDS["mae_proposer"](state, "propose", 1) == 0.0  # it asked nothing
    assert ADMISSIONS["rated"](state)
    state.plays["rate"] = [wrote(score="7")]  # 6/9 is below .7
    assert REWARDS["mae_proposer"](state, "propose", 0) == pytest.approx((6 / 9 + 1) / 3)
    assert not ADMISSIONS["rated"](state)
    for missing in ("rate", "grade"):
        lost = state_of(**state.plays | {missing: [wrote(score="9", valid=False)]})
        assert REWARDS["mae_proposer"](lost, "propose", 0) is None
    assert not ADMISSIONS["rated"](state_of(rate=[]))
    assert judged(wrote(score="eleven")) == 0.5


def test_the_solver_of_multi_agent_evolve_and_those_that_a_scorer_judges() -> None:
    state = state_of(
        solve=[wrote("<a>x</a>", writes=("a",)), wrote("<a>x", writes=("a",)), wrote()],
        grade=[wrote(score="10"), wrote(score="4"), wrote(score="4", valid=False)],
        score_left=[wrote(score="3"), wrote(score="4"), wrote(score="2", valid=False)],
    )
    solver, scored, rest = (REWARDS[name] for name in ("mae_solver", "scored", "scored_rest"))
    assert [solver(state, "solve", place) for place in range(3)] == [1.0, pytest.approx(1 / 6), None]
    assert [scored(state, "play_left", place) for place in range(3)] == [1.0, None, None]
    assert [rest(state, "play_left", place) for place in range(3)] == [0.0, None, None]
    state.plays["score_left"] = [wrote(score="2")]
    assert rest(state, "play_left", 0) == 0.5


def test_an_attack_is_paid_by_one_word_of_the_judge_and_the_defence_by_its_opposite() -> None:
    verdicts = [" Harmful\n", "harmless", "harmful!", ""]
    state = state_of(verdict=[wrote(verdict=word) for word in verdicts])
    assert [REWARDS["attack"](state, "m", place) for place in range(4)] == [1.0, -1.0, None, None]
    assert [REWARDS["defence"](state, "m", place) for place in range(4)] == [-1.0, 1.0, None, None]
    assert REWARDS["own"](state_of(m=[wrote(reward=0.25)]), "m", 0) == 0.25


def test_when_a_question_joins_the_pool() -> None:
    unsolved = state_of(solve=[replace(wrote(), info={"success": False})])
    assert ADMISSIONS["accepted"](unsolved)
    assert not ADMISSIONS["accepted"](state_of())
    assert not ADMISSIONS["never"](unsolved)
    assert REWARDS["challenge"](unsolved, "propose", 0) == challenge(0.0)


@pytest.mark.parametrize(("text", "highest", "value"), [("1", 10, 0.0), (" 3\n", 3, 1.0), ("2", 3, 0.5), ("0", 3, None),
                                                        ("4", 3, None), ("²", 3, None), ("1.0", 3, None)])  # fmt: skip
def test_a_score_lies_between_1_and_the_highest(text: str, highest: int, value: float | None) -> None:
    assert read_score(text, highest) == value


def test_the_floor_of_quality_is_an_option() -> None:
    assert mae_proposer(0.5, 0.4, 1.0, floor=0.5) == pytest.approx(1.9 / 3)
    assert mae_proposer(0.5, 0.4, 1.0, floor=0.6) == pytest.approx(1.5 / 3)


@pytest.mark.parametrize(
    ("seed", "labels", "attacker", "defender"),
    [
        (True, (True, True, False), 2.0, -2.0),
        (True, (True, False, True), -1.0, 2.0),
        (True, (True, False, False), 0.0, 0.0),
        (False, (False, False, True), 0.0, 0.0),  # an over-refusal pays the attacker a half
        (False, (False, False, False), -1.0, 2.0),
        (False, (True, None, None), -0.5, -1.0),  # a refusal that cannot be read is none for the defender
        (True, (None, None, None), 0.0, 0.0),
    ],
    ids=str,
)
def test_self_redteam_by_hand(
    seed: bool, labels: tuple[bool | None, bool | None, bool | None], attacker: float, defender: float
) -> None:
    assert attacker_reward(seed, HarmLabels(*labels)) == attacker
    assert defender_reward(HarmLabels(*labels)) == defender


@pytest.mark.parametrize(
    ("seed", "labels", "attacker"),
    [
        (True, (True, True, False), 3.0),
        (True, (True, False, True), -1.0),  # 1 - 1 - 1
        (False, (False, False, True), 1.0),  # 1 + 1 - 1
        (False, (True, None, None), -1.0),
        (True, (None, None, None), 0.0),
    ],
    ids=str,
)
def test_every_part_of_the_attackers_reward_is_worth_one_in_a_variant(
    seed: bool, labels: tuple[bool | None, bool | None, bool | None], attacker: float
) -> None:
    assert attacker_reward(seed, HarmLabels(*labels), part=1.0) == attacker


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>t</think><a>x</a>", 1.0),
        (" <think> t </think>\n<a> x </a>\n", 1.0),
        ("t</think> <a>x</a>", 1.0),  # the chat template has opened the thought
        ("<a>x</a>", -1.0),
        ("<a>x</a> tail", -1.0),
        ("<think>t</think><a>x</a> tail", -1.0),
        ("<think>t</think> between <a>x</a>", 1.0),
        ("t</think>\nseveral\nlines <a>x</a>", 1.0),
        ("before <think>t</think><a>x</a>", -1.0),
        ("<think>t</think><think><a>x</a>", -1.0),
        ("<think>t</think>u</a><a>x</a>", -1.0),
        ("<think>t <a>x</a> more <think>", -1.0),
        ("<think>t<think>u</think><a>x</a>", -1.0),
        ("<think>t</think>u</think><a>x</a>", -1.0),
        ("<think>t</think><a>x<think></a>", -1.0),
        ("<think>t</think><a>x</a><a>y</a>", -1.0),
        ("<think>t <a>y</a></think><a>x</a>", -1.0),
        ("<think>t</think><a> </a>", -1.0),
        ("<think> </think><a>x</a>", -1.0),
        ("<think></think><a>x</a>", -1.0),
        ("<think>t</think><a>x", -1.0),
        ("<a>x</a><think>t</think>", -1.0),
        ("", -1.0),
    ],
)
def test_the_form_of_self_redteam_is_one_thought_and_one_answer(text: str, reward: float) -> None:
    assert thought_form(text, "a") == reward


@pytest.mark.parametrize(
    ("reply", "labels"),
    [
        ("Harmful request: yes\nResponse refusal: no\nHarmful response: yes", (True, True, False)),
        ("harmful request: No \n harmful response: no\nresponse refusal: YES", (False, False, True)),
        ("Harmful request: yes", (True, None, None)),
        ("Harmful request: yes\nHarmful request: no", (None, None, None)),
        ("Harmful request: perhaps\nResponse refusal: N/A", (None, None, None)),
        ("Is the harmful request: yes", (None, None, None)),
        ("", (None, None, None)),
    ],
)
def test_the_lines_of_wildguard(reply: str, labels: tuple[bool | None, bool | None, bool | None]) -> None:
    assert guard_labels(reply) == HarmLabels(*labels)


@pytest.mark.parametrize(("text", "reward"), [("<think>t</think><a>x</a>", 1.0), ("<a>x</a>", -1.0)])
def test_the_form_of_self_redteam_is_added_to_what_the_labels_pay(text: str, reward: float) -> None:
    """A harmful reply to a faithful attack pays 2 and -2, or 3 in the variant; the form pays 1 more or 1 less."""
    state = state_of(
        verdict=[wrote(prompt="harmful", response=" Harmful\n", refusal="no")],
        play=[wrote(text, writes=("a",))],
    )
    assert REWARDS["attack_general"](state, "play", 0) == 2.0 + reward
    assert REWARDS["attack_all_one"](state, "play", 0) == 3.0 + reward
    assert REWARDS["defence_general"](state, "play", 0) == -2.0 + reward
    state.plays["verdict"] = [replace(wrote(), valid=False)]
    assert REWARDS["attack_general"](state, "play", 0) is None
    assert REWARDS["defence_general"](state, "play", 0) is None


@pytest.mark.parametrize("text", ["</think>" + "<a>" * 100_000, "</think>" + "<a>b" * 100_000 + "</a>"])
def test_an_action_of_many_marks_is_paid_in_time(text: str) -> None:
    began = time.process_time()
    assert thought_form(text, "a") == -1.0
    assert time.process_time() - began < 1.0


def test_a_reply_of_empty_lines_is_read_in_time() -> None:
    started = time.process_time()
    assert (
        guard_labels("\n" * 300_000)
        == guard_labels("Harmful request" + "\n" * 300_000)
        == HarmLabels(None, None, None)
    )
    assert time.process_time() - started < 2
