"""Hostile inputs for parsers of outside text: bytes, broken text, and real samples that were cut or changed.

``ATTACK_INPUTS`` sets how many inputs each parser gets; the default takes seconds in all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from blackwell.errors import OperatorError
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

INPUTS = int(os.environ.get("ATTACK_INPUTS", "200"))

# What real tools print where a number or a name was expected.
ODD_FIELDS = (
    "",
    "[N/A]",
    "[GPU requires reset]",
    "[Unknown Error]",
    "-1",
    "1e999",
    "nan",
    "null",
    "\x00",
    "ä" * 50,
)


def attack(function: Callable[..., None]) -> Callable[..., None]:
    """Run a property test on ``ATTACK_INPUTS`` inputs; the same ones each time, so that a failure can be repeated."""
    return settings(
        max_examples=INPUTS,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(function)


def hostile(samples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Bytes that a parser may meet: arbitrary ones, and the samples cut, spliced, repeated and changed.

    Args:
        samples: real texts that the parser understands.
    """
    return st.one_of(st.binary(max_size=400), st.sampled_from(list(samples)).flatmap(_changed))


def _changed(sample: bytes) -> st.SearchStrategy[bytes]:
    place = st.integers(0, len(sample))
    piece = st.one_of(st.binary(max_size=8), st.sampled_from([field.encode() for field in ODD_FIELDS]))
    return st.builds(
        lambda start, end, put: sample[: min(start, end)] + put + sample[max(start, end) :],
        place,
        place,
        piece,
    ) | st.builds(lambda end: sample[:end], place)


def value_or_operator_error(call: Callable[[], Any]) -> Any:
    """What the call returns, or its OperatorError, which has to say what was found and what mends it.

    Any other exception fails the test as it is: it would be a traceback for the operator.
    """
    try:
        return call()
    except OperatorError as error:
        assert error.problem
        assert error.found or error.expected, (
            f"the error says neither what was found nor what was expected: {error}"
        )
        return error
