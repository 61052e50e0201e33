"""The process that runs untrusted code: once, or one cell after another.

Everything that it reports may come from the program itself.
"""

import ast
import atexit
import builtins
import hashlib
import json
import linecache
import os
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

from agentenv.sandbox.jail import answers, frames, kernel, plain

OOM_EXIT = 137
IMPORTED = "main"
"""The ``__name__`` of a program whose functions are called."""
VALUE_LIMIT = 65536
DIGEST_ITEMS = 20_000
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


_ours: list[str] = []


def name_own_modules() -> None:
    """Lists the modules of this package before anything is forked; listing them in a fork would touch all names."""
    _ours[:] = [name for name in sys.modules if name.partition(".")[0] == "agentenv"]


def prepare(folder: str, arguments: list[str]) -> types.ModuleType:
    """Makes new streams and a new ``__main__`` for a program in ``folder``, and hides the modules of this package."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    sys.argv = arguments
    sys.path.insert(0, folder)
    for name in _ours:
        del sys.modules[name]
    del sys.meta_path[0]
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()  # a fork reseeds Python's own generator, but not numpy's
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def remember(name: str, code: str) -> None:
    """Makes the lines of ``code`` available to tracebacks."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)


def own_frames(error: BaseException, names: tuple[str, ...]) -> types.TracebackType | None:
    """Returns the traceback from the program's first frame on."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename not in names:
        at = at.tb_next
    return at


def report(error: BaseException, names: tuple[str, ...], *, variables: bool) -> dict[str, Any]:
    """Prints the traceback; returns class, message and line of the error, and the variables if requested."""
    start = own_frames(error, names)
    traceback.print_exception(type(error), error, start)
    found: dict[str, Any] = {"type": type(error).__name__, "message": str(error)[:2000], "line": 0}
    last = None
    while start is not None:
        if start.tb_frame.f_code.co_filename in names:
            last = start
        start = start.tb_next
    if isinstance(error, SyntaxError):
        found["line"] = error.lineno or 0
    if last is not None:
        found["line"] = last.tb_lineno
        if variables:
            described = _variables(last.tb_frame, found["line"])
            print(f"Variables on line {found['line']}: {described or 'none'}", file=sys.stderr)
    return found


def _variables(frame: types.FrameType, line: int) -> str:
    """Returns ``name = value`` for every variable on ``line``, each shortened."""
    text = linecache.getline(frame.f_code.co_filename, line)
    try:
        words = {
            node.id for node in ast.walk(ast.parse(text.strip().rstrip(":"))) if isinstance(node, ast.Name)
        }
    except SyntaxError:
        words = set(text.replace("(", " ").replace(")", " ").replace(":", " ").replace(",", " ").split())
    described = []
    for name in sorted(words):
        scope = frame.f_locals if name in frame.f_locals else frame.f_globals
        if name in scope and not isinstance(scope[name], (types.ModuleType, types.FunctionType, type)):
            described.append(f"{name} = {repr(scope[name])[:120]}")
    return ", ".join(described)


def run_program(request: dict[str, Any], main: types.ModuleType) -> NoReturn:
    """Runs a whole program in ``main``, then the requested calls, and exits as an interpreter would.

    A program whose functions are called is imported: the part that runs only for a main program may read missing input, or
    exit.
    """
    code, status = request["code"], 0
    remember("main.py", code)
    if request.get("calls") is not None:
        main.__dict__["__name__"] = IMPORTED
        sys.modules[IMPORTED] = main
    try:
        exec(compile(code, "main.py", "exec"), main.__dict__)
        variables = bool(request.get("variables"))
        for name, arguments in request.get("calls") or ():
            document = answer_call(main.__dict__, name, arguments, variables=variables)
            variables = variables and "e" not in document  # only the first error is shown
            frames.write_all(3, frames.encode(document) + b"\n")
    except SystemExit as stop:
        status = _exit_code(stop.code)
    except MemoryError:
        status = OOM_EXIT
    except BaseException as error:
        status = 1
        _report_safely(error, ("main.py",), bool(request.get("variables")))
    try:
        # In the order of an interpreter's exit: first non-daemon threads, then exit handlers, and the streams last, because
        # both may still write.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        status = status or 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            status = status or 1
    os._exit(status)


def _report_safely(error: BaseException, names: tuple[str, ...], variables: bool) -> dict[str, Any]:
    """Does what ``report`` does, even if the program broke something that it needs."""
    try:
        return report(error, names, variables=variables)
    except BaseException:
        return {"type": type(error).__name__, "message": "", "line": 0}


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 255
    print(code, file=sys.stderr)
    return 1


def answer_call(
    scope: dict[str, Any], name: str, arguments: Any, *, variables: bool = False
) -> dict[str, Any]:
    """Calls a function of the program; returns ``{"v": value}`` or ``{"e": error}``, also on stderr with ``variables``.

    If the value is not plain, ``"truth"`` contains its truth value.
    """
    try:
        value = _find(scope, name)(*plain.load(arguments))
        try:
            return {"v": plain.dump(value, returned=True)}
        except plain.NotPlain as error:
            return {"e": f"the returned value cannot be compared: {error}", "truth": bool(value)}
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        if variables:
            _report_safely(error, ("main.py",), variables)
        return {"e": f"{type(error).__name__}: {str(error)[:500]}"}


def _find(scope: dict[str, Any], name: str) -> Callable[..., Any]:
    """Returns the function ``f``, or for ``C.m`` the method ``m`` of a new object."""
    first, _, method = name.partition(".")
    found = scope[first]
    chosen: Callable[..., Any] = getattr(found(), method) if method else found
    return chosen


class Interpreter:
    """A session's process, which waits on a link to the supervisor for a cell or an order to fork."""

    def __init__(self, link: socket.socket, folder: str) -> None:
        self._link = link
        os.chdir(folder)
        self._scope = prepare(folder, ["cell"]).__dict__
        self._cells = 0
        self._names: tuple[str, ...] = ()
        self._folder = folder

    def serve(self) -> NoReturn:
        """Runs cells until the supervisor has ended."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        while True:
            try:
                body, fds = frames.receive_with_fds(self._link, count=4)
                order = json.loads(body)
                if order["op"] == "fork":
                    self._fork(fds)
                elif order["op"] == "take":
                    frames.send(self._link, b"{}")
                else:
                    frames.send(self._link, frames.encode(self._cell(order)))
            except frames.Closed:
                os._exit(0)

    def _fork(self, fds: list[int]) -> None:
        """Forks; the child continues with its own link and streams, and this process never runs a cell again.

        The child is not a child of this process, which cannot learn how it ended. The supervisor checks the result, because
        the program may have changed everything that is used here.
        """
        timed = any(signal.getitimer(kind)[0] for kind in _TIMERS)
        try:
            pid = -1 if timed else kernel.fork_into(kernel.CLONE_PARENT)
        except OSError:  # no child greets the supervisor, so it refuses the snapshot
            pid = -1
        if pid:
            for fd in fds:
                os.close(fd)
            frames.send(self._link, answers.TIMED if timed else b"{}")
            return
        os.setsid()
        os.chdir("/")  # otherwise both would share the same folder
        self._link.close()
        *streams, link = fds
        for goal, fd in enumerate(streams):
            os.dup2(fd, goal)
            os.close(fd)
        self._link = socket.socket(fileno=link)
        frames.send(self._link, b"{}")

    def _cell(self, order: dict[str, Any]) -> dict[str, Any]:
        self._cells += 1
        name = f"<cell {self._cells}>"
        self._names += (name,)
        remember(name, order["code"])
        answer: dict[str, Any] = {"ok": True, "value": None, "error": None}
        try:
            os.chdir(order["folder"])
        except OSError:
            os.chdir(self._folder)
        try:
            answer["value"] = self._run(name, order["code"])
        except BaseException as error:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            answer["ok"] = isinstance(error, SystemExit) and error.code in (None, 0)
            if not answer["ok"]:
                answer["error"] = _report_safely(error, self._names, bool(order.get("variables")))
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException as error:
                answer["ok"] = False
                answer["error"] = {"type": type(error).__name__, "message": str(error)[:200], "line": 0}
        answer["folder"] = _present_folder(self._folder)
        answer["digest"] = digest(self._scope)
        return answer

    def _run(self, name: str, code: str) -> str | None:
        """Executes a cell; returns the text of its last expression if that is not None."""
        body, last = split_cell(code, name)
        # discards a signal that came too late for the previous cell
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Only around the program, because a SIGINT of the supervisor must end the cell and not the loop that answers it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        text = None
        exec(body, self._scope)
        if last is not None:
            value = eval(last, self._scope)
            if value is not None:
                self._scope["_"] = value
                text = repr(value)
                if len(text) > VALUE_LIMIT:
                    text = text[:VALUE_LIMIT] + f"[{len(text) - VALUE_LIMIT} characters left out]"
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return text


def split_cell(code: str, name: str) -> tuple[types.CodeType, types.CodeType | None]:
    """Returns the statements of a cell, and its last expression if it ends in one."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    body = compile(tree, name, "exec")
    return body, compile(ast.Expression(last.value), name, "eval") if isinstance(last, ast.Expr) else None


