"""The sources of one package, as texts and as syntax trees, and why some of them cannot be patched."""

from __future__ import annotations

import ast
import codecs
import io
import re
import sys
import tokenize
from collections.abc import Iterable

from . import hunks, transaction
from .installation import Package


class Conflict(Exception):
    """Why a patch cannot be made, and where. Becomes the state ``conflict``."""

    def __init__(self, reason: str, file: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.file = file


class Sources:
    """The files of one package as they are, or as they will be once the planned changes are written."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self._texts: dict[str, str] = {}
        self._trees: dict[tuple[str, str], ast.Module] = {}
        self.original: dict[str, str] = {}

    def text(self, file: str) -> str:
        """The text of ``file``.

        Raises:
            FileNotFoundError: there is no such file.
            Conflict: it is not plain UTF-8 text with Unix line ends, or cannot be read.
        """
        if file not in self._texts:
            path = self.package.root / file
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                raise
            except OSError as error:
                raise Conflict(f"cannot be read: {error.strerror}", file) from error
            if (problem := no_plain_text(data)) is not None:
                raise Conflict(f"{problem}; reinstall the package", file)
            self._texts[file] = self.original[file] = data.decode("utf-8")
        return self._texts[file]

    def change(self, file: str, text: str) -> None:
        """From now on ``file`` has ``text``, in memory."""
        self.text(file)
        self._texts[file] = text

    def tree(self, file: str, text: str | None = None) -> ast.Module:
        """The syntax tree of ``file``, or of ``text`` as what ``file`` is to become.

        Raises:
            FileNotFoundError: there is no such file.
            Conflict: Python cannot parse it.
        """
        text = self.text(file) if text is None else text
        if (file, text) not in self._trees:
            try:
                self._trees[file, text] = ast.parse(text)
            except (SyntaxError, ValueError) as error:
                line = getattr(error, "lineno", None)
                where = f" (line {line})" if line else ""
                version = ".".join(map(str, sys.version_info[:2]))
                raise Conflict(
                    f"is not valid Python {version}: {getattr(error, 'msg', error)}{where}", file
                ) from error
            except (RecursionError, MemoryError) as error:
                raise Conflict("is nested too deeply to be read", file) from error
        return self._trees[file, text]

    def without(self, file: str, patches: Iterable[str] | None = None) -> str:
        """The text of ``file`` without some of our patches, or without any.

        Raises:
            FileNotFoundError: there is no such file.
            Conflict: it cannot be read as text, or its markers do not pair up.
        """
        try:
            return hunks.without(self.text(file), patches)
        except hunks.DamagedMarkers as damage:
            raise Conflict(f"has damaged markers: {damage}; reinstall the package", file) from damage

    def without_ours(self, file: str) -> ast.Module:
        """The syntax tree of ``file`` with none of our patches in it: what we put there proves nothing."""
        return self.tree(file, self.without(file))

    def refuse_broken(self, file: str, new: str) -> None:
        """Raise a Conflict if Python could not parse what ``file``, which it can, is to become."""
        try:
            self.tree(file, new)
        except Conflict as conflict:
            tabs = re.search(r"^ *\t", self.text(file), re.MULTILINE)
            why = "; it is indented with tabs, the published one with spaces" if tabs else ""
            raise Conflict(f"does not take the patch: with it, it {conflict.reason}{why}", file) from conflict

    def refuse_shared(self, file: str) -> None:
        """Raise a Conflict if ``file`` is a link out of the package, as uv and conda make them on request."""
        path = self.package.root / file
        target = path.resolve()
        if self.package.root not in target.parents:
            raise Conflict(
                f"is a link to {target}, which other installations may share; put a copy in its place", file
            )

    def refuse_read_only(self, file: str) -> None:
        """Raise a Conflict if somebody took the permission to write ``file`` away, though root could write it."""
        if problem := transaction.read_only(self.package.root / file):
            raise Conflict(problem, file)

    def edited(self, file: str) -> bool | None:
        """Whether ``file``, our patches apart, differs from the published one; None if that is unknown."""
        published = self.package.published_sha256(file)
        if published is None:
            return None
        try:
            return transaction.sha256(hunks.without(self.text(file)).encode()) != published
        except (FileNotFoundError, Conflict, hunks.DamagedMarkers):
            return True


_WIDE = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def no_plain_text(data: bytes) -> str | None:
    """What makes the bytes of a file something else than UTF-8 text with Unix line ends; None if nothing does."""
    for mark, name in _WIDE.items():
        if data.startswith(mark):
            return f"is {name} text, the published file is UTF-8"
    if data.startswith(codecs.BOM_UTF8):
        return "begins with a byte order mark, the published file does not"
    if (place := data.find(b"\0")) >= 0:
        return f"has null bytes (the first in line {_line(data, place)}), which no Python source has"
    if (place := data.find(b"\r")) >= 0:
        kind = "CRLF line ends" if data[place + 1 : place + 2] == b"\n" else "carriage returns"
        return f"has {kind} (the first in line {_line(data, place)}), the published file has LF line ends"
    try:
        data.decode("utf-8")
        declared = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} in line {_line(data, error.start)}"
        return f"is not UTF-8 text ({found}), the published file is"
    except SyntaxError as error:
        return f"declares an encoding that Python does not know ({error.msg})"
    if codecs.lookup(declared).name != "utf-8":
        return f"declares the encoding {declared}, the published file is UTF-8"
    return None


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1
