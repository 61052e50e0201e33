"""Collapse monitors: each warning fires on a made-up history of its own kind and on no healthy one."""

import pytest

from agentenv.trainers.loop.monitors import COLLAPSES, WATCHED, Metrics, warnings_of

HEALTHY: Metrics = dict(zip(WATCHED, (0.8, 0.9, 0.8, 20.0, 0.4, 0.5, 0.5), strict=True))


def history(changes: Metrics, *, before: int = 5, after: int = 5) -> list[Metrics]:
    """So many healthy steps, then so many with ``changes``."""
    return [HEALTHY] * before + [{**HEALTHY, **changes}] * after


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"entropy": 0.01}, "entropy fell to 0.010 nats"),
        ({"format_rate": 0.6}, "valid actions fell from 90% to 60%"),
        ({"answer_rate": 0.5}, "answered episodes fell from 80% to 50%"),
        ({"response_tokens": 45.0}, "responses grew from 20 to 45 tokens without more reward"),
        ({"zero_variance_share": 0.95}, "95% of the groups have equal rewards"),
        ({"reward_mean": 0.2}, "reward fell from 0.50 to 0.20"),
    ],
)
def test_each_sign_is_one_warning(changes: dict[str, float], sentence: str) -> None:
    (figure,) = set(changes)
    found = warnings_of(history(changes))
    assert list(found) == [figure]
    assert sentence in found[figure]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"reward_mean": 0.95, "zero_variance_share": 0.85, "entropy": 0.2},  # learning well
        {"response_tokens": 45.0, "reward_mean": 0.7},  # longer and better
        {"format_rate": 0.7, "answer_rate": 0.7, "reward_mean": 0.4},  # a dent
    ],
)
def test_a_healthy_run_is_left_alone(changes: dict[str, float]) -> None:
    assert warnings_of(history(changes, after=40)) == {}


@pytest.mark.parametrize("scale", [1.0, 10.0])  # of a reward: what the best episode earns
@pytest.mark.parametrize(
    ("early", "late", "seen"),
    [
        (0.3, 0.85, False),  # learned: sure, and right
        (0.3, 0.5, True),  # sure before the questions were learned
        (0.9, 0.9, True),  # sure from the start: nothing is tried, nothing is learned
        (0.9, 0.85, True),
        (0.0, 0.0, True),  # sure, and wrong
    ],
)
def test_certainty_is_a_sign_only_of_a_policy_that_has_not_learned(
    scale: float, early: float, late: float, seen: bool
) -> None:
    """Rewards of 0 or ``scale``, a share of which is earned; entropy and varied groups are gone at the end."""

    def step(share: float) -> dict[str, float]:
        return {"reward_mean": scale * share, "reward_std": scale * (share * (1 - share)) ** 0.5}

    sure = {"entropy": 0.01, "zero_variance_share": 0.95}
    found = warnings_of([{**HEALTHY, **step(early)}] * 5 + [{**HEALTHY, **sure, **step(late)}] * 5)
    assert set(found) == ({"entropy", "zero_variance_share"} if seen else set())


def test_a_negative_reward_that_rises_is_no_fall() -> None:
    steps = [{**HEALTHY, "reward_mean": -0.4}] * 5
    assert warnings_of([*steps, *[{**HEALTHY, "reward_mean": -0.3}] * 5]) == {}
    assert set(warnings_of([*steps, *[{**HEALTHY, "reward_mean": -0.7}] * 5])) == {"reward_mean"}


def test_one_bad_step_and_a_short_history_are_not_believed() -> None:
    assert warnings_of(history({"entropy": 0.01}, before=9, after=1)) == {}
    assert warnings_of(history({"entropy": 0.0}, before=4)) == {}


def test_an_entropy_that_no_step_reports_is_no_sign() -> None:
    """As under a tree's window, whose tokens are all sampled at temperatures of their own."""
    silent = {name: value for name, value in HEALTHY.items() if name != "entropy"}
    assert warnings_of([silent] * 12) == {}
    assert set(warnings_of([silent] * 5 + [{**silent, "reward_mean": 0.1}] * 5)) == {"reward_mean"}


