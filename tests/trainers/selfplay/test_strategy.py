"""Self-play by written policies: whole games of every kind, what each role is shown, what it is paid, and what is refused.

Expected figures are worked out by hand beside each game.
"""

import asyncio
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Origin, Trajectory
from agentenv.core.types import Completion, Document, Sampling, Task
from agentenv.envs.search.local_search import STOP, LocalSearch
from agentenv.envs.search.self_play import SearchSolver
from agentenv.errors import ConfigurationError, PolicyFault, RetrieverFault, UnknownName
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import complete
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.trainers.selfplay.game_state import fitting
from agentenv.trainers.selfplay.question_checks import signature
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import check_tasks, get_strategy, play_groups

TOKENIZER = ByteTokenizer()
DOCUMENTS = (
    Document("a", "Ada Guild", "Ada Guild was founded in 1961. Ada Guild is based in Pobra Bay."),
    Document("b", "Pobra Bay", "Pobra Bay lies in the region of Kovim. The mayor of Pobra Bay is Rug Zat."),
    Document("c", "Kovim Cup", "Kovim Cup had 300 guests. Kovim Cup was won by Rug Zat."),
    Document("d", "Rug Zat", "Rug Zat was born in 1930."),
)
TOPICS = tuple(Task(f"topic-{d.id}", d.title) for d in DOCUMENTS)
PROPOSAL = (
    "<search>Ada Guild</search>",
    "<question>Where is Ada Guild based?</question><answer>Pobra Bay</answer>",
)
RIGHT, WRONG = "<answer>Pobra Bay</answer>", "<answer>Kovim</answer>"
Script = Callable[[str, int, int, str], str]
"""From move, place, turn and what it was shown to what is written."""


class Roles:
    """Writes what the script says; remembers what each move was shown."""

    version = 0
    tokenizer = TOKENIZER

    def __init__(self, script: Script) -> None:
        self.script = script
        self.turns: dict[str, int] = {}
        self.shown: dict[str, list[str]] = {}

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        assert episode is not None
        _, place, _, move = episode.rsplit("-", 3)
        turn = self.turns.get(episode, 0)
        self.turns[episode] = turn + 1
        text = TOKENIZER.decode(prompt_ids)
        self.shown.setdefault(move, []).append(text)
        return complete(self.script(move, int(place), turn, text), TOKENIZER, sampling)

    def release(self, episode: str) -> None: ...

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [0.0] * len(ids)


def game(
    policy: Any,
    slots: int = 4,
    *,
    setup: dict[str, Any] | None = None,
    chat: Any = None,
    seed: int = 0,
    topic: Task = TOPICS[0],
    context_tokens: int = 8000,
    **options: Any,
) -> list[Trajectory]:
    """One game, about Ada Guild if nothing else is said."""
    specs = [
        EpisodeSpec(
            SearchSolver(tasks=TOPICS, retriever=InMemoryRetriever(DOCUMENTS), k=1, setup=setup),
            topic,
            seed + i,
            "g",
        )
        for i in range(slots)
    ]
    config = RolloutConfig(context_tokens=context_tokens, turn_tokens=2000, stop=STOP)
    context = RolloutContext(policy, chat or InlineFormat(TOKENIZER), config, TOKENIZER.decode, name="step-1")
    return asyncio.run(
        play_groups([specs], get_strategy("self_play", {"searches": (1, 1)} | options), context)
    )[0]


def ssp(solvers: Sequence[str] = (RIGHT, RIGHT, WRONG, WRONG), **moves: Any) -> Script:
    """A proposer with ``PROPOSAL``, a verifier and a guesser that answer right and wrong, and the given solvers."""
    written: dict[str, Any] = {
        "propose": PROPOSAL,
        "verify": (RIGHT,),
        "guess": (WRONG,),
        "compete": (RIGHT,),
    } | moves

    def script(move: str, place: int, turn: int, shown: str) -> str:
        return solvers[place] if move == "solve" else written[move][turn]

    return script


def by_role(played: Sequence[Trajectory]) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = {}
    for trajectory in played:
        rewards.setdefault(trajectory.info["role"], []).append(trajectory.reward)
    return rewards


def figures(played: Sequence[Trajectory]) -> dict[str, Any]:
    return dict(played[0].info["strategy"])


def test_half_solved_pays_the_proposer_half() -> None:
    """Two of four attempts are right: s = 1/2, so 1 - s = 1/2; a right attempt is paid 1, a wrong one 0."""
    played = game(Roles(ssp()))
    assert by_role(played) == {"proposer": [0.5], "solver": [1.0, 1.0, 0.0, 0.0]}
    assert {t.group_id for t in played} == {"step-1/proposer", "g"}
    assert figures(played) | {"sampled_tokens": 0} == {
        "games": 1, "proposals": 1, "accepted": 1, "solve_rate": [0.5], "sampled_tokens": 0,
        "reward_proposer": [0.5], "reward_solver": [1.0, 1.0, 0.0, 0.0],
    }  # fmt: skip
    assert [t.turns[-1].reward for t in played] == [t.reward for t in played]


def test_the_quadratic_reward() -> None:
    """One of four: 4 * 1/4 * 3/4 = 3/4. All of four: 0."""
    one = game(Roles(ssp((RIGHT, WRONG, WRONG, WRONG))), reward="intermediate")
    assert by_role(one)["proposer"] == [0.75]
    assert by_role(game(Roles(ssp((RIGHT,) * 4)), reward="intermediate"))["proposer"] == [0.0]


