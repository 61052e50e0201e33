"""Every executor keeps the contract: the fake, the one without walls, the jails."""

import pytest

from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.executor_contract import ExecutorContract
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.sandbox.types import Executor


class TestFake(ExecutorContract):
    def make(self) -> Executor:
        return FakeExecutor()


class _Shared(ExecutorContract):
    shared: JailExecutor

    def make(self) -> Executor:
        return self.shared

    def done(self, executor: Executor) -> None:
        """The next test uses it too."""


class TestBwrap(_Shared):
    @pytest.fixture(autouse=True)
    def _use(self, bwrap: JailExecutor) -> None:
        self.shared = bwrap


class TestDocker(_Shared):
    @pytest.fixture(autouse=True)
    def _use(self, docker: JailExecutor) -> None:
        self.shared = docker


class TestUnsafeLocal(_Shared):
    @pytest.fixture(autouse=True)
    def _use(self, unsafe: JailExecutor) -> None:
        self.shared = unsafe
