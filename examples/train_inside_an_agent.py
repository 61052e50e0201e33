"""Trains the shipped policy inside a search agent that is no environment: a loop around an endpoint, with its own search.

Run it with ``python examples/train_inside_an_agent.py``. It takes some minutes on two cores.
"""

from functools import cache
from pathlib import Path
from typing import Any

import httpx

import agentenv
from agentenv.data.world import FictionalWorld
from agentenv.data.world_config import WorldConfig
from agentenv.retrievers.bm25 import BM25Retriever

STOP = ["</search>", "</answer>"]
WORLDS = {
    "train": (1, 2000),
    "dev": (2, 1000),
    "test": (3, 1000),
}  # seed and documents, as laptop-search has them


@cache
def search_of(split: str) -> BM25Retriever:
    """The search over the world whose questions these are."""
    seed, documents = WORLDS[split]
    config: Any = {"seed": seed, "documents": documents, "questions": 0, "split": split}
    return BM25Retriever.build(FictionalWorld.generate(WorldConfig(**config)).documents)


async def solve(task: agentenv.Task, *, base_url: str, api_key: str) -> str:
    """Searches up to three times, and returns what the model answers."""
    messages = [{"role": "user", "content": task.question}]
    headers = {"Authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=600) as client:
        for _ in range(3):
            body = {"model": "policy", "messages": messages, "stop": STOP}
            reply = await client.post(f"{base_url}/chat/completions", json=body)
            said = reply.raise_for_status().json()["choices"][0]["message"]["content"] or ""
            if "<search>" not in said:
                return said.partition("<answer>")[2].strip()
            query = said.partition("<search>")[2].strip()
            (found,) = await search_of(task.split).search([query], 2)
            pages = "\n".join(f"Doc {i}(Title: {page.title}) {page.text}" for i, page in enumerate(found, 1))
            results = f"\n\n<information>{pages}</information>\n\n"
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": results}]
    return ""


if __name__ == "__main__":
    agentenv.train(
        "laptop-search",
        out=Path("runs/inside-an-agent"),
        search__retriever="",
        env__id="agentenv/AgentProgram-v0",
        env__options={"agent": "python:train_inside_an_agent:solve", "max_turns": 3},
    )
