"""What a run works with: folders, environments of SGLang, the project's playbooks, and what the machine is."""

from __future__ import annotations

import base64
import csv
import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .runner import Failed, NotRun

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.5.9"
PROMPTS = ROOT / "roles" / "throughput_check" / "files" / "prompts" / "prompts.jsonl"
# The distribution's own: another one on the path may be of any age.
HOST_PYTHON = "/usr/bin/python3"
# What a tree has a copy of; all else is shared.
OWN = ("sglang", "flashinfer")


@dataclass(frozen=True)
class Rig:
    """Folders of a run.

    Args:
        work: everything that is made lies below it.
        packages: packages.tar.xz of ``carry.py``, or a folder of installed packages.
        project: the project whose roles and playbooks are tried.
        seconds: how long the target and the drafter are trained.
    """

    work: Path
    packages: Path
    project: Path = ROOT
    seconds: tuple[float, float] = (140.0, 90.0)

    @property
    def site(self) -> Path:
        """The packages, unpacked."""
        return self.packages if self.packages.is_dir() else self.work / "site"

    @property
    def models(self) -> Path:
        """Target, drafter and prompts."""
        return self.work / "models"

    @property
    def logs(self) -> Path:
        """What servers and playbooks wrote."""
        return self.work / "logs"

    @property
    def controller(self) -> Path:
        """The interpreter that Ansible runs with."""
        return self.work / "controller" / "bin" / "python"

    def tree(self, name: str) -> Path:
        """The interpreter of an environment with its own copy of SGLang."""
        return self.work / "trees" / name / "bin" / "python"

    def prepare(self) -> dict[str, Any]:
        """Unpack the packages and make the controller's environment."""
        self.logs.mkdir(parents=True, exist_ok=True)
        if not self.site.exists():
            draft = self.work / "site.part"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            subprocess.run(["tar", "--extract", "--file", self.packages, "--directory", draft], check=True)
            # The service may not write byte code, and its imports would take twice as long without.
            subprocess.run([sys.executable, "-W", "ignore", "-m", "compileall", "-q", "-j", "0", draft])
            draft.rename(self.site)
        environment(self.work / "controller", [self.site, image()])
        return {"packages": len(list(self.site.glob("*.dist-info")))}

    def make_tree(self, name: str) -> Path:
        """An environment with the published sources of SGLang and FlashInfer."""
        root = self.work / "trees" / name
        if not root.exists():
            draft = self.work / "trees" / f"{name}.part"
            shutil.rmtree(draft, ignore_errors=True)
            packages = environment(draft, [self.site, image()])
            for package in OWN:
                shutil.copytree(self.site / package, packages / package, symlinks=True)
                for record in self.site.glob(f"{package}*.dist-info"):
                    if re.match(rf"{package}(_python)?-", record.name):
                        shutil.copytree(record, packages / record.name)
            # Compiled kernels are found by the path of their sources: one path, so they are compiled once.
            kernels = packages / "sglang" / "jit_kernel"
            shutil.rmtree(kernels)
            kernels.symlink_to(self.site / "sglang" / "jit_kernel")
            draft.rename(root)
        return self.tree(name)

    def changed_files(self, name: str) -> list[str]:
        """The sources of a tree that are not the published wheels'."""
        packages = next((self.work / "trees" / name / "lib").glob("python3*")) / "site-packages"
        changed = []
        for record in packages.glob("*.dist-info/RECORD"):
            with record.open(encoding="utf-8", newline="") as file:
                for path, digest, _size in csv.reader(file):
                    place = packages / path
                    if not path.endswith((".py", ".cu", ".cuh", ".h")) or not digest or not place.is_file():
                        continue
                    seen = base64.urlsafe_b64encode(hashlib.sha256(place.read_bytes()).digest()).decode()
                    if seen.rstrip("=") != digest.partition("=")[2]:
                        changed.append(path)
        return sorted(changed)

    def play(
        self, log: str, playbook: str, *given: str, into: Sequence[str] = (), limit_s: float = 900
    ) -> Play:
        """Run one of the project's playbooks; its output goes to ``logs/<log>.log``.

        Args:
            log: name of the log.
            playbook: path below the project.
            given: more arguments.
            into: command that the playbook is run with, such as one that enters a namespace.
            limit_s: after which it is killed.
        """
        command = [*into, str(self.controller), "-m", "ansible", "playbook", playbook, *given]
        if into:
            # nsenter keeps no working directory.
            shell = 'cd "$1" && shift && exec "$@"'
            command = [*into, "bash", "-c", shell, "-", str(self.project), *command[len(into) :]]
        path = self.logs / f"{log}.log"
        with path.open("w", encoding="utf-8") as file:
            done = subprocess.run(
                command,
                cwd=self.project,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                env={**os.environ, "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"},
            )
        return Play(done.returncode, path.read_text(encoding="utf-8", errors="replace"))


