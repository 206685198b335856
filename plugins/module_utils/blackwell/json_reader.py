"""The one reader of JSON files: an object, or an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import OperatorError


def parse_object(text: str | bytes, source: str, *, remedy: str = "") -> dict[str, Any]:
    """The JSON object in a text.

    Args:
        text: the text.
        source: the file or command that it comes from, for the message.
        remedy: what mends a text that is no JSON object.

    Raises:
        OperatorError: the text is not a JSON object.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OperatorError(
            f"{source} is not JSON",
            found=f"{error}, in {len(text)} {'bytes' if isinstance(text, bytes) else 'characters'}",
            expected="a JSON object",
            remedy=remedy,
        ) from error
    if not isinstance(content, dict):
        raise OperatorError(
            f"{source} holds no JSON object",
            found=f"a {type(content).__name__}",
            expected="a JSON object",
            remedy=remedy,
        )
    return content


def read_object(path: Path, *, remedy: str = "") -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: the file.
        remedy: what mends a file that is missing, unreadable or damaged.

    Raises:
        OperatorError: the file cannot be read, or holds no JSON object.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OperatorError(
            f"{path} cannot be read",
            found=error.strerror or str(error),
            expected="a readable file",
            remedy=remedy,
        ) from error
    return parse_object(content, str(path), remedy=remedy)


def find_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file cannot be read or holds no such thing."""
    try:
        return read_object(path)
    except OperatorError:
        return None
