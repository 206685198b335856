"""The names of FlashAttention 3, whose library (1 GB) is left out: the tests run the triton back end."""

from __future__ import annotations

from typing import Any


def is_fa3_supported(device: Any = None) -> bool:
    """It is not there."""
    return False


def flash_attn_with_kvcache(*_given: Any, **_named: Any) -> Any:
    """Fail."""
    raise NotImplementedError("FlashAttention 3 was not brought along")


def flash_attn_varlen_func(*_given: Any, **_named: Any) -> Any:
    """Fail."""
    raise NotImplementedError("FlashAttention 3 was not brought along")
