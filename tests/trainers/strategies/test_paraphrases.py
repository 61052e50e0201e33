"""Groups over paraphrases: who is asked what, and agreement by hand."""

import asyncio
from random import Random

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.types import Task
from agentenv.data.paraphrases import paraphrases_of
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.local_search import STOP, LocalSearch
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.strategies.paraphrases import ParaphraseStrategy, compared, group_similarity
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups

TASK = Task("q", "Where is Halvik?", ("Norland",), data={"paraphrases": ("In which land is Halvik?",)})


def test_agreement_counts_the_other_wordings_alone() -> None:
    """F1("new york", "new york city") = 2 (1) (2/3) / (5/3) = .8; equal answers to the same wording do not count."""
    answers = ["new york", "new york", "new york city", None]
    others = compared(["a", "a", "b", "b"], None, None, Random(0))
    assert others == [[2, 3], [2, 3], [0, 1], [0, 1]]
    assert group_similarity(answers, others) == pytest.approx([0.4, 0.4, 0.8, 0.0])
    assert group_similarity(["x", "x"], compared(["a", "a"], None, None, Random(0))) == [0.0, 0.0]


def test_the_approximation_compares_with_few_answers_and_is_unbiased() -> None:
    """Four wordings of three answers: of 9 others, 2 x 1 are drawn. The mean over draws is the mean over all 9.

    The likeness of an answer to the 9 others has a variance of at most 1/4, so that the mean of 4000 draws of 2 is within
    5 (1/2) / sqrt(8000) = .028 of it.
    """
    wordings = [wording for wording in "abcd" for _ in range(3)]
    answers = ["x", "x", "y", "x", "y", "y", "y", "y", "y", "x", "x", "x"]
    exact = group_similarity(answers, compared(wordings, None, None, Random(0)), "em_squad")
    assert exact[:3] == pytest.approx([4 / 9, 4 / 9, 5 / 9])
    rng, sums = Random(1), [0.0] * len(wordings)
    for _ in range(4000):
        drawn = compared(wordings, 2, 1, rng)
        assert all(len(places) == 2 for places in drawn)
        assert all(
            wordings[place] != own for own, places in zip(wordings, drawn, strict=True) for place in places
        )
        values = group_similarity(answers, drawn, "em_squad")
        sums = [total + value for total, value in zip(sums, values, strict=True)]
    assert [total / 4000 for total in sums] == pytest.approx(exact, abs=0.028)


def test_a_group_poses_its_paraphrases_by_turns_and_pays_agreement() -> None:
    answers = ["Norland", "Norland", "Rome", "Norland"]
    policy = ScriptedPolicy({f"e-{n}": [f"<answer>{answer}</answer>"] for n, answer in enumerate(answers)})
    config = RolloutConfig(turn_tokens=500, context_tokens=9999, stop=STOP)
    context = RolloutContext(policy, InlineFormat(policy.tokenizer), config, policy.tokenizer.decode)
    specs = [EpisodeSpec(LocalSearch(tasks=[TASK]), TASK, seed) for seed in range(4)]
    strategy = get_strategy("paraphrase", {"weight": 0.5})
    (played,) = asyncio.run(play_groups([specs], strategy, context))
    assert [t.task.question for t in played] == ["Where is Halvik?", "In which land is Halvik?"] * 2
    assert all(t.task.question in t.prompt[0].text for t in played)
    # Norland is like both answers of the other wording; Rome like none; the second wording half like {Norland, Rome}
    assert [t.info["strategy"]["agreement"] for t in played] == [[1.0], [0.5], [0.0], [0.5]]
    assert [t.reward for t in played] == [1.5, 1.25, 0.0, 1.25]
    assert [t.turns[-1].reward for t in played] == [1.5, 1.25, 0.0, 1.25]


def test_an_infrastructure_failure_is_no_disagreement() -> None:
    """Of three wordings one met a failure: the other two agree wholly, and a kappa of 1 never draws it."""
    wordings = ["a", "b", None]
    assert compared(wordings, None, None, Random(0)) == [[1], [0], []]
    assert all(compared(wordings, 1, 1, Random(seed)) == [[1], [0], []] for seed in range(8))
    policy = ScriptedPolicy({f"e-{n}": ["<answer>Norland</answer>"] for n in (0, 2, 3)})  # e-1: a fault
    context = RolloutContext(
        policy,
        InlineFormat(policy.tokenizer),
        RolloutConfig(turn_tokens=500, context_tokens=9999, stop=STOP),
        policy.tokenizer.decode,
    )
    specs = [EpisodeSpec(LocalSearch(tasks=[TASK]), TASK, seed) for seed in range(4)]
    (played,) = asyncio.run(play_groups([specs], ParaphraseStrategy(), context))
    assert [t.valid for t in played] == [True, False, True, True]
    assert [t.info["strategy"]["agreement"] for t in played] == [[1.0], [0.0], [1.0], [1.0]]


def test_options_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="weight=-1"):
        ParaphraseStrategy(weight=-1)
    with pytest.raises(ConfigurationError, match="wordings=0"):
        ParaphraseStrategy(wordings=0)
    with pytest.raises(ConfigurationError, match="answers=-1"):
        ParaphraseStrategy(answers=-1)
    with pytest.raises(UnknownName):
        ParaphraseStrategy(scorer="nothing")


def test_questions_of_one_hop_have_the_forms_of_their_relation() -> None:
    world = FictionalWorld.generate(WorldConfig(documents=200, questions=10, families=("lookup", "bridge")))
    for task in world.questions:
        forms = paraphrases_of(task)
        assert forms[0] == task.question
        assert len(forms) == (3 if task.data["hops"] == 1 else 1)
        assert all(task.data["path"][0]["entity"] in form for form in forms)
