"""The one parser of booleans, for variables of the inventory and for environment variables of SGLang."""

from __future__ import annotations

from typing import Any

# What SGLang 0.5.9 takes in an environment variable (EnvBool in srt/environ.py), in any case of letters.
_TRUE = frozenset({"true", "1", "yes", "y"})
_FALSE = frozenset({"false", "0", "no", "n"})
# What YAML and Ansible take besides.
_ANSIBLE_TRUE = _TRUE | {"on", "t", "1.0"}
_ANSIBLE_FALSE = _FALSE | {"off", "f", "0.0", ""}


def parse_environment_boolean(value: Any) -> bool | None:
    """What SGLang makes of an environment variable; None for a text that it does not take for a boolean."""
    text = str(value).lower()
    return True if text in _TRUE else False if text in _FALSE else None


def is_true(value: Any) -> bool:
    """Whether a variable of the inventory is on, written as a boolean or as a text that Ansible takes for one.

    Raises:
        ValueError: the value is not a boolean.
    """
    text = str(value).strip().lower()
    if text in _ANSIBLE_TRUE:
        return True
    if text in _ANSIBLE_FALSE or value is None:
        return False
    raise ValueError(f"{value!r} is not a boolean")
