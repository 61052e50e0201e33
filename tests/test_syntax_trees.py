"""Syntax trees are built whatever else of the process is parsed at that moment."""

import ast
from collections.abc import Callable

import pytest

from agentenv.syntax_trees import parse_expression, parse_python

PARSERS = pytest.mark.parametrize("parser", [parse_python, parse_expression])


@PARSERS
def test_what_a_finaliser_parses_meanwhile_does_no_harm(
    parser: Callable[[str], ast.AST], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error stands in for the interpreter's, which newer ones do not raise."""
    parse, errors = (
        ast.parse,
        [SystemError("AST constructor recursion depth mismatch (before=24, after=77)")] * 2,
    )

    def sometimes(source: str, mode: str) -> ast.AST:
        if errors:
            raise errors.pop()
        return parse(source, mode=mode)

    monkeypatch.setattr(ast, "parse", sometimes)
    assert ast.unparse(parser("1 + 2 * (3 - 4 // 5)")) == "1 + 2 * (3 - 4 // 5)"
    assert not errors


@PARSERS
def test_an_error_that_stays_is_raised(
    parser: Callable[[str], ast.AST], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(source: str, mode: str) -> ast.AST:
        raise SystemError(source)

    monkeypatch.setattr(ast, "parse", never)
    with pytest.raises(SystemError, match="7"):
        parser("7")


@PARSERS
def test_a_text_that_is_wrong_is_wrong(parser: Callable[[str], ast.AST]) -> None:
    with pytest.raises(SyntaxError):
        parser("1 +")
    with pytest.raises(SyntaxError):
        parse_expression("a = 1")
