"""VM-MCTS: its rule by hand, what it keeps, equal actions, faults of a continuation, environments that cannot go back."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import Completion, EndReason, Sampling, Task
from agentenv.envs.calculator import Calculator
from agentenv.errors import CheckpointMismatch, ConfigurationError, PolicyFault, SnapshotRefused
from agentenv.policies.fakes import ByteTokenizer, random_policy
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.scripted import complete
from agentenv.policies.value_model import features_of, save_value_model
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.value_training import least_squares
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups
from agentenv.trainers.strategies.value_records import STATES, Expansion, state_records
from agentenv.trainers.strategies.value_search import uct

TOKENIZER = ByteTokenizer()
TASK = Task("sum", "2 * 3 - 1", ("5",))
TURN = (1 << 52) - 1
"""The bits of a seed of an episode with the seed 0 that say which turn it is; those above say which attempt."""


def call(expression: str) -> str:
    return f'<tool_call>{{"name": "calculate", "arguments": {{"expression": "{expression}"}}}}</tool_call>'


FIRST = [call("2 * 3"), call("2 * 3 - 1"), call("2 + 3")]
SHOWN = {"2 * 3": "6", "2 * 3 - 1": "5", "2 + 3": "5"}


def test_the_rule_by_hand() -> None:
    """.5 + .2 sqrt((1 + ln 5)/1.1) = .5 + .2 * 1.540200."""
    assert uct(0.5, 1, 5, exploration=0.2, smoothing=0.1) == pytest.approx(0.808040, abs=1e-6)
    assert uct(0.5, 3, 1, exploration=0.0, smoothing=0.1) == 0.5


@pytest.fixture(scope="module")
def value(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A value model that knows how good the calls are: only "2 * 3 - 1" is; and likes the answer 5 in any case."""
    goodness = dict(zip(SHOWN, (0.3, 0.9, 0.1), strict=True))
    states = {expression: (good, good, good - 0.1) for expression, good in goodness.items()}
    return value_model(tmp_path_factory.mktemp("value"), states)


def value_model(folder: Path, states: Mapping[str, tuple[float, float, float]]) -> str:
    """A value model by expression: of the state after the call, and of the episode that then answers 5, or 6."""
    random_policy(folder / "policy", [TASK.question, *FIRST], spread=0.5)
    spec = f"hf:{folder / 'policy'}"
    policy = make_policy(spec)
    texts: dict[tuple[tuple[str, str], ...], float] = {(): 0.3}
    for expression, (after, five, six) in states.items():
        step = (call(expression), shown_after(expression))
        texts |= {(step,): after, (step, ("5", "")): five, (step, ("6", "")): six}
    rows = [features_of(policy, [("", TASK.question), *text])[-1] for text in texts]
    save_value_model(
        folder / "v.safetensors",
        spec,
        *least_squares(np.stack(rows), np.array([*texts.values()]), np.full(18, 1e-9)),
    )
    return str(folder / "v.safetensors")


def shown_after(expression: str) -> str:
    """What the environment shows after a call."""
    env = Calculator()
    env.reset(seed=0, options={"task": TASK})
    step = env.step(call(expression))
    return "".join(message.text for message in step.observation)


class Branching:
    """Writes in the first turn what the attempt says, and then the answer that the tool gave, or a wrong one."""

    version = 0
    tokenizer = TOKENIZER

    def __init__(self, first: Sequence[str], fails: str = "") -> None:
        self.first, self.fails, self.asked = first, fails, 0
        self.answered: list[str] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.asked += 1
        turn, attempt = sampling.seed & TURN, sampling.seed >> 52
        if turn == 0:
            return complete(self.first[attempt % len(self.first)], TOKENIZER, sampling)
        called = TOKENIZER.decode(prompt_ids).rpartition('"expression": "')[2].partition('"')[0]
        if called == self.fails:
            raise PolicyFault("gone")
        self.answered.append(called)
        return complete(SHOWN[called], TOKENIZER, sampling)

    def release(self, episode: str) -> None: ...


def searched(value: str, policy: Any, env: Calculator | None = None, **options: Any) -> Trajectory:
    settings = RolloutConfig(context_tokens=4000, turn_tokens=500, temperature=0.0)
    context = RolloutContext(policy, InlineFormat(TOKENIZER), settings, TOKENIZER.decode)
    strategy = get_strategy("vm_mcts", {"value": value} | options)
    spec = EpisodeSpec(env or Calculator(), TASK, 0, "g")
    ((played,),) = asyncio.run(play_groups([[spec]], strategy, context))
    return played


def test_the_complete_episode_with_the_highest_value_is_kept(value: str) -> None:
    policy = Branching(FIRST)
    played = searched(value, policy, iterations=1, samples=3)
    assert (played.turns[0].action, played.turns[1].action, played.reward) == (FIRST[1], "5", 1.0)
    assert policy.asked == 6
    figures = played.info["strategy"]
    assert (figures["search_episodes"], figures["search_states"]) == (3, 3)
    assert figures["sampled_tokens"] == 3 + sum(map(len, FIRST)) + 6  # each turn ends with a mark


