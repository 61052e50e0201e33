"""Flash and flex attention beside masks of our own.

The passes of the sampler have a mask [B, 1, Q, K] of their own. Flash attention takes none and flex attention takes none of
that form, so these passes are computed by sdpa, and those of the learner (`line_attention`) by the faster kernel.
transformers picks an attention function by name: under the name of the kernel stands a function that looks
at the mask first.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

_SERVED: set[str] = set()


def serve_masks(name: str) -> None:
    """Lets the attention that transformers knows as ``name`` be computed by sdpa where a pass has a mask of its own."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if name in ("eager", "sdpa") or name in _SERVED:
        return
    kernel = ALL_ATTENTION_FUNCTIONS[name]
    ALL_ATTENTION_FUNCTIONS.register(name, by_mask(kernel, sdpa_attention_forward))
    _SERVED.add(name)


def by_mask(kernel: Callable[..., Any], masked: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function of transformers that is ``masked`` where there is a mask [B, 1, Q, K], and else ``kernel``."""

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        own = isinstance(attention_mask, Tensor) and attention_mask.dim() == 4
        return (masked if own else kernel)(module, query, key, value, attention_mask, **options)

    return attend