@pytest.mark.parametrize("figure", [*WATCHED, "loss", "grad_norm", "rewarded_logprob"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_no_finite_number_is_a_sign_at_once(figure: str, value: float) -> None:
    broken = {**HEALTHY, figure: value}
    assert set(warnings_of([HEALTHY, broken])) == {figure}
    assert set(warnings_of([*[HEALTHY] * 12, broken])) == {figure}


def test_the_other_signs_are_seen_beside_and_after_it() -> None:
    """A step of NaN hides neither a fall of another figure nor, later on, one of its own."""
    broken = {**HEALTHY, "entropy": float("nan")}
    fallen = {**HEALTHY, "entropy": 0.01}
    assert set(warnings_of([*[HEALTHY] * 5, *[{**broken, "reward_mean": 0.2}] * 5])) == {
        "entropy",
        "reward_mean",
    }
    assert set(warnings_of([broken, *[HEALTHY] * 5, *[fallen] * 5])) == {"entropy"}


def test_signs_add_up() -> None:
    found = warnings_of(history({"entropy": 0.0, "reward_mean": 0.0, "answer_rate": 0.0}))
    assert set(found) == {"entropy", "answer_rate", "reward_mean"}


@pytest.mark.parametrize(
    ("late", "seen"), [({"rewarded_logprob": -0.9}, True), ({"rewarded_logprob": -0.7}, False), ({}, False)]
)
def test_rewarded_episodes_become_unlikely(late: dict[str, float], seen: bool) -> None:
    """From -.5 nats a token; steps without a rewarded episode say nothing."""
    early: Metrics = {**HEALTHY, "rewarded_logprob": -0.5}
    found = warnings_of([early, *[HEALTHY] * 4, *[HEALTHY] * 4, {**HEALTHY, **late}])
    assert set(found) == ({"rewarded_logprob"} if seen else set())


@pytest.mark.parametrize(
    ("reward", "score", "seen"),
    [(0.9, 0.5, True), (0.9, 0.59, True), (0.9, 0.61, False), (0.6, 0.2, False), (0.5, 0.5, False)],
)
def test_a_reward_without_a_score(reward: float, score: float, seen: bool) -> None:
    """From a reward of .5 and a dev score of .5: a rise of .4 wants at least .1 of score."""
    steps: list[Metrics] = [HEALTHY] * 4 + [{**HEALTHY, "dev_score": 0.5}]
    steps += [{**HEALTHY, "reward_mean": reward}] * 5
    assert warnings_of(steps) == {}  # one evaluation is none
    steps[-1] = {**steps[-1], "dev_score": score}
    assert set(warnings_of(steps)) == ({"dev_score"} if seen else set())


@pytest.mark.parametrize(("counts", "seen"), [((0, 0, 0, 0, 0), True), ((0, 0, 3, 0, 0), False), ((), False)])
def test_self_play_without_a_weak_kind_is_no_choice_by_failures(counts: tuple[int, ...], seen: bool) -> None:
    """Five steps without one say it; without the figure nothing is asked for by failures."""
    late: list[Metrics] = [{**HEALTHY, "weak_kinds": count} for count in counts] or [HEALTHY] * 5
    assert set(warnings_of([*[HEALTHY] * 5, *late])) == ({"weak_kinds"} if seen else set())
    assert "weak_kinds" not in COLLAPSES


def test_nothing_weak_is_said_after_five_steps() -> None:
    """It is compared with nothing, so that a run of fewer than ten steps is told as well."""
    nothing: list[Metrics] = [{**HEALTHY, "weak_kinds": 0}] * 9
    assert [set(warnings_of(nothing[:steps])) for steps in (4, 5, 9)] == [
        set(),
        {"weak_kinds"},
        {"weak_kinds"},
    ]


@pytest.mark.parametrize(("reward", "seen"), [(0.84, False), (0.86, True)])
def test_a_reward_that_catches_up_with_the_score_is_earned(reward: float, seen: bool) -> None:
    """The greedy score stands at .85 from the start, what is sampled rises from .5."""
    steps: list[Metrics] = [HEALTHY] * 4 + [{**HEALTHY, "dev_score": 0.85}]
    steps += [
        *[{**HEALTHY, "reward_mean": reward}] * 4,
        {**HEALTHY, "reward_mean": reward, "dev_score": 0.85},
    ]
    assert set(warnings_of(steps)) == ({"dev_score"} if seen else set())