def test_a_worse_answer_of_the_environment_does_not_count(value: str) -> None:
    """No reward is looked at: where the value model prefers the wrong call, the wrong answer is given."""
    played = searched(value, Branching([FIRST[0], FIRST[2]]), iterations=1, samples=2)
    assert (played.turns[0].action, played.turns[1].action, played.reward) == (FIRST[0], "6", 0.0)


def test_the_second_iteration_goes_on_from_the_best_first_action(value: str) -> None:
    """Three complete episodes, then as many second turns from the state after the call with the highest value."""
    policy = Branching(FIRST)
    played = searched(value, policy, iterations=2, samples=3)
    assert policy.asked == 6 + 3
    assert played.info["strategy"]["search_states"] == 4  # the answers are one action
    # Until all ends are known.
    later = searched(value, Branching(FIRST), iterations=50, samples=3, exploration=9.0)
    assert later.info["strategy"]["search_episodes"] == 3 * 4


def test_an_outcome_model_is_asked_about_complete_episodes(tmp_path: Path) -> None:
    """After "2 * 3" much is expected, and its answer 6 is worth nothing; the answer 5 of the other is worth .8.

    By its states the model goes on from the first call, by its outcomes from the second.
    """
    states = {"2 * 3": (0.9, 0.0, 0.0), "2 * 3 - 1": (0.2, 0.8, 0.1), "2 + 3": (0.1, 0.1, 0.1)}
    model = value_model(tmp_path, states)
    for scores, expected in (("states", [3, 1]), ("outcomes", [1, 3])):
        policy = Branching(FIRST[:2])
        played = searched(model, policy, iterations=2, samples=2, scores=scores)
        assert [policy.answered.count(call) for call in ("2 * 3", "2 * 3 - 1")] == expected
        assert played.turns[-1].action == "5"


def test_only_so_many_states_stay_open(value: str) -> None:
    policy = Branching(FIRST)
    searched(value, policy, iterations=50, samples=3, children=1)
    assert policy.asked == 6 + 3


class Slow(Branching):
    """Notes how many ask at the same time, and of which episodes something is kept."""

    asking = most = kept_most = 0

    def __init__(self, first: Sequence[str]) -> None:
        super().__init__(first)
        self.kept: set[str | None] = set()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.asking += 1
        self.most = max(self.most, self.asking)
        self.kept.add(episode)
        self.kept_most = max(self.kept_most, len(self.kept))
        for _ in range(50):  # of a busy machine calls overlap only if the first one waits for the others
            if self.most >= 3:
                break
            await asyncio.sleep(0.01)
        self.asking -= 1
        return await super().generate(prompt_ids, sampling, episode=episode)

    def release(self, episode: str) -> None:
        self.kept.discard(episode)


class Counted(Calculator):
    """Counts its forks that are open."""

    open: ClassVar[set[int]] = set()
    made: ClassVar[list[int]] = []

    def fork(self, n: int = 1) -> list[Self]:
        forks = super().fork(n)
        for twin in forks:
            twin.number = len(self.made)  # type: ignore[attr-defined]
            self.made.append(len(self.made))
            self.open.add(self.made[-1])
        return forks

    def close(self) -> None:
        self.open.discard(getattr(self, "number", -1))
        super().close()


def test_continuations_of_a_state_are_played_at_once_and_no_fork_stays_open(value: str) -> None:
    policy = Slow(FIRST)
    together = searched(value, policy, Counted(), iterations=4, samples=3)
    assert policy.most == policy.kept_most == 3
    assert policy.kept == set()
    assert len(Counted.made) > 6
    assert Counted.open == set()
    assert together.segments == searched(value, Branching(FIRST), iterations=4, samples=3).segments


def test_it_comes_out_the_same_again(value: str) -> None:
    first, again = (searched(value, Branching(FIRST), iterations=6) for _ in range(2))
    assert (first.segments, first.info, first.id) == (again.segments, again.info, again.id)


def test_a_fault_of_one_continuation_leaves_the_others(value: str) -> None:
    played = searched(value, Branching(FIRST, fails="2 * 3 - 1"), iterations=1, samples=3)
    assert (played.valid, played.turns[0].action) == (True, FIRST[0])
    lost = searched(value, Branching(FIRST[:1], fails="2 * 3"), iterations=3, samples=2)
    assert (lost.valid, lost.end_reason) == (False, EndReason.POLICY_FAULT)


class Refusing(Calculator):
    """Cannot be forked as it stands."""

    def fork(self, n: int = 1) -> list[Self]:
        raise SnapshotRefused("threads")


class Stuck(Calculator):
    """Fails when it is forked."""

    def fork(self, n: int = 1) -> list[Self]:
        raise RuntimeError("stuck")


