"""The warm start in miniature.

What demonstrators do, that their pages are the environment's, and that a stored reader gives the same policy as one that
was never put down.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch

from agentenv.core.chat import InlineFormat
from agentenv.core.env import run_sync
from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_solver import Solver
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.proposals import QuestionRules, documents_shown
from agentenv.envs.search.self_play import SearchProposer, SearchSolver
from agentenv.errors import ConfigurationError
from agentenv.policies.card import read_card
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.tiny import shipped_weights
from agentenv.progress import SilentDisplay
from agentenv.retrievers.encoder import HashEncoder
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.warmstart.demonstrations import (
    Demo,
    DemonstrationContext,
    Library,
    careful,
    echo,
    follow,
    guessing,
    hasty,
    reading_exercises,
    to_tokens,
)
from agentenv.trainers.warmstart.index_lessons import index_lessons
from agentenv.trainers.warmstart.role_demonstrations import (
    PROPOSER_PROMPT,
    VERIFIER_PROMPT,
    doubting,
    hurried,
    proposing,
    verifying,
)
from agentenv.trainers.warmstart.search_warmstart import WarmstartConfig, mean_weights, warmstart
from tests.file_contents import content

WORLD = WorldConfig(documents=200, questions=40, families=("lookup", "bridge"), split="train")
TINY = WarmstartConfig(
    copying_steps=1,
    reading_steps=1,
    refinement_steps=1,
    index_steps=1,
    mixture_steps=1,
    index_world=WORLD,
    encoder="hash",
    episodes=4,
    judged=8,
)


class Shelf:
    """The library as a retriever."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        return [self._library.search(query if isinstance(query, str) else query.text) for query in queries]

    def info(self) -> RetrieverInfo:
        return RetrieverInfo("shelf", 0, "")


def scenes() -> list[DemonstrationContext]:
    world = FictionalWorld.generate(WORLD)
    library = Library(world.documents, HashEncoder(), 2)
    solver = Solver(generate_facts(WORLD))
    return [
        DemonstrationContext(task, library, world.questions, solver, Random(0)) for task in world.questions
    ]


def test_the_careful_demonstrator_plays_the_environment_letter_for_letter_and_scores_full() -> None:
    context, demo = next((s, d) for s in scenes() if (d := careful(s)) and len(s.task.data["path"]) == 2)
    env = LocalSearch(
        tasks=[context.task],
        retriever=Shelf(context.library),
        k=2,
        prompt="{question}",
        observation_tokens=999,
    )
    run_sync(env.areset(seed=0, options={"task": context.task}))
    actions = [piece.text for piece in demo if piece.kind == "own"]
    pages = [piece.text for piece in demo if piece.kind == "page"]
    steps = [env.step(action) for action in actions]
    assert [step.observation[0].text for step in steps[:-1]] == pages
    assert steps[-1].reward == 1.0


def answered(demo: Demo) -> str:
    """The answer at the end of a demonstration."""
    written = "".join(piece.text for piece in demo)
    return written.rpartition("<answer> ")[2].removesuffix(" </answer>")


def test_one_who_guesses_is_wrong_and_what_is_made_up_is_not_learned() -> None:
    """That an answer is made up is the policy's own; which name it then writes is not."""
    stock = scenes()
    demos = [guessing(context) for context in stock]
    right = [answered(d) == s.task.answers[0] for d, s in zip(demos, stock, strict=True)]
    assert sum(right) < 0.2 * len(stock)
    for demo in demos:
        assert [piece.text for piece in demo if piece.kind == "own"] == ["<answer>", " </answer>"]
        assert demo[2].text.strip()


def test_the_hasty_demonstrator_stops_after_one_hop_and_makes_up_numbers_and_never_misreads() -> None:
    seen = set()
    for context in scenes():
        path = context.task.data["path"]
        demo = hasty(context)
        number = path[0]["answer"].isdigit()
        searches = sum(piece.text.startswith("<search>") for piece in demo)
        if len(path) == 2:
            assert (searches, answered(demo)) == (1, path[0]["answer"])
        elif number:
            assert (searches, demo[1].text) == (0, "<answer>")
        elif demo:
            assert (searches, answered(demo)) == (1, context.task.answers[0])
        seen.add((len(path), number and len(path) == 1))
    assert seen == {(2, False), (1, True), (1, False)}