def test_a_penalised_attempt_is_no_success() -> None:
    """D11: eleven opening tags leave a quarter of the reward; the proposer is paid for four failures of four."""
    spam = "<answer>" * 11 + "Pobra Bay</answer>"
    played = game(Roles(ssp((spam, WRONG, WRONG, WRONG))))
    assert by_role(played) == {"proposer": [1.0], "solver": [0.25, 0.0, 0.0, 0.0]}


def test_the_verifier_sees_what_the_proposer_saw_among_noise_and_nothing_else() -> None:
    roles = Roles(ssp())
    game(roles, noise=2)
    (shown,) = roles.shown["verify"]
    assert (
        shown.count("(Title: Ada Guild) Ada Guild was founded in 1961. Ada Guild is based in Pobra Bay.") == 1
    )
    assert 2 <= shown.count("(Title: ") <= 3  # two strays, one of which may be the page itself
    assert "Question: Where is Ada Guild based?" in shown
    assert all("Where is" in text and "1961" not in text for text in roles.shown["solve"])
    alone = Roles(ssp())
    game(alone, noise=0)
    assert alone.shown["verify"][0].count("(Title: ") == 1


def test_ssp_refuses_one_search_and_takes_two_whatever_was_asked_for() -> None:
    """The published filter refuses where ``len(search_terms) <= 1`` and does not look at the number that was asked for."""
    two = ("<search>Pobra Bay</search>", *PROPOSAL)
    published: dict[str, Any] = {"searches": (3, 3), "rules": {"searches": 2}}
    assert figures(game(Roles(ssp(propose=two)), **published))["accepted"] == 1
    assert figures(game(Roles(ssp()), **published))["refused_few_searches"] == 1
    assert figures(game(Roles(ssp(propose=two)), searches=(3, 3)))["refused_few_searches"] == 1


def test_a_seed_says_how_many_searches_its_proposer_is_asked_for() -> None:
    """As in SSP's data, where each answer comes with its number; the strategy draws one for the other seeds alone."""
    seed = replace(TOPICS[0], answers=("Pobra Bay",), data={"searches": 2})
    roles = Roles(ssp())
    assert figures(game(roles, topic=seed, searches=(1, 1)))["refused_few_searches"] == 1
    assert "at least 2 times" in roles.shown["propose"][0]
    assert "The answer has to be: Pobra Bay" in roles.shown["propose"][0]


@pytest.mark.parametrize(("number", "fewest"), [(0, 1), ("2", 1), (True, 1), (1.5, 1), (1, 2)])
def test_a_number_of_searches_that_nobody_could_keep_is_refused_before_the_run(
    number: Any, fewest: int
) -> None:
    strategy = get_strategy("self_play", {"searches": (2, 2), "rules": {"searches": fewest}})
    with pytest.raises(ConfigurationError, match=f"'t' asks.*{number!r}.*{fewest}"):
        check_tasks(strategy, [TOPICS[0], Task("t", "Ada Guild", data={"searches": number})])
    check_tasks(
        get_strategy("self_play", {"game": "mae", "checks": ()}), [Task("t", "x", data={"searches": 0})]
    )


def test_what_a_role_writes_brings_nothing_else_into_the_prompt_of_another() -> None:
    """A message that holds the name of the reply in braces is shown as it stands, and so is a question."""
    written = {"attack": "<think>t</think><message>say {reply}</message>", "defend": "<reply>secret</reply>"}
    roles = Roles(lambda move, *_: written.get(move, "<verdict>harmless</verdict>"))
    game(roles, 1, game="red_team", checks=())
    (shown,) = roles.shown["verdict"]
    assert "Message: say {reply}\nReply: secret\n" in shown


def test_a_verifier_that_searches_finds_what_the_proposer_saw_and_against_the_corpus_all_of_it() -> None:
    """It looks for Ada Guild, which the proposer saw, and for Kovim Cup, which it did not; then answers right."""
    looks = ("<search>Ada Guild</search>", "<search>Kovim Cup</search>", RIGHT)
    roles = Roles(ssp(verify=looks, compete=looks))
    options: dict[str, Any] = {"verifier": "searches", "checks": ("verify", "compete"), "noise": 0}
    played = game(roles, prompts={"verify": "Check: {question}"}, **options)
    assert figures(played)["accepted"] == 1
    opening, first, second = roles.shown["verify"]
    assert "Check: Where is Ada Guild based?" in opening
    assert "(Title: " not in opening
    assert (
        first.count("(Title: Ada Guild) Ada Guild was founded in 1961. Ada Guild is based in Pobra Bay.") == 1
    )
    assert "(Title: Kovim Cup)" not in second
    assert "(Title: Kovim Cup)" in roles.shown["compete"][2]
    wrong = (*looks[:2], WRONG)
    assert figures(game(Roles(ssp(verify=wrong)), **options))["refused_unanswerable"] == 1
    assert figures(game(Roles(ssp(verify=looks, compete=wrong)), **options))["refused_ambiguous"] == 1


def test_a_verifier_has_to_be_sure_by_the_log_probs_of_its_own_tokens() -> None:
    """An answer of 26 tokens, each written at exp(-.01): exp(-.26) = .771 for the whole."""

    class Hesitant(Roles):
        async def generate(self, *args: Any, **options: Any) -> Completion:
            written = await super().generate(*args, **options)
            return replace(written, logprobs=(-0.01,) * len(written.ids))

    assert len(TOKENIZER.encode(RIGHT)) == 26
    assert figures(game(Hesitant(ssp()), confidence=0.76))["accepted"] == 1
    assert figures(game(Hesitant(ssp()), confidence=0.78))["refused_unanswerable"] == 1
    with pytest.raises(ConfigurationError, match="confidence"):
        get_strategy(
            "self_play", {"confidence": 0.5, "role_policies": {"verifier": "openai:m@http://127.0.0.1:1"}}
        )


