"""Fetch a published model, as a unit of systemd: it outlives the connection, and a later run finds it again."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import OperatorError
from .json_reader import parse_object
from .server import render_environment

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_UNIT_DIRECTORY = Path("/run")
# Where huggingface_hub keeps what it has not finished, below the model's folder.
_UNFINISHED = ".cache/huggingface/download"
GIB = 1 << 30


@dataclass(frozen=True)
class Fetch:
    """One model to fetch.

    Attributes:
        repository: ``owner/name`` on the hub.
        revision: the commit, 40 hex digits.
        folder: where to.
        python: interpreter that has huggingface_hub.
        program: a Python program that takes ``list`` or ``get``, repository, revision and folder.
        user: who fetches, and owns the folder.
        environment: variables for it, secrets as well.
    """

    repository: str
    revision: str
    folder: Path
    python: str
    program: str
    user: str
    environment: Mapping[str, str]

    @property
    def source(self) -> dict[str, str]:
        """What the manifest says about where the model is from."""
        return {"repository": self.repository, "revision": self.revision}

    @property
    def unit(self) -> str:
        """The unit that fetches."""
        key = json.dumps([self.repository, self.revision, str(self.folder)])
        return f"sglang-fetch-{sha256(key.encode()).hexdigest()[:8]}.service"

    def check(self) -> None:
        """Refuse what does not name one state of one repository.

        Raises:
            OperatorError: it does not.
        """
        if not _REPOSITORY.fullmatch(self.repository):
            raise OperatorError(
                "This is no repository of models",
                found=repr(self.repository),
                expected="owner/name",
                remedy="correct model_weights_target_repository or model_weights_draft_repository",
            )
        if not _COMMIT.fullmatch(self.revision):
            raise OperatorError(
                f"{self.repository} is to be fetched without a commit, so hosts could get different models",
                found=repr(self.revision),
                expected="the 40 hex digits of a commit, not a branch or a tag",
                remedy="set model_weights_target_revision or model_weights_draft_revision to what this prints: "
                f"git ls-remote https://huggingface.co/{self.repository} HEAD",
            )

    def _argv(self, action: str) -> list[str]:
        return [
            self.python,
            "-I",
            "-c",
            self.program,
            action,
            self.repository,
            self.revision,
            str(self.folder),
        ]

    def _environment(self) -> dict[str, str]:
        home = f"{self.folder}/.cache"
        return {
            # Everything that the library keeps stays on the file system whose space is checked.
            "HOME": home,
            "HF_HOME": f"{home}/home",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "PATH": os.environ.get("PATH", ""),
            **self.environment,
        }

    def published(self) -> dict[str, dict[str, Any]]:
        """The repository's files: ``size`` in bytes, None if nobody tells, and ``sha256``, empty if unpublished.

        Raises:
            OperatorError: the hub cannot be reached, has no such model for this user, or answers nonsense.
        """
        account = pwd.getpwnam(self.user)
        done = subprocess.run(
            self._argv("list"),
            env=self._environment(),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
        )
        if done.returncode:
            raise OperatorError(
                f"The list of files of {self.repository} at {self.revision[:12]} cannot be had",
                found=(done.stderr.strip().splitlines() or ["no message"])[-1],
                expected="an answer of the hub",
                remedy="check the names, model_weights_token for a closed repository, and a proxy or a mirror in "
                "model_weights_fetch_environment (HTTPS_PROXY, HF_ENDPOINT)",
            )
        return read_listing(done.stdout, self.repository)

    def have(self, published: Mapping[str, Mapping[str, Any]]) -> int:
        """Bytes that are on the host, whole files and parts."""
        size = sum(
            (self.folder / name).stat().st_size
            for name, entry in published.items()
            if self._is_there(name, entry["size"])
        )
        for part in (self.folder / _UNFINISHED).rglob("*.incomplete"):
            # It gets its own name when it is whole, which may be now.
            with contextlib.suppress(FileNotFoundError):
                size += part.stat().st_blocks * 512
        return size

    def missing(self, published: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Files that are not there, or not in their full size where that is known."""
        return [name for name, entry in published.items() if not self._is_there(name, entry["size"])]

    def other_sizes(self, published: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
        """The sizes of files that are there, but not in the size that the hub lists."""
        return {
            name: (self.folder / name).stat().st_size
            for name in self.missing(published)
            if (self.folder / name).is_file()
        }

    def _is_there(self, name: str, size: int | None) -> bool:
        path = self.folder / name
        return path.is_file() and size in (None, path.stat().st_size)

    def check_space(self, published: Mapping[str, Mapping[str, Any]]) -> str:
        """Refuse to begin what cannot end.

        Returns:
            Why it could not be checked, as a sentence; empty if there is room.

        Raises:
            OperatorError: the file system is too small for what is missing.
        """
        known = {name: entry for name, entry in published.items() if entry["size"] is not None}
        unknown = [name for name in published if name not in known]
        needed = sum(entry["size"] for entry in known.values()) - self.have(known)
        place = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        free = shutil.disk_usage(place).free
        if free < needed:
            raise OperatorError(
                f"There is not enough space for {self.repository}",
                found=f"{free / GIB:.1f} GiB free in {place}",
                expected=f"{'more than ' if unknown else ''}{needed / GIB:.1f} GiB",
                remedy="free some space, or set eagle3_server_model_path or eagle3_server_draft_model_path to a "
                "larger file system",
            )
        if not unknown:
            return ""
        return (
            f"Whether there is room for {self.repository} in {place} is not checked: the hub does not tell the size of "
            f"{len(unknown)} of its {len(published)} files ({', '.join(unknown[:3])}{', ...' if unknown[3:] else ''}). "
            f"{free / GIB:.1f} GiB are free"
        )

    def begin(self) -> None:
        """Start the unit, unless it runs."""
        if self.state() in ("active", "activating"):
            return
        account = pwd.getpwnam(self.user)
        if not self.folder.exists():
            self.folder.mkdir(parents=True)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        subprocess.run(["systemctl", "reset-failed", self.unit], check=False, capture_output=True)
        # A file that root alone reads, because properties of a unit and arguments are for everybody.
        handle, name = tempfile.mkstemp(dir=_UNIT_DIRECTORY, prefix="sglang-fetch-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write(render_environment(self._environment()))
            subprocess.run(
                [
                    "systemd-run",
                    "--quiet",
                    f"--unit={self.unit}",
                    f"--description=Fetch {self.repository}",
                    "--service-type=exec",
                    f"--uid={self.user}",
                    f"--property=EnvironmentFile={name}",
                    "--",
                    *self._argv("get"),
                ],
                check=True,
                capture_output=True,
                text=True,
            )
        except subprocess.CalledProcessError as error:
            raise OperatorError(f"{self.unit} does not start", found=error.stderr.strip()) from error
        finally:
            Path(name).unlink()

    def state(self) -> str:
        """ActiveState of the unit; ``inactive`` once it has ended well, as systemd then forgets it."""
        done = subprocess.run(
            ["systemctl", "show", "--property=ActiveState", "--value", self.unit],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def last_lines(self) -> str:
        """What the unit said last."""
        done = subprocess.run(
            ["journalctl", "--unit", self.unit, "--lines=3", "--output=cat", "--no-pager"],
            check=False,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()


def read_listing(answer: str, repository: str) -> dict[str, dict[str, Any]]:
    """What the program that asks the hub prints: ``size`` and ``sha256`` by file.

    A size or a digest that is none is unknown, as it is if the hub tells nothing.

    Raises:
        OperatorError: it is no list of files.
    """
    remedy = "look at what answers: HF_ENDPOINT in model_weights_fetch_environment has to be a hub of models"
    listed = parse_object(
        (answer.strip().splitlines() or [""])[-1], f"The list of files of {repository}", remedy=remedy
    )
    found: dict[str, dict[str, Any]] = {}
    for name, entry in listed.items():
        path = PurePosixPath(name)
        if not isinstance(entry, dict) or path.is_absolute() or ".." in path.parts or not path.name:
            raise OperatorError(
                f"The list of files of {repository} means nothing",
                found=f"{name!r}: {json.dumps(entry)[:80]}",
                expected="names of files below the model's folder",
                remedy=remedy,
            )
        size, digest = entry.get("size"), entry.get("sha256")
        # Hidden files are notes of git.
        if not name.startswith("."):
            found[name] = {
                "size": size if type(size) is int and size >= 0 else None,
                "sha256": digest if isinstance(digest, str) and _SHA256.fullmatch(digest) else "",
            }
    if not found:
        raise OperatorError(
            f"{repository} has no files at this commit",
            found="an empty list",
            expected="config.json and the weights",
            remedy=remedy,
        )
    return found
