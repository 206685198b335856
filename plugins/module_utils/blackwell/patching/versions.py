"""Release numbers as Python packages write them (PEP 440), as far as a range of releases needs.

``packaging`` is not there on a plain host, hence these few lines.
"""

from __future__ import annotations

import operator
import re
from typing import Any

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>a|b|rc)[-_.]?(?P<pre_number>\d+))?"
    r"(?:\.post(?P<post>\d+))?"
    r"(?:\.dev(?P<dev>\d+))?"
    r"(?:\+[A-Za-z0-9._-]+)?"
)
_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*(\S+)")
_OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def version_key(version: str) -> tuple[Any, ...]:
    """A key that orders versions as PEP 440 does: dev < pre-release < final < post.

    Raises:
        ValueError: ``version`` is not a version.
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        raise ValueError(f"{version!r} is not a version number")
    release = tuple(int(part) for part in match["release"].split("."))
    while release and release[-1] == 0:
        release = release[:-1]
    if match["pre"]:
        pre: tuple[Any, ...] = (1, match["pre"], int(match["pre_number"]))
    elif match["dev"] and not match["post"]:
        pre = (0,)
    else:
        pre = (2,)
    post = int(match["post"]) if match["post"] else -1
    dev = (0, int(match["dev"])) if match["dev"] else (1, 0)
    return (release, pre, post, dev)


def is_version(text: str) -> bool:
    """Whether ``text`` is a version that can be held against a range of releases."""
    try:
        version_key(text)
    except ValueError:  # also of a number that Python does not read, for its length
        return False
    return True


def in_range(version: str, releases: str) -> bool:
    """Whether ``version`` lies in a range such as ``>=0.5.8,<0.5.14``.

    A development version counts as older than the release it leads to: ``0.5.10.dev3`` is below ``0.5.10``.

    Raises:
        ValueError: ``version`` or ``releases`` cannot be read.
    """
    key = version_key(version)
    for clause in releases.split(","):
        match = _CLAUSE.fullmatch(clause.strip())
        if match is None:
            raise ValueError(f"{releases!r} is not a range of releases such as '>=0.5.8,<0.5.14'")
        if not _OPERATORS[match[1]](key, version_key(match[2])):
            return False
    return True
