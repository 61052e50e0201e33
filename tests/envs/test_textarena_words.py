"""The games of TextArena that take word lists, over a handful of words, and what is said where these are missing."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import ConfigurationError

pytest.importorskip("textarena")

from agentenv.envs import textarena_play
from agentenv.envs.textarena import TextArena
from tests.envs.test_textarena import opened, played, text_of

CORPORA = Path(__file__).with_name("textarena_words")


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the few words of ``textarena_words`` all that NLTK has."""
    import nltk

    monkeypatch.setattr(nltk.data, "path", [str(CORPORA)])
    yield
    textarena_play._made.cache_clear()


def test_a_game_whose_words_are_missing_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import nltk

    monkeypatch.setattr(nltk.data, "path", [])
    with pytest.raises(
        ConfigurationError, match=r"python -m nltk.downloader words averaged_perceptron_tagger_eng"
    ):
        TextArena(games=("Wordle-v0",))


def test_brackets_are_not_added_where_textarena_adds_none(words: None) -> None:
    env, _ = opened("WordSearch-v0")
    (row, column, way) = next(iter(env.state.play.game.placed_words.values()))
    assert not played(env, [f"{row} {column} {row} {column}"])[0].info["valid"]
    assert played(env, [f"[{row} {column} {row} {column}]"])[0].info["valid"], way


def test_wordle_takes_words_that_are_there_and_does_not_look_for_others(
    words: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nltk

    monkeypatch.setattr(nltk, "download", lambda *args, **kwargs: pytest.fail("the network was asked"))
    env, opening = opened("Wordle-v0")
    assert "secret 5-letter word" in opening
    secret = env.state.play.game.state.game_state["secret_word"]
    wrong = next(word for word in ("apple", "chair", "bread") if word != secret)
    steps = played(env, [f"[{wrong}]", f"[{secret}]"])
    assert f"You submitted [{wrong}]." in text_of(steps[0])
    assert (steps[-1].reward, steps[-1].info["solved"]) == (1.0, True)


def test_hangman_pays_the_whole_word_alone(words: None) -> None:
    env, _ = opened("Hangman-v0")
    target = env.state.play.game.state.game_state["target_word"]
    letters = list(dict.fromkeys(target))
    steps = played(env, [f"[{letter}]" for letter in letters])
    assert [step.reward for step in steps] == [0.0] * (len(letters) - 1) + [1.0]


def test_copies_of_a_game_of_words_share_the_words(words: None) -> None:
    env, _ = opened("Wordle-v0")
    game, twin = env.state.play.game, copy.deepcopy(env.state.play).game
    assert twin.word_list is game.word_list
    assert twin.dictionary is game.dictionary
    assert twin.state is not game.state


def test_a_word_search_is_found_word_by_word(words: None) -> None:
    env, _ = opened("WordSearch-v0", partial_reward=True)
    places = env.state.play.game.placed_words
    moves = []
    for word, (row, column, way) in places.items():
        end = (row, column + len(word) - 1) if way == "across" else (row + len(word) - 1, column)
        moves.append(f"[{row} {column} {end[0]} {end[1]}]")
    steps = played(env, moves)
    assert [step.reward for step in steps] == [0.0] * (len(places) - 1) + [1.0]


def test_a_word_ladder_is_climbed(words: None) -> None:
    """Of the words that are there, the only ladder of five steps or more is cat, cot, cog, dog, dig, big, either way."""
    env, _ = opened("WordLadder-v0", partial_reward=True)
    ladder = ["cat", "cot", "cog", "dog", "dig", "big"]
    if env.state.play.game.start_word == "big":
        ladder.reverse()
    steps = played(env, [f"[{word}]" for word in ladder[1:]])
    assert [step.reward for step in steps] == [0.0] * 4 + [1.0]
    assert steps[-1].info["solved"]
