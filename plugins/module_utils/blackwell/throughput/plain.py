"""Objects from plain data, as a file of JSON holds it: every field is there, is known, and is of its type."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

_T = TypeVar("_T")
# No count and no size is larger; a whole number that is cannot be computed with.
_MOST = 1e15


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST


def _is_float(value: Any) -> bool:
    return _is_int(value) or isinstance(value, float)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value


def _all(kind: type, holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        if not isinstance(value, kind):
            return False
        return all(map(holds, _items(value)))

    return check


# By the text of an annotation, what JSON may hold there; a boolean is no number, though Python takes it for one.
_HOLDS: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": _is_int,
    "float": _is_float,
    "str": _is_text,
    "list[str]": _all(list, _is_text),
    "list[dict[str, Any]]": _all(list, lambda value: isinstance(value, dict)),
    "dict[str, Any]": lambda value: isinstance(value, dict),
    "dict[str, float]": _all(dict, _is_float),
    "dict[str, str]": _all(dict, _is_text),
}


def build(kind: Callable[..., _T], data: Any, *, finite: bool = True) -> _T:
    """A dataclass of plain data.

    Args:
        kind: the dataclass. Fields of other types than JSON has are taken as they are.
        data: its fields by name.
        finite: refuse NaN and infinity, which JSON knows in Python alone.

    Raises:
        ValueError: names the field that is missing, unknown or of another type.
    """
    name_of_it = getattr(kind, "__name__", str(kind))
    if not isinstance(data, Mapping):
        raise ValueError(f"{name_of_it}: {_short(data)} is no object")
    known = {item.name: str(item.type) for item in fields(kind)}  # type: ignore[arg-type]  # a dataclass, as said
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(f"{name_of_it}: unknown field(s) {_short(', '.join(map(str, unknown)))}")
    for name, value in data.items():
        wanted = known[name]
        may_be_none = wanted.endswith(" | None")
        holds = _HOLDS.get(wanted[: -len(" | None")] if may_be_none else wanted)
        if holds and not (value is None and may_be_none) and not holds(value):
            raise ValueError(f"{name_of_it}.{name} is {_short(value)}, expected {wanted}")
        if finite and isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name_of_it}.{name} is {value}, expected a number")
    try:
        return kind(**data)
    except TypeError as error:
        raise ValueError(f"{name_of_it}: {error}") from error


def part(data: Any, name: str) -> Any:
    """One field of an object; None where there is no object or no such field."""
    return data.get(name) if isinstance(data, Mapping) else None


def listed(name: str, value: Any) -> list[Any]:
    """A list, or a ValueError that names it."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is {_short(value)}, expected a list")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