def _present_folder(fallback: str) -> str:
    try:
        return os.getcwd()
    except OSError:
        return fallback


def digest(scope: dict[str, Any]) -> str:
    """Returns a digest of the names in ``scope``, their types and, if they are plain, their values."""
    room = [DIGEST_ITEMS]
    lines = []
    for name in sorted(key for key in scope if isinstance(key, str) and not key.startswith("__")):
        try:
            lines.append(f"{name}:{_described(scope[name], room)}")
        except Exception:
            lines.append(f"{name}:?")
    return hashlib.sha256("\n".join(lines).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _described(value: Any, room: list[int]) -> str:
    """Returns type and value of a builtin value, only the type of others; stops when ``room`` is used up."""
    kind = type(value)
    room[0] -= 1
    if room[0] < 0:
        return "..."
    if kind in (int, float, bool, complex, type(None)):
        return f"{kind.__name__} {value!r}"[:200]
    if kind in (str, bytes, bytearray):
        return (
            f"{kind.__name__} {value!r}"
            if len(value) < 4096
            else f"{kind.__name__} {len(value)} {value[:4096]!r}"
        )
    if kind in (list, tuple):
        return f"{kind.__name__} {[_described(item, room) for item in value[: max(room[0], 0)]]}"
    if kind in (set, frozenset):
        return f"{kind.__name__} {sorted(_described(item, room) for item in value)}"
    if kind is dict:
        pairs = [(_described(key, room), _described(item, room)) for key, item in value.items()]
        return f"dict {pairs}"
    return f"{kind.__module__}.{kind.__qualname__}"
