"""What a reader of passages has learned, as a file that is small enough to come with the package.

The file holds the difference between the taught encoder and MiniLM as it is packaged. Of every matrix it keeps the nearest
difference of a low rank (Eckart and Young 1936), as two factors in bfloat16, the form in which LoRA learns differences
(Hu et al. 2021, arXiv:2106.09685, equation 3). Vectors are kept whole, and so are the heads, which MiniLM does not have.
Embeddings are never taught and not kept. The file names the weights that it is the difference to by their digest.

Shapes: M rows and N columns of a matrix, R the rank.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from agentenv.errors import CheckpointMismatch
from agentenv.policies.reader_model import PassageReader

ADAPTER = "adapter.safetensors"
"""Name of the file in the folder of a reader that was taught."""
_LEFT, _RIGHT = "::left", "::right"
_ENCODER, _EMBEDDINGS = "encoder.", "encoder.embeddings."
_BASE = "base"


def shipped_adapter() -> Path:
    """The file that comes with the package."""
    return Path(str(files("agentenv.policies") / "tiny_reader.safetensors"))


def low_rank(change_MN: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors [M, R] and [R, N] whose product is the matrix of rank ``rank`` nearest to ``change_MN``.

    The singular values are shared evenly between the two, so that neither loses more than the other when it is rounded.
    """
    # In double, because small singular values of a difference are lost in float32.
    u_MK, s_K, v_KN = torch.linalg.svd(change_MN.double(), full_matrices=False)
    share_R = s_K[:rank].sqrt()
    return u_MK[:, :rank] * share_R, share_R[:, None] * v_KN[:rank]


class _LowRankChange(nn.Module):
    """A matrix that is what it was plus the product of two factors."""

    def __init__(self, left_MR: Tensor, right_RN: Tensor) -> None:
        super().__init__()
        self.left = nn.Parameter(left_MR)
        self.right = nn.Parameter(right_RN)

    def forward(self, base_MN: Tensor) -> Tensor:
        return base_MN + self.left @ self.right


@contextmanager
def low_rank_changes(model: PassageReader, base: Mapping[str, Tensor], rank: int) -> Iterator[None]:
    """Within it the matrices of the encoder differ from ``base`` by a low rank, and training changes the factors alone.

    It begins with the nearest difference to what was learned before, which costs accuracy that some further lessons bring
    back. Parameters that are frozen stay as they are.

    Args:
        model: A reader that was taught.
        base: The parameters of its encoder before, by their names in the encoder.
        rank: Of the difference of each matrix.
    """
    held = [
        (module, parameter, base[f"{name}.weight"])
        for name, module in model.encoder.named_modules()
        if isinstance(module, nn.Linear) and (parameter := module.weight).requires_grad
    ]
    for module, parameter, before in held:
        left, right = low_rank(parameter.detach() - before.to(parameter), rank)
        with torch.no_grad():
            parameter.copy_(before)
        parameter.requires_grad_(False)
        # The base is frozen first: a parametrisation takes over the parameter with what it requires.
        register_parametrization(module, "weight", _LowRankChange(left.to(parameter), right.to(parameter)))
    try:
        yield
    finally:
        for module, _, _ in held:
            remove_parametrizations(module, "weight", leave_parametrized=True)
            module.weight.requires_grad_(True)


def write_adapter(model: PassageReader, base: Mapping[str, Tensor], path: Path, rank: int) -> None:
    """Writes how ``model`` differs from the encoder that it began with.

    Args:
        model: A reader that was taught.
        base: The parameters of its encoder before, by their names in the encoder.
        path: The file.
        rank: Of the difference of each matrix.
    """
    from safetensors.torch import save_file

    held: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if name.startswith(_EMBEDDINGS):
            continue
        value = parameter.detach().cpu()
        if not name.startswith(_ENCODER):
            held[name] = value.float().contiguous()
            continue
        change = value - base[name.removeprefix(_ENCODER)]
        if change.ndim < 2:
            held[name] = change.bfloat16().contiguous()
        elif change.any():
            left, right = low_rank(change, rank)
            held |= {name + _LEFT: left.bfloat16().contiguous(), name + _RIGHT: right.bfloat16().contiguous()}
    save_file(held, path, metadata={_BASE: weights_digest(base)})


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of ``weights`` with their names, in float32."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().float().contiguous().numpy().data)
    return digest.hexdigest()


def apply_adapter(model: PassageReader, path: Path) -> None:
    """Gives a new reader over MiniLM what the file at ``path`` has learned.

    Raises:
        CheckpointMismatch: the file cannot be read or is damaged, or is of another reader or over another encoder.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    try:
        held = load_file(path)
        with safe_open(path, "pt") as file:
            base = (file.metadata() or {}).get(_BASE)
    except (OSError, SafetensorError) as error:
        raise CheckpointMismatch(f"{path} holds no adapter of a reader: {error}") from error
    parameters = dict(model.named_parameters())
    if lonely := {name.partition("::")[0] for name in held if _other_factor(name) not in held}:
        raise CheckpointMismatch(f"{path} is no adapter of a reader: one factor of {min(lonely)} is missing")
    changes = _changes(held, path)
    wrong = [
        name for name, one in changes.items() if name not in parameters or parameters[name].shape != one.shape
    ]
    wrong += [name for name in parameters if not name.startswith(_ENCODER) and name not in changes]
    if wrong:
        raise CheckpointMismatch(
            f"{path} is no adapter of this reader: {wrong[0]} does not fit or is missing"
        )
    if odd := [name for name, one in changes.items() if not bool(one.isfinite().all())]:
        raise CheckpointMismatch(f"{path} is damaged: {odd[0]} is not finite")
    if base != weights_digest(dict(model.encoder.named_parameters())):
        raise CheckpointMismatch(f"{path} is an adapter to other weights than those of this encoder")
    with torch.no_grad():
        for name, change in changes.items():
            own = parameters[name]
            own.copy_(own + change.to(own) if name.startswith(_ENCODER) else change)


def _other_factor(name: str) -> str:
    """The name of the factor that ``name`` is multiplied with; a tensor that is kept whole is its own."""
    if name.endswith(_LEFT):
        return name.removesuffix(_LEFT) + _RIGHT
    return name.removesuffix(_RIGHT) + _LEFT if name.endswith(_RIGHT) else name


def _changes(held: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The changes of the encoder and the values of the heads, by the names of parameters.

    Raises:
        CheckpointMismatch: two factors have no product.
    """
    plain = {name: value for name, value in held.items() if "::" not in name}
    pairs = [name.removesuffix(_LEFT) for name in held if name.endswith(_LEFT)]
    try:
        return plain | {name: held[name + _LEFT].float() @ held[name + _RIGHT].float() for name in pairs}
    except RuntimeError as error:
        raise CheckpointMismatch(
            f"{path} is no adapter of a reader: its factors do not fit ({error})"
        ) from error
