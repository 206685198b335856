"""The files of a model: whether they are all there, whole, and the ones that were recorded.

A *manifest* on the host records size, time of change and SHA-256 of every file. A look at each run compares sizes and
times, and reads the headers of the weights, which takes a second for 590 GB; a file with another time is read in
full. A model is recorded when it is first seen.
"""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .errors import OperatorError
from .files import sha256
from .json_reader import find_object
from .model_check import check_files

_READERS = 8


@dataclass(frozen=True)
class File:
    """What is known of one file.

    Attributes:
        size: in bytes.
        changed: time of the last change, in nanoseconds since the epoch.
        sha256: as hex digits; empty while the file has not been read.
    """

    size: int
    changed: int
    sha256: str = ""


@dataclass(frozen=True)
class Manifest:
    """What is recorded of a model.

    Attributes:
        path: its folder.
        source: where it was fetched from, with ``repository`` and ``revision``; empty if it was put there.
        files: by path below the folder.
    """

    path: str
    source: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, File] = field(default_factory=dict)

    def text(self) -> str:
        """As it is written; :func:`read_manifest` reads it."""
        files = {
            name: {"size": file.size, "changed": file.changed, "sha256": file.sha256}
            for name, file in sorted(self.files.items())
        }
        return json.dumps({"path": self.path, "source": dict(self.source), "files": files}, indent=2) + "\n"


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file; an empty one if there is none, or no readable one."""
    found = find_object(path) or {}
    source, entries = found.get("source"), found.get("files")
    if (
        not isinstance(found.get("path"), str)
        or not isinstance(source, dict)
        or not isinstance(entries, dict)
    ):
        return Manifest("")
    try:
        files = {name: File(**entry) for name, entry in entries.items()}
    except TypeError:
        return Manifest("")
    right = all(
        type(file.size) is int and type(file.changed) is int and isinstance(file.sha256, str)
        for file in files.values()
    )
    return Manifest(found["path"], source, files) if right else Manifest("")


def find_files(folder: Path) -> dict[str, File]:
    """The files of a model, by path below its folder.

    Raises:
        OperatorError: there is no such folder.
    """
    if not folder.is_dir():
        raise OperatorError(
            f"There is no model in {folder}",
            found="a file" if folder.exists() else "no such folder",
            expected="a folder with config.json and the weights",
            remedy="put the model there or mount it, or correct eagle3_server_model_path or "
            "eagle3_server_draft_model_path",
        )
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        # Hidden ones are notes of tools: git's and huggingface_hub's.
        if not any(part.startswith(".") for part in name.parts) and path.is_file():
            status = path.stat()
            found[str(name)] = File(status.st_size, status.st_mtime_ns)
    return found


def problems(
    folder: Path, files: Mapping[str, File], *, tokenizer: bool | None = None, code: bool = True
) -> list[OperatorError]:
    """Everything about a model's files that would keep it from loading, as a quick look finds it.

    Args:
        folder: the model's.
        files: its files, as :func:`find_files` finds them.
        tokenizer: whether it has to have a tokenizer; None for all models but drafters.
        code: whether code of its own is run (``trust_remote_code``).
    """
    return list(check_files(folder, files, tokenizer=tokenizer, code=code))


def unreadable(folder: Path, files: Iterable[str], user: str) -> list[str]:
    """The files that a user may not read, asked as that user; needs root."""
    account = pwd.getpwnam(user)
    groups = os.getgrouplist(user, account.pw_gid)
    answer, question = os.pipe()
    child = os.fork()
    if not child:
        # No program is started: that user may not be able to run this interpreter.
        try:
            os.setgroups(groups)
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            closed = [name for name in files if not os.access(folder / name, os.R_OK)]
            with os.fdopen(question, "w", encoding="utf-8") as out:
                out.write("\0".join(closed))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(question)
    with os.fdopen(answer, encoding="utf-8") as source:
        text = source.read()
    if os.waitpid(child, 0)[1]:
        raise OSError(f"cannot become the user {user}")
    return text.split("\0") if text else []


def places(folder: Path, files: Iterable[str]) -> list[str]:
    """The folders that have files of a model: its own, and those that links in it lead to."""
    own = folder.resolve()
    linked = {(folder / name).resolve().parent for name in files}
    return [str(folder), *sorted(str(place) for place in linked if place != own and own not in place.parents)]


def differences(
    folder: Path,
    files: Mapping[str, File],
    recorded: Mapping[str, File],
    published: Mapping[str, Mapping[str, Any]],
    manifest: Path,
) -> list[OperatorError]:
    """What differs from the record or from what was published, as far as the files have been read.

    Args:
        folder: the model's.
        files: the files that are there.
        recorded: files of the manifest.
        published: ``size`` (None if unknown) and ``sha256`` (empty if unknown) of the files in the repository, by name.
        manifest: where the record is, for the message.
    """
    found = []
    for origin, known, remedy in (
        ("recorded", _plain(recorded), "copy it again; if it was replaced on purpose, remove the record, {}"),
        ("published", published, "remove it and run the playbook again, which fetches it anew"),
    ):
        for name, entry in known.items():
            file = files.get(name)
            if file is None:
                is_, was = "no such file", f"the {origin} one"
            elif entry["size"] is not None and file.size != entry["size"]:
                is_, was = f"{file.size} bytes", f"{entry['size']} bytes"
            elif file.sha256 and entry["sha256"] and file.sha256 != entry["sha256"]:
                is_, was = f"SHA-256 {file.sha256}", entry["sha256"]
            else:
                continue
            found.append(
                OperatorError(
                    f"{folder / name} is not the file that was {origin}",
                    found=is_,
                    expected=was,
                    remedy=remedy.format(manifest),
                )
            )
    return found


def _plain(files: Mapping[str, File]) -> dict[str, dict[str, Any]]:
    return {name: {"size": file.size, "sha256": file.sha256} for name, file in files.items()}


def carry_over(files: Mapping[str, File], recorded: Mapping[str, File]) -> dict[str, File]:
    """The files with the digests of those that have not changed since they were recorded."""
    return {
        name: replace(file, sha256=known.sha256)
        if (known := recorded.get(name)) and (known.size, known.changed) == (file.size, file.changed)
        else file
        for name, file in files.items()
    }


def read_fully(folder: Path, files: Mapping[str, File], seconds: float | None) -> dict[str, File]:
    """Read files that have no digest yet, largest first, several at once.

    After ``seconds`` no further file is begun, so that a caller can say how far it is, but at least one is read. The
    others come back as they were.
    """
    began = time.monotonic()
    unread = sorted((name for name in files if not files[name].sha256), key=lambda name: -files[name].size)

    def read(name: str) -> tuple[str, File]:
        if name != unread[0] and seconds is not None and time.monotonic() - began >= seconds:
            return name, files[name]
        return name, replace(files[name], sha256=sha256(folder / name))

    with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as readers:
        return {**files, **dict(readers.map(read, unread))}
