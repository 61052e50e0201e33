"""Opens the local folder of a model of sentence-transformers, and refuses what the library would make up for one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from agentenv.core.io.model_files import LOCAL, check_model_files, read_settings
from agentenv.errors import CheckpointMismatch, first_line, is_shortage, needs_extra
from agentenv.policies.compute import Compute

_WHAT = {"CrossEncoder": "cross-encoder", "SentenceTransformer": "sentence encoder"}
_CARD = "config_sentence_transformers.json"
_JUDGES = ("ForSequenceClassification", "ForCausalLM", "ForConditionalGeneration")
"""Ends of the names of architectures whose weights give a score; of another one the part that judges would be random."""


def load_sentence_model(
    path: Path, kind: Literal["CrossEncoder", "SentenceTransformer"], compute: Compute, **options: Any
) -> Any:
    """The model in a folder, on its device.

    Args:
        path: The folder, which holds a ``config.json`` or a ``modules.json``.
        kind: The class of sentence-transformers that opens it.
        compute: Where the model computes, and in which number format.
        **options: Further arguments of the class.

    Raises:
        CheckpointMismatch: the folder holds a model of another kind, a damaged one or one without a tokenizer, or names
            code to run.
        MissingExtra: sentence-transformers is not installed.
    """
    with needs_extra("retrieval", "sentence-transformers"):
        import sentence_transformers
    check_model_files(path)
    kind_of_card = _kind_of_card(path)
    if kind == "CrossEncoder":
        _refuse_without_score(path, kind_of_card)
    elif kind_of_card == "CrossEncoder":
        raise CheckpointMismatch(
            f"{path} holds a cross-encoder, which gives no vectors: give it as a reranker"
        )
    weights = {"use_safetensors": True} | ({"dtype": compute.dtype} if compute.rounds else {})
    try:
        with _no_progress_bars():
            made = getattr(sentence_transformers, kind)
            model = made(str(path), device=str(compute.device), model_kwargs=weights, **options, **LOCAL)
    except Exception as error:  # a damaged file makes each library raise something of its own
        if is_shortage(error):
            raise
        raise CheckpointMismatch(
            f"{path} holds no {_WHAT[kind]} that can be loaded: {first_line(error)}"
        ) from error
    _refuse_without_words(path, model)
    return model.eval()


def _kind_of_card(path: Path) -> str | None:
    """What sentence-transformers wrote of the kind of model; older versions wrote nothing."""
    return read_settings(path / _CARD).get("model_type") if (path / _CARD).is_file() else None


def _refuse_without_score(path: Path, kind_of_card: str | None) -> None:
    """Refuses a model that does not give one number for a query and a passage.

    Raises:
        CheckpointMismatch: it gives none or several.
    """
    settings = read_settings(path / "config.json")
    named = str((settings.get("architectures") or [_JUDGES[0]])[0])
    if kind_of_card != "CrossEncoder" and not named.endswith(_JUDGES):
        raise CheckpointMismatch(
            f"{path} holds no cross-encoder: its config.json names {named}, which gives no score for a query and a passage. "
            f"If it is a sentence encoder, write encoder:st:{path} (or encoder:e5:, encoder:bge:) to compare its vectors"
        )
    labels = settings.get("id2label")
    if isinstance(labels, dict) and len(labels) > 1 and named.endswith(_JUDGES[0]):
        raise CheckpointMismatch(
            f"{path} gives {len(labels)} numbers for a query and a passage, one for each of its labels "
            f"{', '.join(map(str, labels.values()))}; a reranker gives one number"
        )


def _refuse_without_words(path: Path, model: Any) -> None:
    """Refuses a tokenizer that transformers made of nothing for want of files, for which all texts are alike.

    Raises:
        CheckpointMismatch: it is one.
    """
    tokenizer: Any = getattr(model, "tokenizer", None)
    special = getattr(tokenizer, "all_special_tokens", None)
    if special is not None and len(tokenizer) <= len(special):
        raise CheckpointMismatch(
            f"{path} holds no tokenizer that can be loaded: save it beside the model (tokenizer.save_pretrained)"
        )


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keeps transformers from drawing a bar for the weights that it reads within the block."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
