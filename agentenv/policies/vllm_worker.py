"""What runs inside a vLLM worker: vLLM mixes the class below into its own, so names may not clash with those there."""

from typing import Any


class WeightsWorker:
    """Takes up weights as a whole."""

    def take_up_weights(self: Any, folder: str) -> None:
        """Loads the weights in ``folder`` in place.

        vLLM 0.32 leaves one copy behind: on a CPU an output layer that shares the weights of the embedding multiplies by a
        packed copy of them, and only the embedding is loaded anew.
        """
        self.reload_weights(weights_path=folder)
        model = self.get_model()
        head = getattr(model, "lm_head", None)
        if self.device.type == "cpu" and head is not None and model.config.tie_word_embeddings:
            head.quant_method.process_weights_after_loading(head)
