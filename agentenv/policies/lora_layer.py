"""How a linear layer with an adapter computes W x + alpha / rank * B (A x)."""

from peft.tuners.lora import Linear
from torch import Tensor


class AdaptedLinear(Linear):  # type: ignore[misc]
    """A layer of peft, over a matrix or over weights in 4 bits, that adds the second product by the matrix product itself.

    peft's own ``forward`` scales the second product, adds both, and scales the gradient on the way back. Each is a pass over
    [tokens, out], which costs a card more time than the adapter's arithmetic: it moves as much memory as the layer's own
    product and computes next to nothing.

    Layers that peft has made become this class by assignment; it knows one adapter, without dropout and unmerged.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [..., out] for inputs [..., in]."""
        if self.disable_adapters:
            return self.base_layer(inputs)  # type: ignore[no-any-return]
        name = self.active_adapter[0]
        down, up = self.lora_A[name].weight, self.lora_B[name].weight
        # In two dimensions: the output of a linear layer may be a view otherwise, and to add into a view copies it.
        rows = inputs.reshape(-1, inputs.shape[-1])
        output = self.base_layer(rows)
        # Under autocast products have its number format, and one that is added in place takes what it is given.
        hidden = (rows.to(down.dtype) @ down.T).to(output.dtype)
        output.addmm_(hidden, up.T.to(output.dtype), alpha=self.scaling[name])
        return output.view(*inputs.shape[:-1], output.shape[-1])  # type: ignore[no-any-return]
