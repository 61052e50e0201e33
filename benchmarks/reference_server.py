"""A retrieval server that works as Search-R1's does: what ours is measured against.

One request at a time goes through encoder and index, inside the handler; nothing is batched across requests, nothing is
remembered, nothing is shared. The encoder, the index file and the threads are those of our server, and so are the HTTP
parser and the event loop. Two settings are the reference's own: whether the handler is a plain function, which FastAPI
runs in a pool of threads (Search-R1's way), or a coroutine, and how many threads search the index for one query. Left out of
the original, in its favour: the access log, and emptying a cache after each batch.

    python benchmarks/reference_server.py FOLDER --threads 2
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from agentenv.retrievers.faiss import INDEX_FILE
from agentenv.retrievers.storage.retriever_folder import read_card, read_corpus
from agentenv.web.server import address_of, listen


def main() -> None:
    """Loads a folder that `agentenv retriever build` made and serves it on a free port."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=1, help="threads of the encoder")
    parser.add_argument("--search-threads", type=int, default=1, help="OpenMP threads of one search")
    parser.add_argument("--handler", choices=("function", "coroutine"), default="function")
    args = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    import faiss
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    from agentenv.retrievers.encoder import make_encoder

    card = read_card(args.folder, "faiss")
    corpus = read_corpus(args.folder, card)
    encoder = make_encoder(card.encoder_spec)
    index = faiss.read_index(str(args.folder / INDEX_FILE))
    faiss.omp_set_num_threads(args.search_threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(args.threads)
    app = FastAPI()

    class QueryRequest(BaseModel):
        queries: list[str]
        topk: int | None = None
        return_scores: bool = False

    def answer(request: QueryRequest) -> dict[str, Any]:
        faiss.omp_set_num_threads(args.search_threads)  # the setting is one of each thread
        scores, rows = index.search(encoder.encode_queries(request.queries), request.topk or 3)
        result = []
        for found, places in zip(scores.tolist(), rows.tolist(), strict=True):
            documents = [
                {"id": corpus[row].id, "contents": f'"{corpus[row].title}"\n{corpus[row].text}'}
                for row in places
            ]
            if request.return_scores:
                result.append([{"document": d, "score": s} for d, s in zip(documents, found, strict=True)])
            else:
                result.append(documents)
        return {"result": result}

    async def answer_on_the_loop(request: QueryRequest) -> dict[str, Any]:
        return answer(request)

    app.post("/retrieve")(answer if args.handler == "function" else answer_on_the_loop)

    @app.get("/readyz")
    async def ready() -> dict[str, str]:
        return {"status": "ready"}

    with listen("127.0.0.1", 0) as listening:
        print(f"serving {args.folder.name} at {address_of(listening)}", file=sys.stderr, flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listening])


if __name__ == "__main__":
    main()