def test_an_index_finds_the_same_pages_for_queries_that_it_was_given_before() -> None:
    """Queries that were encoded in one pass, and such as come unannounced."""
    world = FictionalWorld.generate(WORLD)
    queries = [hop["query"] for task in world.questions for hop in task.data["path"]]
    prepared = Library(world.documents, HashEncoder(), 2, queries[::2])
    plain = Library(world.documents, HashEncoder(), 2)
    assert [prepared.search(query) for query in queries] == [plain.search(query) for query in queries]


def test_lessons_over_an_index_are_exercises_rows_and_episodes_of_one_world_then_of_the_next() -> None:
    first, second, third = islice(
        index_lessons({careful: 1.0}, seed=5, worlds=WORLD, k=2, encoder=HashEncoder(), count=16, uses=2),
        3,
    )
    for lesson in (first, second, third):
        opening = [demo[0].kind for demo in lesson]
        assert opening[:8] == ["page"] * 8
        assert [demo[0].text.lstrip().startswith("<information>") for demo in lesson[:8]] == [True] * 4 + [
            False
        ] * 4
        assert set(opening[8:]) == {"question"}
        assert 12 < len(lesson) <= 16
        for demo in lesson[:4]:
            for answer in demo[2::2]:
                assert answer.text.removeprefix("<answer> ").removesuffix(" </answer>") in demo[0].text
    worlds = [FictionalWorld.generate(replace(WORLD, seed=seed)) for seed in (6, 7)]
    titles = [{document.title for document in world.documents} for world in worlds]

    def shown(lesson: list[Demo]) -> set[str]:
        return set(re.findall(r"Title: ([^)]+)", "".join(piece.text for demo in lesson for piece in demo)))

    assert shown(first) | shown(second) <= titles[0]
    assert shown(third) <= titles[1]
    assert first != second


def test_searches_in_a_row_give_the_query_and_learn_the_answer_that_its_pages_say() -> None:
    rows = next(follow(seed=0, worlds=WORLD, k=2, count=20))
    assert len(rows) == 20
    for row in rows:
        for query, page, answer in zip(row[::3], row[1::3], row[2::3], strict=True):
            assert (query.kind, page.kind, answer.kind) == ("page", "page", "own")
            assert query.text.startswith("<search> ")
            assert answer.text.removeprefix("<answer> ").removesuffix(" </answer>") in page.text


def test_drills_ask_only_what_their_page_says() -> None:
    demos = next(reading_exercises(seed=0, worlds=WORLD, k=2, count=20))
    for demo in demos[:50]:
        for answer in demo[2::2]:
            assert answer.text.removeprefix("<answer> ").removesuffix(" </answer>") in demo[0].text
    assert [piece.text for piece in echo(demos[0])] == [demos[0][0].text] * 2


def test_own_tokens_are_marked_and_read_back_as_written() -> None:
    from agentenv.policies.tiny import build_tokenizer

    demo = next(d for s in scenes() if (d := careful(s)))
    tokenizer = build_tokenizer(piece.text for piece in demo)
    ids, own = to_tokens(InlineFormat(tokenizer), demo)
    written = tokenizer.decode([i for i, mine in zip(ids, own, strict=True) if mine])
    assert written == "".join(piece.text for piece in demo if piece.kind == "own")


