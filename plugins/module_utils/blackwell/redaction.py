"""Keys are taken out of every text that is shown, logged or kept."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterable

HIDDEN = "********"


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret replaced, also as JSON, a URL or ``repr`` would write it.

    The longest form goes first, so that no tail is left of a secret that begins like another one.
    """
    forms = {form for secret in secrets if secret for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return text


def _forms(secret: str) -> set[str]:
    return {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        urllib.parse.quote(secret, safe=""),
    }
