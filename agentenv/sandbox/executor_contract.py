"""Tests that every executor and its sessions must pass. Define ``ExecutorContract.make``; pytest runs the tests.

class TestMine(ExecutorContract):
    def make(self):
        return MyExecutor()

It does not test limits and isolation, which the attack suite tests.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentenv.errors import SandboxFault, SnapshotError
from agentenv.sandbox.jail import plain
from agentenv.sandbox.types import ExecStatus, Executor, ExecutorSession, FunctionCall


class ExecutorContract:
    """Inherit from this class and define ``make``; every test below then runs against your executor."""

    def make(self) -> Executor:
        """Makes an executor; ``done`` closes it after the test, or keeps it for the next one."""
        raise NotImplementedError

    def done(self, executor: Executor) -> None:
        """Closes an executor after a test."""
        executor.close()

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """Yields an executor for one test."""
        made = self.make()
        try:
            yield made
        finally:
            self.done(made)

    @contextmanager
    def session(self, **options: Any) -> Iterator[ExecutorSession]:
        """Yields a session for one test."""
        with self.executor() as executor:
            opened = executor.open(**options)
            try:
                yield opened
            finally:
                opened.close()

    def test_it_is_an_executor(self) -> None:
        """The executor and its sessions have the methods of the protocols."""
        with self.executor() as executor:
            assert isinstance(executor, Executor)
            session = executor.open()
            assert isinstance(session, ExecutorSession)
            session.close()
            session.close()

    def test_a_program_reads_and_writes(self) -> None:
        """A program gets its standard input, and its standard output is returned."""
        with self.executor() as executor:
            result = executor.run("print(input()[::-1])", stdin="abc\n")
            assert (result.status, result.stdout, result.exit_code) == (ExecStatus.OK, "cba\n", 0)

    def test_text_of_every_language_survives(self) -> None:
        """Accents, Chinese characters and emoji are passed unchanged in both directions."""
        with self.executor() as executor:
            assert executor.run("print(input())", stdin="é 漢 🐍\n").stdout == "é 漢 🐍\n"

    def test_an_exception_is_the_programs(self) -> None:
        """An uncaught exception gives status ``error``, exit code 1 and a traceback on stderr."""
        with self.executor() as executor:
            result = executor.run("print('before')\n1 / 0")
            assert (result.status, result.exit_code, result.stdout) == (ExecStatus.ERROR, 1, "before\n")
            assert "ZeroDivisionError" in result.stderr

    def test_the_variables_of_the_failing_line_are_shown_if_asked(self) -> None:
        """On request, stderr shows shortened variables for programs, cells and the first function call that raises."""
        program = "def f(x):\n    y = [x] * 9999\n    return y[x] + y.z"
        calls = [FunctionCall("f", (3,)), FunctionCall("f", (4,))]
        with self.session() as session, self.executor() as executor:
            failed = executor.run(f"{program}\nf(3)", variables=True)
            assert "Variables on line 3: x = 3, y = [3, 3, 3" in failed.stderr
            assert len(failed.stderr) < 1000
            called = executor.run(program, calls=calls, variables=True)
            assert "Variables on line 3: x = 3, y" in called.stderr
            assert "x = 4" not in called.stderr
            assert "Variables on line 2: x = 3" in session.run("x = 3\nx.y", variables=True).stderr
            for silent in (executor.run(f"{program}\nf(3)"), executor.run(program, calls=calls)):
                assert "Variables" not in silent.stderr

    def test_exit_codes(self) -> None:
        """``sys.exit`` without a code is a success; with a code other than 0 it is an error."""
        with self.executor() as executor:
            assert executor.run("import sys; sys.exit()").status is ExecStatus.OK
            result = executor.run("import sys; sys.exit(7)")
            assert (result.status, result.exit_code) == (ExecStatus.ERROR, 7)

    def test_files_go_in_and_come_out(self) -> None:
        """Given files exist, requested files are returned, and missing ones are listed in ``refused``."""
        with self.executor() as executor:
            code = (
                "with open('in.txt') as f: text = f.read()\nwith open('out.txt', 'w') as f: f.write(text * 2)"
            )
            result = executor.run(code, files={"in.txt": b"ab"}, collect=["out.txt", "none.txt"])
            assert (result.ok, dict(result.files)) == (True, {"out.txt": b"abab"})
            assert set(result.refused) == {"none.txt"}

    def test_calls_return_plain_values(self) -> None:
        """Each call gives one document that preserves types; an error is named, and later calls still run."""
        with self.executor() as executor:
            code = "def f(x): return (x, {1: [x]})\nclass C:\n    def m(self, x): return {x}"
            calls = [
                FunctionCall("f", (2,)),
                FunctionCall("f"),
                FunctionCall("C.m", ("a",)),
                FunctionCall("missing"),
            ]
            answers = executor.run(code, calls=calls).returned
            first, second, third, fourth = map(plain.decode, answers)
            assert first == {"v": {"t": [2, {"d": [[1, {"l": [2]}]]}]}}
            assert second["e"].startswith("TypeError")
            assert third == {"v": {"s": ["a"]}}
            assert fourth["e"].startswith("KeyError")

    def test_a_program_whose_functions_are_called_is_imported(self) -> None:
        """The block ``if __name__ == "__main__":`` runs only in a run without function calls."""
        code = "def f(x): return x\nif __name__ == '__main__':\n    print(f(int(input())))\n    raise SystemExit(3)"
        with self.executor() as executor:
            called = executor.run(code, calls=[FunctionCall("f", (2,))])
            assert (called.ok, called.stdout) == (True, "")
            assert plain.decode(called.returned[0]) == {"v": 2}
            assert executor.run(code, calls=[]).ok
            started = executor.run(code, stdin="4\n")
            assert (started.exit_code, started.stdout) == (3, "4\n")

    def test_nothing_stays_between_runs(self) -> None:
        """Names and files of one run do not exist in the next one."""
        with self.executor() as executor:
            executor.run("x = 1\nwith open('left.txt', 'w') as f: f.write('x')")
            result = executor.run("print('x' in globals())\nopen('left.txt')")
            assert result.stdout == "False\n"
            assert "FileNotFoundError" in result.stderr

    def test_a_session_keeps_names_and_shows_the_last_value(self) -> None:
        """State lasts from cell to cell; the value of a cell is that of its last expression, unless that is None."""
        with self.session() as session:
            assert session.run("x = [1]\nx").value == "[1]"
            assert session.run("x.append(2)").value is None
            result = session.run("print('seen')\nx")
            assert (result.status, result.stdout, result.value) == (ExecStatus.OK, "seen\n", "[1, 2]")

    def test_a_session_survives_an_error(self) -> None:
        """An exception ends the cell and not the interpreter."""
        with self.session() as session:
            session.run("x = 5")
            failed = session.run("y = x / 0")
            assert failed.error is not None
            assert (failed.status, failed.error.type) == (ExecStatus.ERROR, "ZeroDivisionError")
            assert session.run("x").value == "5"

    def test_a_session_has_files(self) -> None:
        """Files last from cell to cell; they can be passed in and collected."""
        with self.session(files={"a.txt": b"one"}) as session:
            session.run("with open('a.txt', 'a') as f: f.write(' two')")
            assert session.run("1", collect=["a.txt"]).files["a.txt"] == b"one two"

    def test_restore_goes_back_as_often_as_asked(self) -> None:
        """A snapshot can be restored twice, and both times restores names and files."""
        with self.session() as session:
            session.run("x = [1]\nwith open('f', 'w') as f: f.write('1')")
            point = session.snapshot()
            for _ in range(2):
                assert session.run("x.append(2)\nwith open('f', 'a') as f: f.write('2')\nx").value == "[1, 2]"
                session.restore(point)
                assert session.run("with open('f') as f: text = f.read()\n(x, text)").value == "([1], '1')"

    def test_snapshots_nest(self) -> None:
        """An earlier snapshot and a later one can be restored in any order."""
        with self.session() as session:
            session.run("x = 1")
            first = session.snapshot()
            session.run("x = 2")
            second = session.snapshot()
            session.run("x = 3")
            for point, value in ((first, "1"), (second, "2"), (first, "1")):
                session.restore(point)
                assert session.run("x").value == value

    def test_released_and_foreign_snapshots_are_refused(self) -> None:
        """Restoring a released or foreign snapshot raises a typed error; releasing twice is harmless."""
        with self.session() as session, self.session() as other:
            point = session.snapshot()
            _refuses(lambda: other.restore(point))
            point.release()
            point.release()
            _refuses(lambda: session.restore(point))

    def test_forks_are_independent(self) -> None:
        """The cells of a fork change neither the original nor other forks."""
        with self.session() as session:
            session.run("x = [0]\nwith open('f', 'w') as f: f.write('0')")
            forks = session.fork(3)
            for index, fork in enumerate(forks):
                fork.run(f"x.append({index})\nwith open('f', 'w') as f: f.write('{index}')")
            look = "with open('f') as f: text = f.read()\n(x, text)"
            assert session.run(look).value == "([0], '0')"
            assert [fork.run(look).value for fork in forks] == [f"([0, {i}], '{i}')" for i in range(3)]
            one = forks[0].fork()
            assert one.run("x").value == "[0, 0]"
            for fork in (*forks, one):
                fork.close()

    def test_a_fork_outlives_the_original(self) -> None:
        """Forks still work after the original was closed."""
        with self.session() as session:
            session.run("x = 1")
            fork = session.fork()
            session.close()
            assert fork.run("x").value == "1"
            fork.close()

    def test_a_closed_session_is_a_typed_error(self) -> None:
        """``run`` after ``close`` raises ``SandboxFault``."""
        with self.session() as session:
            session.close()
            try:
                session.run("1")
            except SandboxFault:
                return
            raise AssertionError("a closed session must raise SandboxFault")

    def test_threads_may_share_it(self) -> None:
        """Concurrent runs from several threads do not mix up their results."""
        with self.executor() as executor:
            if executor.info().name == "fake":  # it borrows this process's stdout
                return
            found: dict[int, str] = {}

            def go(index: int) -> None:
                found[index] = executor.run(f"print({index} * 2)").stdout

            threads = [threading.Thread(target=go, args=(index,)) for index in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert found == {index: f"{index * 2}\n" for index in range(6)}


def _refuses(act: Any) -> None:
    try:
        act()
    except SnapshotError:
        return
    raise AssertionError("this must raise SnapshotError")
