"""What may reach the verifiers of reasoning-gym: which data sets are refused, and which answers of the others.

A verifier is a function of Python that reads what a policy wrote, in the process of the training. Some execute it, some pay
in full for an answer that solves nothing, and some compute for hours on a few characters. All verifiers of release 0.1.25
were read.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

UNSUPPORTED = {
    "codeio": "one in fifty of its problems is another one in another process",
    "coin_flip": "its verifier pays in full for the answer 0, and computes without end on 1e999999999",
    "composite": "it consists of other data sets: name those",
    "game_of_life_halting": "its verifier takes any text for right where the answer is no",
    "intermediate_integration": "its verifier executes the answer as Python",
    "list_functions": "one in sixteen of its problems is drawn anew each time, so it is another one in another process",
    "polynomial_multiplication": "its verifier executes the answer as Python",
    "propositional_logic": "its verifier pays in full for a premise that is repeated, and tries every value of any "
    "number of variables",
    "simple_integration": "its verifier executes the answer as Python",
}
"""Data sets that are refused, and why."""

EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(")
OWN_TEXTS = frozenset({"basic_arithmetic", "bitwise_arithmetic"})
"""Data sets of release 0.1.25 whose modules evaluate texts of their own and never an answer."""

MOST_CHARS = 20_000
"""Of an answer that is verified, unless the right one is longer."""
_MOST_TURNS = 1_000  # of a cube: several times what people need who follow a method
_MOST_ORDER = 200  # characters of the order to one agent of boxnet

Guard = Callable[[str, Mapping[str, Any]], bool]


def may_be_verified(name: str, answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether the verifier of the data set ``name`` may read ``answer``; it is wrong otherwise.

    Args:
        name: Of the data set.
        answer: What a policy wrote.
        entry: The problem, as reasoning-gym made it.
    """
    if len(answer) > max(MOST_CHARS, 2 * len(str(entry["answer"] or ""))):
        return False
    guard = GUARDS.get(name)
    return guard is None or guard(answer, entry)


def _is_arithmetic(answer: str, _: Mapping[str, Any]) -> bool:
    """Whether ``answer`` consists of whole numbers, ``+ - * /`` and parentheses.

    Powers could take for ever, a whole quotient (``//``) is no operator of these puzzles, and of a number with a point the
    verifier counts the two halves as two numbers.
    """
    if len(answer) > 500 or re.search(r"\*\*|//|\.\s*\d", answer):
        return False
    return bool(re.fullmatch(r"[\d\s+\-*/().]*", answer))


def _makes_24(answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether ``answer`` uses the numbers of the puzzle and is 24: the verifier takes any four numbers, and rounds."""
    if not _is_arithmetic(answer, entry):
        return False
    from sympy.parsing.sympy_parser import parse_expr

    numbers = sorted(map(int, re.findall(r"\d+", answer)))
    try:
        return numbers == sorted(entry["metadata"]["numbers"]) and bool(parse_expr(answer) == 24)
    except (
        Exception
    ):  # whatever Python raises for what is no arithmetic, such as a parenthesis that is not closed
        return False


def _is_literal(answer: str, _: Mapping[str, Any]) -> bool:
    """Whether ``answer`` is a Python literal, or words and numbers alone, which do nothing where they are evaluated."""
    if re.fullmatch(r"[\w\s,-]*", answer):
        return True
    try:
        ast.literal_eval(answer)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_finite_list(answer: str, _: Mapping[str, Any]) -> bool:
    """Whether ``answer`` is written with digits alone, without NaN, which no comparison of the verifier finds wrong."""
    return bool(re.fullmatch(r"[\d\s\[\],.'\"+\-eE]*", answer))


def _is_finite_complex(answer: str, _: Mapping[str, Any]) -> bool:
    """Whether ``answer`` is written with digits and ``i`` or ``j`` alone, without NaN, for which the verifier pays 1."""
    return bool(re.fullmatch(r"[\d\s.+\-*()eEiIjJ]*", answer))


def _says_none_where_none_is(answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether ``answer`` is empty where there is no solution; the verifier takes every text without numbers for empty."""
    return entry["answer"] != "" or answer in ("", '""', "''")


def _has_short_orders(answer: str, _: Mapping[str, Any]) -> bool:
    """Whether no order is long: the verifier searches it by an expression whose time grows with the square of its length."""
    try:
        steps = json.loads(answer)
        return all(len(order) <= _MOST_ORDER for step in steps for order in step.values())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return False


def _has_short_moves(answer: str, _: Mapping[str, Any]) -> bool:
    """Whether no car moves ten steps or more, as the verifier counts them one by one and the board has six."""
    return not re.search(r"[A-Z][+-]\d\d", answer)


def _has_few_turns(answer: str, _: Mapping[str, Any]) -> bool:
    """Whether all turns of the cube together, of which ``R3`` is three, are few enough to be made."""
    if re.search(r"\d{5}", answer):
        return False
    turns = answer.split()
    return len(turns) + sum(map(int, re.findall(r"\d+", answer))) <= _MOST_TURNS


GUARDS: Mapping[str, Guard] = {
    "binary_matrix": _is_literal,
    "boxnet": _has_short_orders,
    "complex_arithmetic": _is_finite_complex,
    "countdown": _is_arithmetic,
    "n_queens": _is_literal,
    "number_sorting": _is_finite_list,
    "polynomial_equations": _says_none_where_none_is,
    "puzzle24": _makes_24,
    "rubiks_cube": _has_few_turns,
    "rush_hour": _has_short_moves,
    "spiral_matrix": _is_literal,
    "string_insertion": _is_literal,
}
"""By data set, which answers may reach its verifier."""
