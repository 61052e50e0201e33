"""A retrieval service in a thread of the test's process, on a real socket, and retrievers saved without checksums."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from agentenv.core.protocols import Retriever

Serving = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def serving() -> Serving:
    """A context manager that takes retrievers by name and limits, gives the address, and ends with its block."""
    for module in ("fastapi", "uvicorn", "orjson", "prometheus_client"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    from agentenv.retrievers.service.app import run_service
    from agentenv.retrievers.service.service import Service, ServiceLimits
    from agentenv.web.server import address_of, listen

    @contextmanager
    def serve(
        retrievers: Mapping[str, Retriever], *, token: str | None = None, port: int = 0, **limits: float
    ) -> Iterator[str]:
        service = Service(ServiceLimits(**limits), token=token)  # type: ignore[arg-type]
        service.open(retrievers)
        with listen("127.0.0.1", port) as listening:
            thread = threading.Thread(target=run_service, args=(service, lambda: {}, listening), daemon=True)
            thread.start()
            try:
                yield address_of(listening)
            finally:
                service.stop()
                thread.join(60)
        assert not thread.is_alive()

    return serve


@pytest.fixture
def forget_checksums() -> Callable[[Path], None]:
    """Takes the checksums out of a saved retriever's card: it is then as it was saved before there were any."""

    def forget(folder: Path) -> None:
        path = folder / "retriever.json"
        card = json.loads(path.read_text())
        del card["files"], card["digest"]
        path.write_text(json.dumps(card))

    return forget
