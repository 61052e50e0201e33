"""A tokenizer that needs no vocabulary, for scripted policies and tests."""

import re
from collections.abc import Mapping, Sequence

END_OF_TURN = "<|im_end|>"


class ByteTokenizer:
    """Ids 0 to 255 are UTF-8 bytes, 256 is the end of a turn; has what the chat formats ask for."""

    eos_token = END_OF_TURN
    eos_token_id = 256

    def __init__(self, *, chat: bool = False) -> None:
        """Without ``chat`` there is no chat template, as with some base models."""
        self.chat_template = "chatml" if chat else None

    def __len__(self) -> int:
        return 257

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The bytes of ``text``; the end-of-turn mark is one id. No special token is ever added."""
        pieces = re.split(f"({re.escape(END_OF_TURN)})", text)
        ids: list[int] = []
        for piece in pieces:
            ids += [self.eos_token_id] if piece == END_OF_TURN else piece.encode()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; incomplete characters become U+FFFD."""
        mark = END_OF_TURN.encode()
        return b"".join(mark if i == self.eos_token_id else bytes([i]) for i in ids).decode(errors="replace")

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
    ) -> str:
        """ChatML, the format of the Qwen family."""
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}{END_OF_TURN}\n" for m in conversation)
        return text + "<|im_start|>assistant\n" * add_generation_prompt
