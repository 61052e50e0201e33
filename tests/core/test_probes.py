"""What probes of a reward earn, in environments whose rewards can be farmed in one way each."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from agentenv.core.env import Env
from agentenv.core.env_contract import run_check
from agentenv.core.grammar import earliest_block
from agentenv.core.probes import PROBES, ProbeRow, probe_env
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


@pytest.mark.parametrize(
    ("env", "farms"),
    [
        (PaysLooks, {"nonsense, no answer", "nonsense, then an answer", "first action repeated"}),
        (PaysSilence, {"silence", "random text", "nonsense, no answer", "first action repeated"}),
        (PaysLength, {"flood of queries"}),
        (PaysMention, {"everything as answer"}),
        (PaysForm, {"answer at once", "empty answer", "answer of another task", "expert, wrong answer"}),
        (NoExpert, set()),
    ],
)
def test_each_kind_of_farm_is_found_by_its_probes(env: type[Lookup], farms: set[str]) -> None:
    found = set(farms_of(env))
    assert found >= farms
    assert bool(found) == bool(farms)


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
    assert (rows["answer at once"].episodes, rows["answer at once"].is_farm) == (0, False)
    assert rows["silence"].reward == 0.0


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
