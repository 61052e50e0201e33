"""A prompt without the placeholder that an environment fills is refused, with the placeholder and the prompt."""

from collections.abc import Callable
from typing import Any

import pytest

from agentenv.core.env import Env
from agentenv.envs.code import Code
from agentenv.envs.domsim.env import DomSim
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.self_play import SearchProposer
from agentenv.envs.semi_online import SemiOnlineGUI
from agentenv.envs.sql import Sql
from agentenv.errors import ConfigurationError
from agentenv.retrievers.no_passages import NoPassages

MADE: dict[str, Callable[[str], Env[Any]]] = {
    "question of Code": lambda prompt: Code(prompt=prompt, tasks=()),
    "question of Sql": lambda prompt: Sql(prompt=prompt, tasks=()),
    "question of LocalSearch": lambda prompt: LocalSearch(prompt=prompt, tasks=(), retriever=NoPassages()),
    "topic of SearchProposer": lambda prompt: SearchProposer(prompt=prompt, tasks=(), retriever=NoPassages()),
    "goal of DomSim": lambda prompt: DomSim(prompt=prompt),
    "goal of SemiOnlineGUI": lambda prompt: SemiOnlineGUI(prompt=prompt),
}


@pytest.mark.parametrize("name", MADE)
def test_the_placeholder_and_the_prompt_are_named(name: str) -> None:
    placeholder = name.split()[0]
    with pytest.raises(ConfigurationError) as caught:
        MADE[name]("Do your best.")
    assert f"{{{placeholder}}}" in str(caught.value)
    assert "Do your best." in str(caught.value)