def test_a_stored_reader_gives_the_same_policy_as_one_run(tmp_path: Path) -> None:
    warmstart(TINY, SilentDisplay(), tmp_path / "whole")
    warmstart(replace(TINY, mixture_steps=0), SilentDisplay(), tmp_path / "reader")
    mixture = replace(TINY, index_steps=0)
    warmstart(mixture, SilentDisplay(), tmp_path / "mixed", init_from=tmp_path / "reader")
    whole, mixed = (content(tmp_path / name / "model.safetensors") for name in ("whole", "mixed"))
    assert whole == mixed
    assert content(tmp_path / "reader" / "model.safetensors") != whole
    assert read_card(tmp_path / "whole").prompt == "{question}"
    cards = [(tmp_path / name / "README.md").read_text() for name in ("whole", "mixed", "reader")]
    for row in ("| copying | 1 |", "| refinement | 2 |", "| index | 1 |"):
        assert all(row in card for card in cards)
    assert [("| mixture | 1 |" in card) for card in cards] == [True, True, False]
    assert make_policy(f"hf:{tmp_path / 'whole'}").model.num_parameters() < 4_000_000


def test_the_mean_of_weights_is_that_of_each_tensor() -> None:
    first, second = (
        {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor(1.0)},
        {"a": torch.tensor([2.0, 0.0]), "b": torch.tensor(2.0)},
    )
    mean = mean_weights([first, second])
    assert (mean["a"].tolist(), mean["b"].item()) == ([1.0, 2.0], 1.5)


def test_a_folder_that_is_no_reader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"warmstart\.json"):
        warmstart(TINY, SilentDisplay(), tmp_path / "out", init_from=tmp_path)
    assert not (tmp_path / "out").exists()


def test_fresh_worlds_never_repeat() -> None:
    first, second = islice(reading_exercises(seed=0, worlds=WORLD, k=1, count=20), 2)
    assert {demo[0].text for demo in first}.isdisjoint(demo[0].text for demo in second)


def test_the_proposing_demonstrator_plays_its_environment_letter_for_letter_and_keeps_the_rules() -> None:
    for context in scenes()[:12]:
        demo = proposing(context)
        path = context.task.data["path"]
        if not demo or len(path) < 2:
            continue
        topic = replace(context.task, question=path[0]["entity"], answers=(), data={"searches": 2})
        env = SearchProposer(
            tasks=[topic],
            retriever=Shelf(context.library),
            k=2,
            prompt=PROPOSER_PROMPT,
            rules=QuestionRules(searches=2),
            observation_tokens=999,
        )
        opening, _ = env.reset(seed=0, options={"task": topic})
        assert demo[0].text.startswith(opening[0].text)  # a reference may follow
        steps = [env.step(piece.text) for piece in demo if piece.kind == "own"]
        pages = [piece.text for piece in demo if piece.kind == "page"]
        assert [step.observation[0].text for step in steps[:-1]] == pages
        assert (steps[-1].reward, steps[-1].info["refused"]) == (1.0, None)
        return
    raise AssertionError("no proposal of two hops among twelve")


def test_a_hurried_proposer_asks_before_it_has_read_anything() -> None:
    """Its words, what is made up included, are a whole proposal, which the rules refuse."""
    (context, demo), *_ = [(context, demo) for context in scenes() if (demo := hurried(context))]
    topic = replace(
        context.task, question=context.task.data["path"][0]["entity"], answers=(), data={"searches": 1}
    )
    env = SearchProposer(tasks=[topic], retriever=Shelf(context.library), k=2, prompt=PROPOSER_PROMPT)
    opening, _ = env.reset(seed=0, options={"task": topic})
    assert demo[0].text == opening[0].text
    step = env.step("".join(piece.text for piece in demo[1:]))
    assert (step.terminated, step.reward, step.info["refused"]) == (True, 0.0, "no_information")


def test_the_verifying_demonstrator_plays_its_environment_letter_for_letter() -> None:
    seen = set()
    for context in scenes():
        demo = verifying(context)
        if not demo or "unknown" in demo[-1].text:
            continue
        shown = documents_shown([piece.text for piece in demo if piece.kind == "page"])
        task = replace(context.task, data={})
        env = SearchSolver(tasks=[task], retriever=Shelf(context.library), k=2, observation_tokens=999)
        env = env.posing(VERIFIER_PROMPT, shown)
        opening, _ = env.reset(seed=0, options={"task": task})
        assert opening[0].text == demo[0].text
        steps = [env.step(piece.text) for piece in demo if piece.kind == "own"]
        assert [step.observation[0].text for step in steps[:1]] == [demo[2].text]
        assert steps[-1].reward == 1.0
        seen.add(len(steps))
    assert seen == {2, 3}


