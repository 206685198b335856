"""The names that sglang.bench_serving imports from transformers, with a tokenizer of four characters a token."""

from __future__ import annotations

from typing import Any, ClassVar


class PreTrainedTokenizer:
    bos_token = None
    init_kwargs: ClassVar[dict[str, str]] = {"chat_template": "plain"}

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(range((len(text) + 3) // 4))

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)


PreTrainedTokenizerBase = PreTrainedTokenizerFast = PreTrainedTokenizer


class AutoTokenizer:
    @staticmethod
    def from_pretrained(*_: Any, **__: Any) -> PreTrainedTokenizer:
        return PreTrainedTokenizer()


AutoProcessor = AutoTokenizer
