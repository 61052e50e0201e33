"""Where an error was raised, as the author of an environment needs it: the last line of their own code on the way to it.

The last frame of all is often one of the library that called the environment, or of a module that the environment uses.
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
_TYPED = ("<stdin>", "<console>", "<python-input", "<ipython-input")
_FRAME = re.compile(r'^ *(?:[|] *)*File "(.+)", line (\d{1,9})\b', re.MULTILINE)

Frames = Sequence[tuple[str, int]]
"""File and line of each frame, the outermost first."""


def place_of(error: BaseException) -> str:
    """File and line of ``error``, such as ``guess.py, line 22``; empty where there is none to show.

    An error of this package says what is wrong by itself, so that only the line of its author's code is worth naming.
    """
    if isinstance(error, SyntaxError):  # it says itself where it is
        return ""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, AgentEnvError):
        frames = [frame for frame in frames if _is_own(frame[0])]
    return _place(frames)


def place_in(text: str) -> str:
    """File and line of the error whose traceback ``text`` is; empty where it is no traceback."""
    return _place([(file, int(line)) for file, line in _FRAME.findall(text)])


def place_of_thread(ident: int) -> str:
    """Where a thread is now; empty where it runs no code but that of this package and what is installed."""
    frame = sys._current_frames().get(ident)
    found = traceback.extract_stack(frame) if frame is not None else []
    own = [(frame.filename, frame.lineno or 0) for frame in found if _is_own(frame.filename)]
    return _place(own)


def _is_own(file: str) -> bool:
    """Whether a file is neither of this package nor installed."""
    return not file.startswith(("<", _PACKAGE, *_INSTALLED))


def _place(frames: Frames) -> str:
    """The last frame of code that is neither of this package nor installed; where all is, the last one of a file.

    Where no file holds such code, the last frame of what was typed into an interpreter, or piped into it, comes first.
    """
    in_files = [frame for frame in frames if not frame[0].startswith("<")]
    own = [frame for frame in in_files if _is_own(frame[0])]
    typed = [frame for frame in frames if frame[0].startswith(_TYPED)]
    for file, line in reversed(own or typed or in_files):
        return f"{Path(file).name}, line {line}"
    return ""