def test_the_doubting_demonstrator_says_unknown_only_where_no_true_answer_was_found() -> None:
    played = [(context, demo) for context in scenes() * 4 if (demo := doubting(context))]
    asked = [demo[0].text.removeprefix("Check: ").strip() for _, demo in played]
    withheld = [
        question == context.task.question for (context, _), question in zip(played, asked, strict=True)
    ]
    assert any(withheld)
    assert not all(withheld)
    for (context, demo), question in zip(played, asked, strict=True):
        pages = "".join(piece.text for piece in demo if piece.kind == "page")
        assert demo[-1].text == "<answer> unknown </answer>"
        assert not any(true in pages for true in context.solver.answers(question))


def test_the_preset_asks_as_the_demonstrators_do() -> None:
    prompts = load_config("self-play").rollout.strategy_options["prompts"]
    assert prompts == {"propose": PROPOSER_PROMPT, "verify": VERIFIER_PROMPT, "compete": VERIFIER_PROMPT}


def test_the_roles_of_self_play_are_a_phase_of_their_own(tmp_path: Path) -> None:
    """Without steps nothing is moved; with one the policy differs, and so it does after one of the habits."""
    still = replace(TINY, index_steps=0, mixture_steps=0, role_steps=1)
    warmstart(still, SilentDisplay(), tmp_path / "roles", init_from=shipped_weights())
    shipped = content(shipped_weights() / "model.safetensors")
    assert content(tmp_path / "roles" / "model.safetensors") != shipped
    assert "| roles | 1 |" in (tmp_path / "roles" / "README.md").read_text()
    last = replace(TINY, index_steps=0, mixture_steps=0, weak_proposer_steps=1)
    warmstart(last, SilentDisplay(), tmp_path / "careless", init_from=tmp_path / "roles")
    weights = [content(tmp_path / name / "model.safetensors") for name in ("roles", "careless")]
    assert weights[0] != weights[1]
    assert read_card(tmp_path / "roles").prompt == "{question}"


def test_advice_is_a_phase_of_its_own(tmp_path: Path) -> None:
    steps = replace(TINY, mixture_steps=0, advice_steps=1)
    warmstart(steps, SilentDisplay(), tmp_path / "advised", init_from=shipped_weights())
    made, shipped = (folder / "model.safetensors" for folder in (tmp_path / "advised", shipped_weights()))
    assert made.read_bytes() != shipped.read_bytes()
    assert "| advice | 1 |" in (tmp_path / "advised" / "README.md").read_text()


def test_several_things_are_a_phase_of_their_own(tmp_path: Path) -> None:
    """The card asks for what its lessons showed: one document a query, several queries a turn, turns that hold a list."""
    steps = replace(TINY, mixture_steps=0, several_steps=1)
    warmstart(steps, SilentDisplay(), tmp_path / "several", init_from=shipped_weights())
    made, shipped = (folder / "model.safetensors" for folder in (tmp_path / "several", shipped_weights()))
    assert made.read_bytes() != shipped.read_bytes()
    text = (tmp_path / "several" / "README.md").read_text()
    assert "| several | 1 |" in text
    assert "families lookup, bridge and list over" in text
    card, run = read_card(tmp_path / "several"), load_config("lab-parallel")
    asked = {name: run.env.options[name] for name in ("k", "max_turns", "observation_tokens", "prompt")}
    assert {name: getattr(card, name) for name in asked} == asked
    assert (card.turn_tokens, card.context_tokens) == (run.rollout.turn_tokens, run.rollout.context_tokens)
    assert card.options == {"queries": run.env.options["queries"]}