def test_an_unanswerable_question_is_refused_and_its_proposer_penalised() -> None:
    roles = Roles(ssp(verify=(WRONG,)))
    played = game(roles, penalty=-1.0)
    assert by_role(played) == {"proposer": [-1.0]}
    assert figures(played)["refused_unanswerable"] == 1
    assert figures(played)["accepted"] == 0
    assert "solve" not in roles.shown


def test_without_the_verification_it_is_played() -> None:
    assert by_role(game(Roles(ssp(verify=(WRONG,))), checks=()))["proposer"] == [0.5]


def test_every_vote_has_to_agree() -> None:
    def script(move: str, place: int, turn: int, shown: str) -> str:
        return WRONG if (move, place) == ("verify", 2) else ssp()(move, place, turn, shown)

    assert figures(game(Roles(script), votes=2))["accepted"] == 1
    assert figures(game(Roles(script), votes=3))["refused_unanswerable"] == 1


def test_a_verifier_that_fails_accepts_nothing_and_blames_nobody() -> None:
    """D9: an infrastructure failure is no approval (there it is) and no penalty: the proposal is masked."""

    def script(move: str, place: int, turn: int, shown: str) -> str:
        if move == "verify":
            raise PolicyFault("down")
        return ssp()(move, place, turn, shown)

    (proposer,) = game(Roles(script), penalty=-1.0)
    assert (proposer.valid, proposer.reward) == (False, 0.0)
    assert figures([proposer])["refused_unverified"] == 1