@dataclass(frozen=True)
class Play:
    """How a playbook ended. ``text`` is what it printed."""

    status: int
    text: str

    def counts(self) -> dict[str, int]:
        """The recap, summed over hosts."""
        recap = self.text.rpartition("PLAY RECAP")[2]
        counts: dict[str, int] = {}
        for name, number in re.findall(r"(\w+)=(\d+)", recap):
            counts[name] = counts.get(name, 0) + int(number)
        return counts

    def require_success(self) -> Play:
        """Itself.

        Raises:
            Failed: it did not end well; with what it said last.
        """
        if self.status != 0:
            said = self.text.partition("PLAY RECAP")[0].strip().splitlines()
            begin = max(
                (n for n, line in enumerate(said) if line.startswith(("fatal:", "[ERROR]"))),
                default=len(said) - 25,
            )
            raise Failed(
                f"the playbook ended with {self.status}", {"said": "\n".join(said[begin : begin + 40])[:4000]}
            )
        return self


def image() -> Path:
    """Where the PyTorch that is at hand lies."""
    return Path(sysconfig.get_paths()["purelib"])


def environment(folder: Path, paths: Sequence[Path]) -> Path:
    """A virtual environment that sees folders of packages after its own; its folder of packages."""
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    lines = "".join(f"site.addsitedir({str(path)!r}); " for path in paths)
    (packages / "zz_shared.pth").write_text(f"import site; {lines}\n", encoding="utf-8")
    return packages


def patch_ids(project: Path = ROOT) -> dict[str, list[str]]:
    """The project's patches by kind: ``model``, ``guard``."""
    kinds: dict[str, list[str]] = {}
    for path in sorted((project / "files" / "patches").glob("*/patch.yml")):
        patch = yaml.safe_load(path.read_text(encoding="utf-8"))
        kinds.setdefault(patch["kind"], []).append(patch["id"])
    return kinds


def patch_default(project: Path, name: str) -> bool:
    """Whether a patch is on unless it is switched off."""
    text = (project / "files" / "patches" / name / "patch.yml").read_text(encoding="utf-8")
    return bool(yaml.safe_load(text)["switch"]["default"])


def query(*fields: str) -> list[list[str]]:
    """What nvidia-smi says of each card.

    Raises:
        NotRun: there is no card, or no driver.
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NotRun(f"nvidia-smi does not answer: {error}") from error
    return [[cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.strip()]


def describe(rig: Rig) -> dict[str, Any]:
    """Date, card, driver and versions, for the record. What cannot be told is left out."""
    about: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "python": sys.version.split()[0],
    }
    try:
        cards = query("name", "memory.total", "driver_version", "compute_cap")
        about["cards"] = [f"{name}, {memory} MiB, SM {cap}" for name, memory, _driver, cap in cards]
        about["driver"] = cards[0][2]
    except NotRun as reason:
        about["cards"] = str(reason)
    probe = "import torch; print(torch.__version__, torch.version.cuda)"
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    if answer.returncode == 0:
        about["torch"], about["cuda"] = answer.stdout.split()
    about["project"] = f"sources {digest(rig.project)}"
    return about


def versions(rig: Rig) -> dict[str, str]:
    """What was unpacked."""
    about = {}
    for key, name in (("sglang", "sglang"), ("kernels", "sgl*kernel"), ("flashinfer", "flashinfer_python")):
        found = sorted(rig.site.glob(f"{name}-*.dist-info"))
        if found:
            about[key] = found[0].name.removesuffix(".dist-info")
    return about


def digest(project: Path) -> str:
    """12 hex digits over what is tried: a copy of the project has no history that could name it."""
    parts = hashlib.sha256()
    for folder in ("files/patches", "playbooks", "plugins", "roles"):
        for path in sorted((project / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                parts.update(str(path.relative_to(project)).encode() + path.read_bytes())
    return parts.hexdigest()[:12]


def dump(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON, which is YAML, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
