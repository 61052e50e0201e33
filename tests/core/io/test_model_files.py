"""Folders with models from somebody else: nothing in them is imported, unpickled or fetched, whatever library opens them."""

import ast
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentenv
from agentenv.core.io.model_files import LOCAL, check_adapter_files, check_model_files
from agentenv.errors import CheckpointMismatch, ConfigurationError, UnknownName
from agentenv.policies.card import read_card
from agentenv.policies.lora import base_and_adapter
from agentenv.retrievers.encoder import make_encoder, minilm
from agentenv.retrievers.rerank import make_reranker
from agentenv.retrievers.retriever_spec import open_retriever

_ran: list[str] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "import" and str(arguments[0]).startswith("zz_hostile"):
        _ran.append(str(arguments[0]))
    if event == "exec" and "zz_hostile" in str(arguments[0]):
        _ran.append(str(arguments[0]))


sys.addaudithook(_audit)


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A working sentence encoder in a folder, beside a module that would run if anything imported it."""
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    folder = tmp_path / "encoder"
    shutil.copytree(minilm().path, folder)
    (folder / "zz_hostile.py").write_text("class Pooling: pass\nclass Model: pass\n")
    return folder


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    _ran.clear()
    yield
    assert _ran == []


def change(path: Path, **values: Any) -> None:
    held = json.loads(path.read_text()) if path.is_file() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(held | values))


@pytest.mark.parametrize(
    "kind",
    [
        "zz_hostile.Pooling",
        "modeling.zz_hostile.Pooling",
        "os.system",
        "sentence_transformers_x.Pooling",
        "sentence_transformers.util.http_get",
        "sentence_transformers.models.Pooling ",
        "sentence_transformers.models.Evil",
        "sentence_transformers.models..Pooling",
        "",
        7,
    ],
)
def test_a_module_that_is_not_the_librarys_own_is_refused(encoder: Path, kind: Any) -> None:
    modules = json.loads((encoder / "modules.json").read_text())
    modules[1]["type"] = kind
    (encoder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointMismatch, match=r"modules\.json"):
        make_encoder(f"st:{encoder}")


@pytest.mark.parametrize("place", ["../other", "/etc", "1_Pooling/../../other", ".."])
def test_a_module_outside_of_the_folder_is_refused(encoder: Path, place: str) -> None:
    (encoder.parent / "other").mkdir()
    modules = json.loads((encoder / "modules.json").read_text())
    modules[1]["path"] = place
    (encoder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointMismatch, match="outside"):
        make_encoder(f"st:{encoder}")


@pytest.mark.parametrize("place", ["x" * 500, "a\0b", "\ud800"])
def test_a_module_whose_folder_has_no_possible_name_is_refused(encoder: Path, place: str) -> None:
    modules = json.loads((encoder / "modules.json").read_text())
    modules[1]["path"] = place
    (encoder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointMismatch, match=r"modules\.json"):
        check_model_files(encoder)


@pytest.mark.parametrize("content", ["[", "{}", "[1]", "[" * 100_000, '[{"type": "x"}]', "null", "\x00"])
def test_a_damaged_list_of_modules_is_one_sentence(encoder: Path, content: str) -> None:
    (encoder / "modules.json").write_text(content)
    with pytest.raises(CheckpointMismatch, match=r"modules\.json"):
        check_model_files(encoder)


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("1_Pooling/config.json", {"activation_function": "zz_hostile.Model"}),
        ("config.json", {"attn_implementation": "somebody/kernel"}),
        ("config.json", {"text_config": {"_attn_implementation": "somebody/kernel:v1"}}),
        ("config.json", {"sentence_transformers": {"activation_fn": "zz_hostile.Model"}}),
        ("config.json", {"sbert_ce_default_activation_function": "os.system"}),
        ("sentence_bert_config.json", {"model_args": {"trust_remote_code": True}}),
        ("sentence_bert_config.json", {"tokenizer_args": {"trust_remote_code": 1}}),
    ],
)
def test_settings_that_name_code_are_refused(encoder: Path, file: str, values: dict[str, Any]) -> None:
    change(encoder / file, **values)
    for open_it in (lambda: make_encoder(f"st:{encoder}"), lambda: make_reranker(str(encoder))):
        with pytest.raises(CheckpointMismatch, match=r"code|activation"):
            open_it()


def test_a_class_of_its_own_is_not_loaded_where_the_library_knows_the_kind(encoder: Path) -> None:
    """Many published models carry such a map although the library has their class."""
    change(
        encoder / "config.json", auto_map={"AutoModel": "zz_hostile.Model", "AutoConfig": "zz_hostile.Model"}
    )
    change(encoder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["zz_hostile.Model", None]})
    assert make_encoder(f"st:{encoder}").dim == 384


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl", "tf_model.h5"])
def test_pickled_weights_are_refused(encoder: Path, name: str) -> None:
    for path in encoder.glob("*.safetensors"):
        path.unlink()
    (encoder / name).write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(CheckpointMismatch, match="pickled"):
        make_encoder(f"st:{encoder}")


def test_a_policy_of_an_unknown_kind_with_its_own_code_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from agentenv.policies.hf import HFPolicy
    from agentenv.policies.tiny import shipped_weights

    folder = tmp_path / "policy"
    shutil.copytree(shipped_weights(), folder)
    (folder / "zz_hostile.py").write_text("class Model: pass\n")
    change(folder / "config.json", model_type="zz", auto_map={"AutoModelForCausalLM": "zz_hostile.Model"})
    with pytest.raises(CheckpointMismatch):
        HFPolicy.load(folder)


ADAPTER = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj"],
    "base_model_name_or_path": ".",
}


@pytest.mark.parametrize(
    "values",
    [
        {"peft_type": "zz"},
        {"peft_type": None},
        {"peft_type": ["LORA"]},
        {"megatron_config": {"a": 1}, "megatron_core": "zz_hostile"},
        {"corda_config": {"cache_file": "/etc/passwd"}},
        {"loftq_config": {"loftq_bits": 4}},
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": ["eva"]},
        {"target_modules": "(a+)+$"},
        {"target_modules": ["(a|a)*b"]},
        {"target_modules": [7]},
        {"modules_to_save": [{"a": 1}]},
        {"custom": "zz_hostile.Model"},
    ],
)
def test_an_adapter_that_names_code_files_or_patterns_is_refused(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    change(tmp_path / "adapter_config.json", **ADAPTER | values)
    with pytest.raises(CheckpointMismatch, match=r"adapter_config\.json"):
        check_adapter_files(tmp_path)


@pytest.mark.parametrize(
    "base", ["https://evil.example/model", "somebody/model", "/nowhere/at/all", "", None, 7, ["."]]
)
def test_an_adapter_of_a_base_that_is_no_folder_here_is_refused(tmp_path: Path, base: Any) -> None:
    change(tmp_path / "adapter_config.json", **ADAPTER | {"base_model_name_or_path": base})
    with pytest.raises(CheckpointMismatch):
        base_and_adapter(tmp_path)


def test_an_adapter_without_safe_weights_is_refused(tmp_path: Path) -> None:
    change(tmp_path / "adapter_config.json", **ADAPTER)
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointMismatch, match="safetensors"):
        base_and_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").touch()
    assert base_and_adapter(tmp_path) == (Path(), tmp_path)


@pytest.mark.parametrize(
    "kind",
    [
        "simulated:openai:m@http://127.0.0.1:9/v1",
        "http://127.0.0.1:9",
        "https://evil.example",
        "http",
        "web:serper",
        "cassette:/etc/passwd@http://127.0.0.1:9",
        "rerank:/tmp@http://127.0.0.1:9",
        "rerank",
        "faiss:/elsewhere",
        "Faiss",
        "",
        7,
        ["faiss"],
    ],
)
def test_a_card_opens_nothing_but_its_own_folder(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("AGENTENV_RETRIEVER_TOKEN", "secret")
    (tmp_path / "retriever.json").write_text(json.dumps({"kind": kind, "rows": 1, "corpus": "x"}))
    with pytest.raises(ConfigurationError) as error:
        open_retriever(tmp_path)
    assert not isinstance(error.value, UnknownName)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "spec", ["http://127.0.0.1:9", "openai:m@http://127.0.0.1:9", "st:http://127.0.0.1:9/m", "zz_hostile"]
)
def test_a_card_names_no_encoder_but_a_local_one(tmp_path: Path, spec: str) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    from agentenv.core.types import Document
    from agentenv.retrievers.encoder import HashEncoder
    from agentenv.retrievers.faiss import FaissRetriever

    FaissRetriever.build([Document("a", "b", "c")], HashEncoder()).save(tmp_path / "index")
    change(tmp_path / "index" / "retriever.json", encoder_spec=spec)
    with pytest.raises(ConfigurationError):
        open_retriever(tmp_path / "index")


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"colour": 1}', '{"k": "x"}', '{"k": []}', '{"env": ["a"]}', "[" * 100_000]
)
def test_a_malformed_card_of_episodes_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "episode.json").write_text(content)
    with pytest.raises(CheckpointMismatch, match=r"episode\.json"):
        read_card(tmp_path)


LOADERS = {"from_pretrained", "SentenceTransformer", "CrossEncoder"}


def _stays_here(call: ast.Call) -> bool:
    given = {word.arg or ast.unparse(word.value) for word in call.keywords}
    return bool(given & {"LOCAL", "local_files_only"})


def test_every_loader_is_told_to_stay_on_this_machine() -> None:
    """Else a folder that lacks a file would make the library ask a hub for a model of its name."""
    assert LOCAL == {"local_files_only": True, "trust_remote_code": False}
    calls = [
        (path.name, node)
        for path in Path(agentenv.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in LOADERS
    ]
    assert len(calls) >= 8
    assert [(name, call.lineno) for name, call in calls if not _stays_here(call)] == []


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"inner": [{"attn_implementation": "someone/kernel"}]}, "someone/kernel"),
        ({"activation_fn": "zz_hostile.Model"}, "zz_hostile.Model"),
    ],
)
def test_a_refusal_names_the_file_and_the_value(tmp_path: Path, values: dict[str, Any], named: str) -> None:
    change(tmp_path / "config.json", **values)
    with pytest.raises(CheckpointMismatch) as caught:
        check_model_files(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"attn_implementation": "sdpa", "_attn_implementation": None, "experts_implementation": "eager"},
        {"trust_remote_code": False},
        {"activation_fn": "torch.nn.modules.activation.Tanh", "activation_function": "torch.nn.GELU"},
        {"activation_function": "gelu_new"},  # GPT-2, and "relu" of OPT
        {"architectures": ["zz_hostile.Model"], "name": "someone/kernel"},
    ],
)
def test_settings_that_run_nothing_are_taken(tmp_path: Path, values: dict[str, Any]) -> None:
    change(tmp_path / "config.json", **values)
    check_model_files(tmp_path)


def test_pickled_weights_are_named_and_do_no_harm_beside_safe_ones(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointMismatch, match=re.escape(str(tmp_path / "pytorch_model.bin"))):
        check_model_files(tmp_path)
    (tmp_path / "model.safetensors").touch()
    check_model_files(tmp_path)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"peft_type": "LORA", "megatron_config": {"a": 1}}, "megatron_config"),
        ({"peft_type": "LORA", "init_lora_weights": "olora"}, "olora"),
        ({"peft_type": "LORA", "target_modules": ["q_proj", "(.*)+x"]}, "(.*)+x"),
        ({"peft_type": "LORA", "layers_pattern": 7}, "7"),
    ],
)
def test_a_refused_adapter_is_named_with_its_value(
    tmp_path: Path, values: dict[str, Any], named: str
) -> None:
    change(tmp_path / "adapter_config.json", **values)
    with pytest.raises(CheckpointMismatch) as caught:
        check_adapter_files(tmp_path)
    assert str(tmp_path / "adapter_config.json") in str(caught.value)
    assert named in str(caught.value)


def test_settings_of_an_adapter_are_returned_as_they_stand(tmp_path: Path) -> None:
    held = {
        "peft_type": "LORA",
        "r": 8,
        "target_modules": ["q_proj", "all-linear"],
        "init_lora_weights": "gaussian",
        "megatron_config": None,
        "layers_pattern": "model.layers",
    }
    change(tmp_path / "adapter_config.json", **held)
    assert check_adapter_files(tmp_path) == held


@pytest.mark.parametrize("opened", ["st", "cross"])
def test_an_adapter_within_a_model_is_refused_before_a_library_follows_it(encoder: Path, opened: str) -> None:
    """sentence-transformers would open the base that it names, and peft its settings, none of which was looked at."""
    change(encoder / "adapter_config.json", **ADAPTER | {"base_model_name_or_path": "elsewhere"})
    with pytest.raises(CheckpointMismatch, match="adapter"):
        make_encoder(f"st:{encoder}") if opened == "st" else make_reranker(str(encoder))


def test_the_base_of_an_adapter_has_none_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from agentenv.policies.hf import HFPolicy
    from agentenv.policies.tiny import shipped_weights

    shutil.copytree(shipped_weights(), tmp_path / "base")
    (tmp_path / "adapter").mkdir()
    base = {"base_model_name_or_path": str(tmp_path / "base")}
    change(tmp_path / "adapter" / "adapter_config.json", **ADAPTER | base)
    (tmp_path / "adapter" / "adapter_model.safetensors").touch()
    change(tmp_path / "base" / "adapter_config.json", **ADAPTER | base | {"megatron_config": {"a": 1}})
    with pytest.raises(CheckpointMismatch, match=re.escape(str(tmp_path / "base"))):
        HFPolicy.load(tmp_path / "adapter")


@pytest.mark.parametrize("place", [".", "2_Dense"])
def test_safe_weights_of_another_name_or_folder_excuse_no_pickled_ones(tmp_path: Path, place: str) -> None:
    """A library that finds no model.safetensors beside them unpickles them."""
    (tmp_path / "2_Dense").mkdir()
    dense = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
    (tmp_path / "modules.json").write_text(json.dumps([dense]))
    (tmp_path / ("model-of-another.safetensors" if place == "." else "model.safetensors")).touch()
    check_model_files(tmp_path)
    (tmp_path / place / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointMismatch, match="pickled"):
        check_model_files(tmp_path)


def test_weights_in_several_files_excuse_pickled_ones_beside_them(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00001.safetensors").touch()
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointMismatch, match="pickled"):
        check_model_files(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    check_model_files(tmp_path)


@pytest.mark.parametrize("name", ["model_2.safetensors", "modelling.safetensors", "model.fp16.safetensors"])
def test_only_weights_that_a_library_reads_first_excuse_pickled_ones(tmp_path: Path, name: str) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    (tmp_path / name).touch()
    with pytest.raises(CheckpointMismatch, match="pickled"):
        check_model_files(tmp_path)


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", "..", "", 7, None])
def test_parts_of_weights_lie_beside_their_list(tmp_path: Path, name: Any) -> None:
    listed = tmp_path / "model.safetensors.index.json"
    listed.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}))
    check_model_files(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    check_model_files(tmp_path)
    listed.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": name}}))
    with pytest.raises(CheckpointMismatch, match=re.escape(str(listed))):
        check_model_files(tmp_path)
