"""What ``--help`` of a command says above its flags."""

import inspect
import re
import shutil
import textwrap


def description(cls: type) -> str:
    """The docstring of a command: its paragraphs filled to the width of the terminal, its examples as they stand.

    A paragraph with indented lines, such as a list of examples, keeps its lines, so that each can be copied.
    """
    width = max(40, shutil.get_terminal_size().columns)
    paragraphs = (inspect.getdoc(cls) or "").split("\n\n")
    told = [text if _is_list(text) else textwrap.fill(text, width) for text in paragraphs]
    told.append(textwrap.fill("--json prints the result as one JSON document and nothing else.", width))
    return "\n\n".join(told) + "\n"


def _is_list(paragraph: str) -> bool:
    return re.search(r"^(Examples?:|  )", paragraph, re.MULTILINE) is not None
