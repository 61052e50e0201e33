"""Finds where an error was raised in the code of an environment's author: the last line of that code in the traceback.

The last frame of a traceback often belongs to the library that called the environment, or to a module that it uses.
"""

import re
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from agentenv.errors import AgentEnvError

_PACKAGE = str(Path(__file__).parents[1])
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_INTERACTIVE_FILES = ("<stdin>", "<console>", "<python-input", "<ipython-input")
_FRAME = re.compile(r'^ *(?:[|] *)*File "(.+)", line (\d{1,9})\b', re.MULTILINE)

Frames = Sequence[tuple[str, int]]
"""File and line of each frame, outermost first."""


def place_of(error: BaseException) -> str:
    """Returns the file and line of ``error``, such as ``guess.py, line 22``; empty if there is none to show.

    Errors of this package explain themselves, so for them only a line of the author's own code is worth naming.
    """
    if isinstance(error, SyntaxError):  # its message already names the place
        return ""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, AgentEnvError):
        frames = [frame for frame in frames if _is_own(frame[0])]
    return _place(frames)


def place_in(text: str) -> str:
    """Returns the file and line of the error in the traceback ``text``; empty if it is no traceback."""
    return _place([(file, int(line)) for file, line in _FRAME.findall(text)])


def place_of_thread(ident: int) -> str:
    """Returns where a thread is now; empty if it runs only code of this package and installed code."""
    frame = sys._current_frames().get(ident)
    found = traceback.extract_stack(frame) if frame is not None else []
    own = [(frame.filename, frame.lineno or 0) for frame in found if _is_own(frame.filename)]
    return _place(own)


def _is_own(file: str) -> bool:
    """Whether a file belongs neither to this package nor to an installed one."""
    return not file.startswith(("<", _PACKAGE, *_INSTALLED))


def _place(frames: Frames) -> str:
    """Returns the last frame in code that is neither of this package nor installed; otherwise the last frame in any file.

    If no file holds such code, the last frame of code typed or piped into an interpreter is preferred.
    """
    in_files = [frame for frame in frames if not frame[0].startswith("<")]
    own = [frame for frame in in_files if _is_own(frame[0])]
    typed = [frame for frame in frames if frame[0].startswith(_INTERACTIVE_FILES)]
    for file, line in reversed(own or typed or in_files):
        return f"{Path(file).name}, line {line}"
    return ""
