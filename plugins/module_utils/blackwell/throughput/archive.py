"""The folder of stored checks on the controller, and the pages about them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from ..errors import OperatorError
from ..files import replace
from ..json_reader import read_object
from .compare import compare
from .record import Record
from .report import render
from .table import comparison_lines, result_lines


@dataclass(frozen=True)
class Plan:
    """What is to be written: text by path (only what differs), the pages, and what to say about it."""

    files: dict[Path, str]
    pages: list[Path]
    lines: list[str]
    added: list[str]


def plan(folder: Path, records: Sequence[Mapping[str, Any]], compared: Sequence[Path]) -> Plan:
    """Work out which files make the folder hold ``records`` and the pages about them.

    Args:
        folder: holds one folder a host.
        records: checks to add, as plain data.
        compared: two files of stored checks to put side by side, or none.

    Raises:
        OperatorError: a stored check that cannot be read, or not two files to compare.
        ValueError: a record that is not one.
    """
    added = [Record.from_json(dict(data)) for data in records]
    comparison = None
    hosts = {record.result.host for record in added}
    lines = [line for record in added for line in [*result_lines(record.result, record.verdict), ""]]
    if compared:
        if len(compared) != 2:
            raise OperatorError(
                "A comparison needs two stored checks", found=str(len(compared)), expected="before, after"
            )
        before, after = (read(path).result for path in compared)
        comparison = compare(before, after)
        hosts.add(after.host)
        lines += comparison_lines(comparison)
    wanted: dict[Path, str] = {}
    pages = []
    for host in sorted(hosts):
        place = folder / _folder_name(host)
        stored = {path.name: read(path) for path in sorted(place.glob("*.json"))}
        mine = {record.file_name(): record for record in added if record.result.host == host}
        wanted.update({place / name: record.text() for name, record in mine.items()})
        everything = [record for record in {**stored, **mine}.values() if record.result.host == host]
        if not everything:
            raise OperatorError(
                f"The folder has no check of {host}", found=str(place), remedy="add the checks first"
            )
        page = place / "index.html"
        shown = comparison if compared and after.host == host else None
        wanted[page] = render(everything, shown)
        pages.append(page)
    files = {path: text for path, text in wanted.items() if not _holds(path, text)}
    told = [
        record.verdict.headline if record.verdict else f"{path.name}: measured, not judged"
        for record in added
        for path in files
        if path.name == record.file_name()
    ]
    return Plan(files, pages, lines, told)


def write(planned: Plan) -> None:
    """Write the files of a plan, each whole or not at all."""
    for path, text in planned.files.items():
        replace(path, text)


def read(path: Path) -> Record:
    """A stored check.

    Raises:
        OperatorError: the file cannot be read, or is no stored check.
    """
    remedy = f"move it out of the folder: mv {quote(str(path))} {quote(f'{path}.damaged')}"
    content = read_object(path, remedy=remedy)
    try:
        return Record.from_json(content)
    except ValueError as error:
        raise OperatorError(
            f"{path} is no stored check",
            found=str(error),
            expected="a file that this project wrote",
            remedy=remedy,
        ) from error


def _folder_name(host: str) -> str:
    """A folder's name for whatever an inventory calls a host; never one that leads elsewhere."""
    return re.sub(r"[^A-Za-z0-9._-]+|^\.+", "_", host)


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()
