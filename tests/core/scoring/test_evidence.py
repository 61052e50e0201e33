"""Whether a page holds an answer: by whole words, in scripts with blanks and without; yes and no stand on none."""

import pytest

from agentenv.core.scoring.evidence import contains_phrase, findable_answers, holds_answer
from agentenv.core.scoring.normalize import squad_words

PAGE = "\n\n<information>Doc 1(Title: Oslo) The city lies in the north because of 1910.</information>\n\n"


@pytest.mark.parametrize("answer", ["no", "US", "10", "A", "The", "information"])
def test_letters_of_other_words_are_no_answer(answer: str) -> None:
    assert not holds_answer(PAGE, [answer])


@pytest.mark.parametrize("answer", ["Oslo", "the City", "1910", "lies in north"])
def test_whole_words_are_one(answer: str) -> None:
    assert holds_answer(PAGE, [answer])


def test_yes_and_no_stand_on_no_page() -> None:
    assert not holds_answer("yes and no", ["yes", "No."])
    assert findable_answers(["Yes", "no", "The", "Oslo"]) == ["Oslo"]
    assert holds_answer("yes, in Oslo", ["yes", "Oslo"])


def test_a_tag_is_no_part_of_a_word() -> None:
    assert holds_answer("<information>in Oslo</information>", ["Oslo"])


def test_a_phrase_stands_in_order() -> None:
    assert contains_phrase("guild of kov", "Who led the Guild, of Kov?")
    assert not contains_phrase("kov guild", "Who led the Guild of Kov?")
    assert not contains_phrase("10", "Who was born in 1910?")
    assert not contains_phrase("", "anything")


def test_characters_are_the_words_of_chinese_and_japanese() -> None:
    assert squad_words("The capital: 北京市。") == ["capital", "北", "京", "市", "。"]
    assert holds_answer("中华人民共和国的首都是北京。", ["北京"])
    assert holds_answer("日本の首都は東京です", ["東京"])
    assert not holds_answer("首都是南京。", ["北京"])
