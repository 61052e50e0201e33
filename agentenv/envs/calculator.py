"""``agentenv/Calculator-v0``: sums to solve with a calculator tool, the smallest environment with tools."""

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentenv.core.tools import ToolEnv, tool
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task
from agentenv.data.splits import in_split
from agentenv.syntax_trees import parse_expression

OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
MAX_CHARACTERS = 200


@dataclass
class CalculatorState:
    """All that changes within an episode."""

    task: Task
    calls: int = 0


class Calculator(ToolEnv[CalculatorState]):
    """Poses a sum of three-digit numbers; reward 1 for the exact number as the final answer."""

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
        """Makes tasks of the kind that an episode draws."""
        rng, tasks = np.random.default_rng(seed), list[Task]()
        while len(tasks) < n:
            if in_split(sum_ := draw_sum(rng), split):
                tasks.append(Task(sum_, sum_, (str(evaluate(sum_)),), split))
        return tasks

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, whose question is a sum, or a sum drawn with the seed."""
        await super().areset(seed=seed, options=options)
        drawn = draw_sum(self.np_random)
        task = (options or {}).get("task") or Task(drawn, drawn, (str(evaluate(drawn)),))
        self.state = CalculatorState(task)
        text = f"{self.tool_prompt()}Reply with the number alone: what is {task.question}?"
        return (Message("user", text),), {"task_id": task.id}

    @tool
    def calculate(self, expression: str) -> str:
        """Evaluates integer arithmetic.

        Args:
            expression: Integers, parentheses and the operators + - * //.
        """
        self.state.calls += 1
        return str(evaluate(expression))

    def answer(self, text: str) -> Step:
        """Scores ``text`` against the exact number."""
        right = text.strip() in self.state.task.answers
        return self.result((), reward=float(right), end=EndReason.ANSWERED, answer=text.strip())

    def expert(self) -> Sequence[str]:
        """Returns one call of the calculator, followed by the answer."""
        task = self.state.task
        call = f'{{"name": "calculate", "arguments": {{"expression": "{task.question}"}}}}'
        return (f"<tool_call>{call}</tool_call>", task.answers[0])

    def render(self) -> str:
        """Shows the sum and the number of calls of the calculator."""
        return f"{self.state.task.question} [{self.state.calls} calls]"


def draw_sum(rng: np.random.Generator) -> str:
    """Draws a sum of three-digit numbers."""
    a, b, c = (int(n) for n in rng.integers(100, 1000, size=3))
    return f"{a} * {b} - {c}"


def evaluate(expression: str) -> int:
    """Evaluates integer arithmetic from its syntax tree, so that nothing is ever executed.

    Raises:
        ValueError: it contains anything but integers, parentheses and the operators + - * //, or more than 200 characters.
        ZeroDivisionError: a division by 0.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"the expression has {len(expression)} characters, {MAX_CHARACTERS} at most")
    try:
        return _value(parse_expression(expression.strip()))
    except SyntaxError as error:
        raise ValueError(f"{expression!r} is no arithmetic") from error


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError(f"{ast.unparse(node)!r} is not allowed; use integers and + - * //")