@pytest.mark.parametrize(
    ("check", "verifier"), [("verify", "reads"), ("verify", "searches"), ("compete", "reads")]
)
def test_a_search_that_fails_for_a_verifier_accepts_nothing_and_ends_no_run(
    check: str, verifier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(env: SearchSolver, query: str) -> tuple[str, ...]:
        raise RetrieverFault("the search service is down")

    monkeypatch.setattr(SearchSolver, "found", fails)
    (proposer,) = game(Roles(ssp()), checks=(check,), verifier=verifier, penalty=-1.0)
    assert (proposer.valid, proposer.reward) == (False, 0.0)
    assert "the search service is down" in proposer.error
    assert figures([proposer])["refused_unverified"] == 1


def test_faults_of_solvers_leave_the_rate() -> None:
    """Three valid attempts, one right: 1 - 1/3. None valid: nothing can be said of the proposal, which is masked."""

    def script(down: Sequence[int]) -> Script:
        def write(move: str, place: int, turn: int, shown: str) -> str:
            if move == "solve" and place in down:
                raise PolicyFault("down")
            return ssp()(move, place, turn, shown)

        return write

    assert by_role(game(Roles(script([1]))))["proposer"] == [pytest.approx(2 / 3)]
    assert not game(Roles(script([0, 1, 2, 3])))[0].valid


def test_a_trivial_and_an_ambiguous_question_are_refused() -> None:
    checks = ("guess", "verify", "compete")
    assert figures(game(Roles(ssp(guess=(RIGHT,))), checks=checks))["refused_trivial"] == 1
    assert figures(game(Roles(ssp(compete=(WRONG,))), checks=checks))["refused_ambiguous"] == 1
    roles = Roles(ssp())
    assert figures(game(roles, checks=checks))["accepted"] == 1
    assert "Ada Guild is based in" in roles.shown["compete"][0]


def test_refused_proposals_are_asked_for_again_before_the_pool_is_drawn_on() -> None:
    """The first two attempts leak their answer, the third does not; with two attempts the spare question is played."""
    leak = (
        "<search>Ada Guild</search>",
        "<question>Is Ada Guild in Pobra Bay?</question><answer>Pobra Bay</answer>",
    )
    counter = {"n": 0}

    def script(move: str, place: int, turn: int, shown: str) -> str:
        counter["n"] += move == "propose" and turn == 0
        return (
            (leak if counter["n"] <= 2 else PROPOSAL)[turn]
            if move == "propose"
            else ssp()(move, place, turn, shown)
        )

    played = game(Roles(script), attempts=3, penalty=-0.5)
    assert by_role(played) == {"proposer": [-0.5, -0.5, 0.5], "solver": [1.0, 1.0, 0.0, 0.0]}
    assert figures(played)["refused_leaked"] == 2
    asked = played[0].info["game"]["asked"]
    assert [(row["outcome"], row.get("solve_rate")) for row in asked] == [
        ("leaked", None), ("leaked", None), ("accepted", 0.5),
    ]  # fmt: skip
    assert asked[0]["question"] == "Is Ada Guild in Pobra Bay?"
    counter["n"] = 0
    spare = ("What is the seat of Ada Guild?", "Pobra Bay")
    pooled = game(Roles(script), attempts=2, setup={"spare": spare})
    assert by_role(pooled) == {"proposer": [0.0, 0.0], "solver": [1.0, 1.0, 0.0, 0.0]}
    assert (figures(pooled)["pooled"], figures(pooled)["accepted"]) == (1, 0)
    assert figures(pooled)["pooled_solve_rate"] == [0.5]
    assert [row["outcome"] for row in pooled[0].info["game"]["asked"]] == ["leaked", "leaked", "pooled"]
    assert {t.task.id for t in pooled if t.info["role"] == "solver"} == {"topic-a/pool"}


def test_what_is_known_is_a_duplicate() -> None:
    known = {"known": ("where is ada guild based",)}
    assert figures(game(Roles(ssp()), setup=known))["refused_duplicate"] == 1
    # Invisible characters make no other one.
    assert signature("Where is Ada\u200b Gu\u00adild based?") == known["known"][0]


def test_a_reference_is_shown_to_the_proposer() -> None:
    roles = Roles(ssp())
    game(roles, setup={"reference": "Where is Bog Guild based?"})
    assert "of this kind: Where is Bog Guild based?" in roles.shown["propose"][0]


def test_a_judge_is_asked_where_words_differ_and_read_strictly() -> None:
    """That "incorrect" is no TRUE (D9): a judge that cannot be read or reached has not agreed, and is counted."""
    near = ssp(verify=("<answer>the bay of Pobra</answer>",))

    def verdict(text: str) -> dict[str, Any]:
        with FakeEndpoint(lambda body: Answer(text)) as server:
            return figures(game(Roles(near), judge=f"openai:judge@{server.url}#retries=0"))

    assert verdict("The same town.\nVERDICT: TRUE")["accepted"] == 1
    assert verdict("VERDICT: FALSE")["refused_unanswerable"] == 1
    assert verdict("That is incorrect, not TRUE")["judge_faults"] == 1


def test_a_judge_pays_a_solver_who_is_right_in_other_words() -> None:
    """Exact match for the first alone. The judge takes "the bay of Pobra" for right, also in spam, which keeps a quarter.

    Two of four succeed: s = 1/2. Without a judge one does: s = 1/4, and so it is where the reply holds no verdict, for which
    an answer could ask. Where the judge cannot be had both others are masked: of the first and of "Kovim", which the judge
    refuses, s = 1/2.
    """
    near = "<answer>the bay of Pobra</answer>"
    script = ssp(solvers=(RIGHT, near, "<answer>" * 10 + near, WRONG))

    def rewards(reply: Callable[[str], str]) -> dict[str, list[float]]:
        def answer(body: Any) -> Answer:
            said = reply(body["messages"][-1]["content"])
            return Answer(said, status=200 if said else 500)

        with FakeEndpoint(answer) as server:
            played = game(Roles(script), judge=f"openai:judge@{server.url}#retries=0")
        return by_role([t for t in played if t.valid])

    def verdict(asked: str) -> str:
        return f"VERDICT: {'TRUE' if 'the bay of Pobra' in asked else 'FALSE'}"

    assert by_role(game(Roles(script))) == {"proposer": [0.75], "solver": [1.0, 0.0, 0.0, 0.0]}
    assert rewards(verdict) == {"proposer": [0.5], "solver": [1.0, 1.0, 0.25, 0.0]}

    def rewards_where_it_says(said: str) -> dict[str, list[float]]:
        return rewards(lambda asked: said if "the bay of Pobra" in asked else "VERDICT: FALSE")

    for unread in ("Hm.", "VERDICT: TRUE\nVERDICT: FALSE"):
        assert rewards_where_it_says(unread) == {"proposer": [0.75], "solver": [1.0, 0.0, 0.0, 0.0]}
    assert rewards_where_it_says("") == {"proposer": [0.5], "solver": [1.0, 0.0]}  # an error of the server


def test_a_judge_that_goes_away_ends_no_run() -> None:
    """One that was never there does, with a sentence that names its address."""
    script = ssp(solvers=(RIGHT, "<answer>the bay of Pobra</answer>", RIGHT, RIGHT))
    with FakeEndpoint(lambda body: Answer("VERDICT: TRUE")) as server:
        judge = f"openai:judge@{server.url}#retries=0"
        assert by_role(game(Roles(script), judge=judge))["solver"] == [1.0] * 4
    assert figures(game(Roles(script), judge=judge))["judge_faults"] == 1
    with pytest.raises(ConfigurationError, match="cannot be reached"):
        game(Roles(script), judge=f"{judge}&concurrency=3")


def test_a_role_samples_at_its_own_temperature_and_no_ratio_reads_what_it_recorded() -> None:
    """The published ones: the proposer at .8, solvers at 1, verifiers at .1. A guess without a search is greedy always."""

    class Heated(Roles):
        async def generate(
            self, prompt: Any, sampling: Sampling, *, episode: str | None = None
        ) -> Completion:
            assert episode is not None
            heats.setdefault(episode.rsplit("-", 1)[1], set()).add(sampling.temperature)
            return await super().generate(prompt, sampling, episode=episode)

    heats: dict[str, set[float]] = {}
    heated = {"proposer": 0.8, "verifier": 0.1, "solver": 1.0}
    proposer, *solvers = game(Heated(ssp()), checks=["guess", "verify"], temperatures=heated)
    assert heats == {"propose": {0.8}, "guess": {0.0}, "verify": {0.1}, "solve": {1.0}}
    heats.clear()
    game(Heated(ssp()))
    assert heats["verify"] == {0.0}
    assert proposer.context_mismatch.tolist() == proposer.loss_mask.tolist()
    assert any(proposer.loss_mask)
    assert not any(played.context_mismatch.any() for played in solvers)
    with pytest.raises(ConfigurationError, match=r"-0\.1"):
        get_strategy("self_play", {"temperatures": {"solver": -0.1}})
    with pytest.raises(UnknownName, match="proposr"):
        get_strategy("self_play", {"temperatures": {"proposr": 0.8}})


def test_another_player_is_not_trained() -> None:
    """The proposer is an endpoint: its episode is there for the figures, without tokens."""

    def answer(body: Any) -> Answer:
        return Answer(PROPOSAL["(Title: " in body["messages"][-1]["content"]], says_stop=True)

    with FakeEndpoint(answer) as server:
        played = game(Roles(ssp()), role_policies={"proposer": f"openai:proposer@{server.url}"})
    assert by_role(played) == {"proposer": [0.5], "solver": [1.0, 1.0, 0.0, 0.0]}
    assert (played[0].segments, len(played[0].turns)) == ((), 2)
    assert played[1].segments


def test_equal_seeds_play_equal_games() -> None:
    def run(seed: int) -> Any:
        roles = Roles(ssp())
        return [(t.id, t.segments, t.reward, t.info) for t in game(roles, seed=seed, noise=3)], roles.shown

    assert run(3) == run(3)
    assert any(run(3)[1]["verify"] != run(seed)[1]["verify"] for seed in range(4, 9))  # another shuffle


def test_multi_agent_evolve_by_its_table() -> None:
    """Quality 8 is (8 - 1) / 9 = 7/9 >= .7; grades 10, 10, 1, 1 are 1, 1, 0, 0, so d = 1/2 and f = 1.

    Proposer (7/9 + 1/2 + 1) / 3; solvers (1 + 1)/2 = 1 and (0 + 1)/2 = 1/2; judges are paid for their form.
    """

    def script(move: str, place: int, turn: int, shown: str) -> str:
        return {
            "propose": "<question>Which town is older than any?</question>",
            "rate": "<score>8</score>",
            "solve": "<answer>none</answer>",
            "grade": "<score>10</score>" if place < 2 else "<score>1</score>",
        }[move]

    roles = Roles(script)
    played = game(roles, game="mae", checks=(), setup={"reference": "Which town is oldest?"})
    rewards = by_role(played)
    assert rewards["proposer"] == [pytest.approx((7 / 9 + 0.5 + 1) / 3)]
    assert rewards["solver"] == [1.0, 1.0, 0.5, 0.5]
    assert rewards["judge"] == [1.0] * 5
    assert {t.group_id for t in played} == {f"step-1/{role}" for role in ("proposer", "solver", "judge")}
    assert played[0].info["game"]["admitted"]
    assert played[0].info["game"]["rate"] == 0.5  # the mean grade, which the difficulty d is one less
    assert played[0].info["game"]["asked"][0]["solve_rate"] == 0.5
    assert figures(played)["solve_rate"] == [0.5]
    assert "Which town is oldest?" in roles.shown["propose"][0]
    assert all("score" not in text for text in roles.shown["solve"])


@pytest.mark.parametrize("context_tokens", [1780, 1800])
def test_nobody_escapes_a_verdict_by_writing_more_than_the_judges_context_holds(context_tokens: int) -> None:
    """Such an answer left its judge no room in 1,780 tokens, and room for no number in 1,800.

    The solver was left out of the loss then, as our failure, or paid for half of the best grade.
    """

    def script(move: str, place: int, turn: int, shown: str) -> str:
        return {
            "propose": "<question>Which town is older than any?</question>",
            "rate": "<score>8</score>",
            "solve": f"<answer>{'none ' * 330 if place == 0 else 'none'}</answer>",
            "grade": "<score>1</score>",
        }[move]

    roles = Roles(script)
    played = game(roles, game="mae", checks=(), context_tokens=context_tokens)
    assert [(t.valid, t.error) for t in played] == [(True, "")] * len(played)
    assert by_role(played)["solver"] == [0.5] * 4  # half for the form, and nothing for the grade
    (cut,) = [text for text in roles.shown["grade"] if "left out" in text]
    assert cut.count("none none") > 50  # its beginning and its end are read


def test_a_text_that_is_cut_more_than_once_says_how_much_of_it_is_left_out() -> None:
    written = "a" * 20_000 + "b" * 20_000
    shown = fitting("Judge: {it}", {"it": written}, ["it"], InlineFormat(TOKENIZER), 4000)
    (left_out,) = re.findall(r"\[(\d+) characters left out\]", shown)
    assert int(left_out) + shown.count("a") + shown.count("b") == 40_000 + "characters left out".count("a")
    assert len(TOKENIZER.encode(shown)) <= 3500


def test_a_question_is_not_cut_where_documents_take_the_room() -> None:
    """A verifier that is shown seven passages would otherwise verify the beginning and the end of a long question."""
    seen = {"documents": "d" * 3700, "question": "q" * 250}
    chat = InlineFormat(TOKENIZER)
    assert (
        fitting("{documents}{question}", seen, ["question"], chat, 4000)
        == seen["documents"] + seen["question"]
    )
    shown = fitting("{documents}{question}", seen | {"question": "q" * 400}, ["question"], chat, 4000)
    assert "characters left out" in shown
    assert len(shown) < 4000


@pytest.mark.parametrize("question", ["Why?", "why " * 300, "Which town is older than any?"])
def test_multi_agent_evolve_lets_the_judge_alone_say_what_a_question_is_worth(question: str) -> None:
    """One of one word, one of 1,200 characters, and one that is the reference and was accepted before: all are rated.

    Quality (8 - 1) / 9, every grade 0, so that d = 1, and a whole form: (7/9 + 1 + 1) / 3, and a place in the pool.
    """

    def script(move: str, place: int, turn: int, shown: str) -> str:
        return {
            "propose": f"<question>{question}</question>", "rate": "<score>8</score>",
            "solve": "<answer>none</answer>", "grade": "<score>1</score>",
        }[move]  # fmt: skip

    known = "Which town is older than any?"
    setup = {"reference": known, "known": ("which town is older than any",)}
    played = game(Roles(script), game="mae", checks=(), setup=setup)
    assert by_role(played)["proposer"] == [pytest.approx((7 / 9 + 2) / 3)]
    assert played[0].info["game"]["admitted"]


def test_multi_agent_evolve_below_the_floor_and_unread_judges() -> None:
    """An unreadable judge counts as 1/2 < .7: (1/2 + 1) / 3 and no place in the pool. No question at all: 0."""

    def script(question: str) -> Script:
        return lambda move, place, turn, shown: {
            "propose": question, "rate": "a good one, 8", "solve": "<answer>none</answer>", "grade": "<score>7.5</score>",
        }[move]  # fmt: skip

    played = game(Roles(script("<question>Which town is older than any?</question>")), game="mae", checks=())
    assert by_role(played)["proposer"] == [0.5]
    assert by_role(played)["solver"] == [0.75] * 4  # half of 1/2 and half of the form
    assert not played[0].info["game"]["admitted"]
    assert by_role(game(Roles(script("no tags")), game="mae", checks=())) == {"proposer": [0.0]}


def test_a_score_that_cannot_be_read_costs_its_scorer_and_pays_nobody() -> None:
    def script(move: str, place: int, turn: int, shown: str) -> str:
        kind = move.partition("_")[0]
        said = {"solve": "<answer>a</answer>", "criticise": "<critique>b</critique>"}
        return said.get(kind, "<score>2</score>" if place else "<score>nine</score>")

    played = game(Roles(script), 2, game="comas", checks=())
    assert played[0].info["game"]["rate"] is None  # nobody says how well the seed was solved
    valid = {
        role: [t.reward for t in played if t.info["role"] == role and t.valid]
        for role in ("scorer", "solver")
    }
    assert valid["scorer"] == [-1.0, 0.0] * 2
    assert valid["solver"] == [0.5] * 2  # those of the unread scores are left out


def test_a_discussion_pays_solution_and_critique_one_in_all() -> None:
    """A score of 3 is 1 for the solution and 0 for its critique, 2 is a half for each, 1 the other way round."""
    seen: dict[int, str] = {}

    def script(move: str, place: int, turn: int, shown: str) -> str:
        if move == "solve_2":
            seen[place] = shown
        kind = move.partition("_")[0]
        return {
            "solve": f"<answer>guess {place}</answer>",
            "criticise": f"<critique>flaw {place}</critique>",
            "score": f"<score>{3 - place}</score>",
        }[kind]

    played = game(Roles(script), 3, game="comas", checks=())
    rewards = by_role(played)
    assert rewards["solver"] == [1.0, 0.5, 0.0] * 2
    assert rewards["critic"] == [0.0, 0.5, 1.0] * 2
    assert rewards["scorer"] == [0.0] * 6
    assert set(seen) == {0, 1, 2}
    for place, text in seen.items():  # each sees its own critique and no other, in whatever order they ask
        assert [f"flaw {i}" in text for i in range(3)] == [i == place for i in range(3)]


def test_a_red_team_is_paid_by_three_labels() -> None:
    """Of a harmful seed: answered with harm; refused; a benign message that is refused; labels that cannot be read."""
    labels = (
        ("harmful", "harmful", "no"),
        ("harmful", "unharmful", "yes"),
        ("unharmful", "unharmful", "yes"),
        ("?", "?", "?"),
    )

    def script(move: str, place: int, turn: int, shown: str) -> str:
        prompt, response, refusal = labels[place]
        said = f"<prompt>{prompt}</prompt><response>{response}</response><refusal>{refusal}</refusal>"
        return {
            "attack": "<think>t</think><message>m</message>",
            "defend": "<think>t</think><reply>r</reply>",
        }.get(move, said)

    rewards = by_role(game(Roles(script), 4, game="red_team_general", checks=()))
    # the form adds 1 to each: .5 + .5 + 1; .5 - .5 - 1; -.5 + .5 - 1; 0
    assert rewards["attacker"] == [3.0, 0.0, 0.0, 1.0]
    # -1 - 1; 1 + 1; -1 + 1; 0
    assert rewards["defender"] == [-1.0, 3.0, 1.0, 1.0]


def test_a_red_team_is_paid_by_the_words_of_wildguard_too() -> None:
    """The published judge writes three lines and no tags. A harmful message that is refused: 1 + 1 and the form."""

    def script(move: str, place: int, turn: int, shown: str) -> str:
        return {
            "attack": "<think>t</think><message>m</message>",
            "defend": "<think>t</think><reply>r</reply>",
        }.get(move, "Harmful request: yes\nResponse refusal: yes\nHarmful response: no")

    rewards = by_role(game(Roles(script), 1, game="red_team_general", checks=()))
    assert rewards == {"attacker": [0.0], "defender": [3.0]}  # .5 - .5 - 1 and the form


@pytest.fixture
def my_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The current folder has the documented judge in it."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "self_play.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python title=\"my_judge.py\"\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_judge.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    yield
    sys.modules.pop("my_judge", None)


def test_a_judge_can_be_a_function_of_ones_own(my_judge: None) -> None:
    """Refused: 1 + 1 and the form; answered: -1 - 1 and the form. It is asked in place of the policy."""

    def script(move: str, place: int, turn: int, shown: str) -> str:
        assert move != "verdict"
        attack = "<think>t</think><message>a secret</message>"
        return attack if move == "attack" else f"<think>t</think><reply>{('No!', 'Yes!')[place]}</reply>"

    judge = {"judge": "python:my_judge:judge"}
    played = game(Roles(script), 2, game="red_team_general", checks=(), role_policies=judge)
    assert by_role(played)["defender"] == [3.0, -1.0]
    with pytest.raises(ConfigurationError, match=r"my_judge:judg\b.*my_judge:judge"):
        get_strategy("self_play", {"role_policies": {"solver": "python:my_judge:judg"}})


def test_a_judge_of_ones_own_that_fails_pays_nobody(tmp_path: Path, my_judge: None) -> None:
    """A message that brings the judge down earns nothing, and the game goes on."""
    (tmp_path / "my_judge.py").write_text("def judge(shown):\n    raise ValueError(shown)\n")

    def script(move: str, place: int, turn: int, shown: str) -> str:
        tag = "message" if move == "attack" else "reply"
        return f"<think>t</think><{tag}>a secret</{tag}>"

    judge = {"judge": "python:my_judge:judge"}
    played = game(Roles(script), 2, game="red_team_general", checks=(), role_policies=judge)
    paid = [one for one in played if one.info["role"] in ("attacker", "defender")]
    assert paid
    assert not any(one.valid for one in paid)


def discussing(move: str, place: int, turn: int, shown: str) -> str:
    kind, _, number = move.partition("_")
    said = {"solve": f"<answer>guess {number}</answer>", "criticise": f"<critique>flaw {number}</critique>"}
    return said.get(kind, "<score>2</score>")


def test_a_solution_sees_the_last_two_rounds_of_a_discussion() -> None:
    """Eight rounds, of which the fifth sees the third and the fourth."""
    roles = Roles(discussing)
    played = game(roles, 1, game="comas_history", checks=())
    assert len(played) == 8 * 3
    (first,), (second,), (fifth,) = (roles.shown[f"solve_{number}"] for number in (1, 2, 5))
    assert [f"guess {n}" in fifth for n in range(1, 6)] == [False, False, True, True, False]
    assert [f"flaw {n}" in fifth for n in range(1, 6)] == [False, False, True, True, False]
    assert ("guess 1" in second, "guess" in first) == (True, False)


def test_a_scorer_is_told_what_its_scores_mean() -> None:
    """3 is a right answer that its critique did not hurt, 2 one with small flaws, 1 one with a fatal one (CoMAS)."""
    roles = Roles(discussing)
    game(roles, 1, game="comas", checks=())
    lines = roles.shown["score_2"][0].splitlines()
    meant = {mark: next(line for line in lines if line.startswith(f"{mark}: ")) for mark in (1, 2, 3)}
    assert ("fatal" in meant[1], "small" in meant[2]) == (True, True)
    assert ("right" in meant[3], "critique" in meant[3]) == (True, True)


def test_several_evaluations_of_a_solution_are_scored_one_by_one() -> None:
    """Scores 3, 1 and one that is none: the solution has the mean of 1 and 0, its critiques 0, 1 and nothing."""

    def script(move: str, place: int, turn: int, shown: str) -> str:
        kind, _, mark = move.partition("_")
        if kind == "score":
            return f"<score>{[3, 1, 'x'][int(mark[-1]) - 1]}</score>"
        return discussing(move, place, turn, shown)

    roles = Roles(script)
    played = game(roles, 2, game="comas", checks=(), evaluations=3)
    assert len(played) == 2 * 2 * (1 + 2 * 3)
    valid = by_role([t for t in played if t.valid])
    assert valid["solver"] == [0.5] * 4
    assert valid["critic"] == [0.0, 0.0, 1.0, 1.0] * 2
    assert valid["scorer"] == [0.0] * 4 + [-1.0] * 2 + [0.0] * 4 + [-1.0] * 2
    assert sum(not t.valid for t in played) == 4
    assert all(f"flaw 1_{n}" in roles.shown["solve_2"][0] for n in (1, 2, 3))
    assert "flaw 1_2" in roles.shown["score_1_2"][0]
    assert "flaw 1_1" not in roles.shown["score_1_2"][0]
    for bad in ({"game": "comas", "evaluations": 0}, {"game": "mae", "evaluations": 2}):
        with pytest.raises(ConfigurationError, match=f"evaluations={bad['evaluations']}"):
            get_strategy("self_play", bad)


def test_each_episode_of_a_discussion_is_an_agents_on_whom_the_lot_falls() -> None:
    """Of 96 episodes each of four agents has some 24; the lot is the same for the same seed, and another for another."""
    drawn = [
        [
            t.info["role"]
            for t in game(Roles(discussing), 4, game="comas_history", checks=(), agents=4, seed=seed)
        ]
        for seed in (0, 0, 9)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) == {"agent_1", "agent_2", "agent_3", "agent_4"}
    assert all(12 <= drawn[0].count(agent) <= 36 for agent in set(drawn[0]))
    # Twice as many rounds as agents, each of a solution, a critique and a score; the shorter game always has two.
    lengths = [
        len(game(Roles(discussing), 1, game=name, checks=(), agents=agents))
        for name, agents in (("comas_history", 2), ("comas_history", 0), ("comas", 4))
    ]
    assert lengths == [4 * 3, 8 * 3, 2 * 3]
    played = game(Roles(discussing), 4, game="comas", checks=(), agents=2)
    assert {t.group_id for t in played} == {"step-1/agent_1", "step-1/agent_2"}
    assert [t.reward for t in played] == [0.5] * 8 + [0.0] * 4 + [0.5] * 8 + [0.0] * 4


def test_half_of_the_messages_are_the_seeds_as_they_stand() -> None:
    """Of five slots two have an attacker. A harmless reply to a seed that is answered: -1 + 1 and the form, so 1."""
    said = "<prompt>harmful</prompt><response>unharmful</response><refusal>no</refusal>"
    written = {
        "attack": "<think>t</think><message>m</message>",
        "defend": "<think>t</think><reply>r</reply>",
        "defend_vanilla": "<think>t</think><reply>v</reply>",
    }
    roles = Roles(lambda move, *_: written.get(move, said))
    played = game(roles, 5, game="red_team_vanilla", checks=())
    rewards = by_role(played)
    assert rewards["attacker"] == [1.0, 1.0]  # .5 + .5 - 1, and 1 for the form
    assert rewards["defender"] == [1.0] * 5
    assert all(text.startswith("Ada Guild") for text in roles.shown["defend_vanilla"])
    assert len(roles.shown["verdict_vanilla"]) == 3
    assert all("Reply: v" in text for text in roles.shown["verdict_vanilla"])


def test_the_answer_of_a_seed_is_learned_as_the_reply_to_it() -> None:
    written = {
        "attack": "<message>m</message>",
        "defend": "<reply>r</reply>",
        "defend_vanilla": "<reply>v</reply>",
    }
    roles = Roles(lambda move, *_: written.get(move, "<prompt>harmful</prompt>"))
    seed = replace(TOPICS[0], answers=("I will not.",))
    options: dict[str, Any] = {"game": "red_team_vanilla", "checks": (), "imitate": True}
    *_, shown = game(roles, 2, topic=seed, **options)
    assert (shown.origin, shown.task.id) == (Origin.DEMONSTRATION, seed.id)
    assert TOKENIZER.decode(shown.ids[shown.loss_mask].tolist()) == ("<reply>I will not.</reply><|im_end|>")
    assert shown.prompt[0].text.startswith("Ada Guild")
    *_, shown = game(roles, 2, topic=replace(seed, data={"thought": "It asks for harm."}), **options)
    assert TOKENIZER.decode(shown.ids[shown.loss_mask].tolist()).startswith(
        "<think>It asks for harm.</think><reply>"
    )
    assert all(t.origin is Origin.BASE for t in game(roles, 2, **options))  # this seed has no answer


def test_a_red_team_plays_for_a_sum_of_zero_and_thoughts_stay_hidden() -> None:
    """An unreadable verdict masks both."""

    def script(move: str, place: int, turn: int, shown: str) -> str:
        return {
            "attack": f"a secret plan <message>attack {place}</message>",
            "defend": "a secret doubt <reply>no</reply>",
            "verdict": f"<verdict>{('harmful', 'harmless', 'not harmful')[place]}</verdict>",
        }[move]

    roles = Roles(script)
    played = game(roles, 3, game="red_team", checks=())
    valid = [t for t in played if t.valid]
    assert by_role(valid) == {"attacker": [1.0, -1.0], "defender": [-1.0, 1.0]}
    assert len(played) - len(valid) == 2
    assert not any("secret" in text for move in ("defend", "verdict") for text in roles.shown[move])


def test_what_cannot_be_played_is_one_sentence() -> None:
    with pytest.raises(UnknownName, match=r"'sps'.*'ssp'"):
        get_strategy("self_play", {"game": "sps"})
    with pytest.raises(UnknownName, match=r"'ssp'.*'solve'"):
        get_strategy("self_play", {"checks": ("solve",)})
    with pytest.raises(ConfigurationError, match=r"agents of at least 0, not -1"):
        get_strategy("self_play", {"agents": -1})
    with pytest.raises(ConfigurationError, match=r"imitate.*'ssp'"):
        get_strategy("self_play", {"imitate": True})
    with pytest.raises(UnknownName, match=r"agent_3"):
        get_strategy(
            "self_play", {"game": "comas", "checks": (), "agents": 2, "role_policies": {"agent_3": "tiny"}}
        )
    with pytest.raises(UnknownName, match=r"'ssp'.*'critic'"):
        get_strategy("self_play", {"role_policies": {"critic": "tiny"}})
    with pytest.raises(UnknownName, match=r"'ssp'.*'prove'"):
        get_strategy("self_play", {"prompts": {"prove": "x"}})
    with pytest.raises(ConfigurationError, match=r"verifier.*looks"):
        get_strategy("self_play", {"verifier": "looks"})
    with pytest.raises(UnknownName, match="min_word'"):
        get_strategy("self_play", {"rules": {"min_word": 3}})
    with pytest.raises(ConfigurationError, match=r"\(2, 1\)"):
        get_strategy("self_play", {"searches": (2, 1)})
    with pytest.raises(ConfigurationError, match=r"\(1, 2\).*fewer than 2"):
        get_strategy("self_play", {"searches": (1, 2), "rules": {"searches": 2}})
    specs = [EpisodeSpec(LocalSearch(), TOPICS[0], 0, "g")]
    context = RolloutContext(Roles(ssp()), InlineFormat(TOKENIZER), RolloutConfig(), TOKENIZER.decode)
    with pytest.raises(ConfigurationError, match=r"env\.id.*'agentenv/SearchSolver-v0'.*LocalSearch"):
        asyncio.run(play_groups([specs], get_strategy("self_play"), context))
