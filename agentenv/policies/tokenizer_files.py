"""The tokenizer in a folder."""

from pathlib import Path
from typing import Any

from agentenv.core.io.model_files import LOCAL


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer in ``folder``, which decodes to exactly what was sampled.

    Raises:
        Exception: whatever transformers raises where there is none that can be read.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), **LOCAL)
    # Some folders ask for it: `print( ' a ' )` would become `print('a')`, and the environment would act on that.
    tokenizer.clean_up_tokenization_spaces = False
    return tokenizer