def test_a_start_that_cannot_be_forked_is_played_once(value: str) -> None:
    policy = Branching([FIRST[1]])
    played = searched(value, policy, Refusing())
    assert (policy.asked, played.reward) == (2, 1.0)


def test_an_environment_that_fails_to_fork_ends_the_search(value: str) -> None:
    policy = Branching([FIRST[1]])
    played = searched(value, policy, Stuck())
    assert (policy.asked, played.valid, played.end_reason) == (0, False, EndReason.ENV_FAULT)


def test_a_prompt_that_does_not_fit_is_no_episode(value: str) -> None:
    settings = RolloutConfig(context_tokens=4, turn_tokens=4, temperature=0.0)
    policy: Any = Branching(FIRST)
    context = RolloutContext(policy, InlineFormat(TOKENIZER), settings, TOKENIZER.decode)
    strategy = get_strategy("vm_mcts", {"value": value})
    ((played,),) = asyncio.run(play_groups([[EpisodeSpec(Calculator(), TASK, 0, "g")]], strategy, context))
    assert not played.valid


# The training phase.


def test_a_continuation_is_worth_its_reward_where_the_verifier_decides() -> None:
    """The three calls earn 0, 1 and 1: the start is worth 2/3, and of each complete episode the reward is known."""
    played = searched("verifier", Branching(FIRST), iterations=1, samples=3)
    assert played.reward == 1.0
    records = played.info[STATES]
    assert [record["targets"] for record in records] == [
        {0: pytest.approx(2 / 3), 2: 0.0},
        {2: 1.0},
        {2: 1.0},
    ]
    pieces = [tuple(record["pieces"]) for record in records]
    assert pieces == [
        (("", TASK.question), (call(e), shown_after(e)), (answer, "")) for e, answer in SHOWN.items()
    ]


def test_sums_and_visits_go_to_the_states_before() -> None:
    """Then three more from the state after a call worth 1, all of them right: 5 of 6 at the start, 4 of 4 there."""
    played = searched("verifier", Branching(FIRST), iterations=2, samples=3, exploration=0.0)
    first, *_, last = played.info[STATES]
    assert first["targets"] == {0: pytest.approx(5 / 6), 2: 0.0}
    assert last["targets"] == {1: 1.0}  # the complete episodes from there are known already
    assert last["pieces"][1][0] in FIRST[1:]
    assert len(played.info[STATES]) == 4
    # The whole tree: three calls, of which two are right, and an answer to each, whatever is chosen how often.
    whole = searched("verifier", Branching(FIRST), iterations=60, samples=3, exploration=9.0)
    targets = [record["targets"] for record in whole.info[STATES]]
    assert sorted(one[1] for one in targets if 1 in one) == [0.0, 1.0, 1.0]


def test_a_continuation_that_failed_says_nothing() -> None:
    """Without the second, 0 and 1 are left."""
    played = searched("verifier", Branching(FIRST, fails="2 * 3 - 1"), iterations=1, samples=3)
    assert [record["targets"] for record in played.info[STATES]] == [{0: 0.5, 2: 0.0}, {2: 1.0}]
    assert played.info["strategy"]["search_states"] == 2
    lost = searched("verifier", Branching(FIRST[:1], fails="2 * 3"), iterations=1, samples=2)
    assert not lost.valid
    assert lost.info[STATES] == []


def test_equal_episodes_are_one_with_their_mean_reward() -> None:
    def ended(action: str, reward: float) -> Trajectory:
        turns = (Turn(action, (), (), reward, True),)
        return Trajectory(TASK, (), turns, reward, EndReason.ANSWERED)

    expansion = Expansion(0, 0.25, (ended("a", 1.0), ended("b", 0.0), ended("a", 0.0)))
    assert state_records("Q", [expansion]) == [
        {"pieces": [("", "Q"), ("a", "")], "targets": {0: 0.25, 1: 0.5}},
        {"pieces": [("", "Q"), ("b", "")], "targets": {1: 0.0}},
    ]


def test_an_evaluation_may_not_choose_by_rewards() -> None:
    words = ["--evaluation.strategy", "vm_mcts", "--evaluation.strategy_options.value"]
    override(TrainConfig(), [*words, "tiny"])
    with pytest.raises(ConfigurationError, match=r"'vm_mcts'.*'verifier'"):
        override(TrainConfig(), [*words, "verifier"])


@pytest.mark.parametrize(
    "options",
    [
        {"iterations": 0},
        {"samples": 0},
        {"children": 0},
        {"iterations": 500, "samples": 3},
        {"exploration": -0.1},
        {"smoothing": 0.0},
        {"temperature": 0.0},
        {"exploration": float("nan")},
        {"value": ""},
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        get_strategy("vm_mcts", options)


def test_a_value_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="gone"):
        searched(str(tmp_path / "gone"), Branching(FIRST))
