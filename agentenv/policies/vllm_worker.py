"""What runs inside a vLLM worker: vLLM mixes the class below into its own, so names may not clash with those there."""

import os
import select
import signal
import threading
from typing import Any


class EngineWorker:
    """Takes up weights as a whole, and does not outlive its owner."""

    def take_up_weights(self: Any, folder: str) -> None:
        """Loads the weights in ``folder`` in place.

        vLLM 0.32 leaves one copy behind: on a CPU an output layer that shares the weights of the embedding multiplies by a
        packed copy of them, and only the embedding is loaded anew. A model that reads images has it in its language model.
        """
        self.reload_weights(weights_path=folder)
        model = self.get_model()
        configs = (model.config, model.config.get_text_config())
        if self.device.type != "cpu" or not any(
            getattr(one, "tie_word_embeddings", False) for one in configs
        ):
            return
        for name, module in model.named_modules(remove_duplicate=False):
            if name.rpartition(".")[2] == "lm_head":
                module.quant_method.process_weights_after_loading(module)

    def end_with(self, owner: int) -> None:
        """From now on ends this process and the engine above it once the process ``owner`` has ended, in whatever way.

        vLLM itself ends a worker without an engine, but not an engine whose owner was killed.
        """
        above = os.getppid()  # the owner itself where the engine has no process apart from its worker
        threading.Thread(target=_end_with, args=(owner, above), daemon=True).start()


def _end_with(owner: int, above: int) -> None:
    # By a handle: the number of a process that has ended may be another's.
    select.select([os.pidfd_open(owner)], [], [])
    if above != owner:
        os.kill(above, signal.SIGKILL)
    os._exit(1)
