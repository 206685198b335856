"""The role model_patches on a real 0.5.9, with patches that are hard on it: all hosts are folders on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.patches import playbook, trees

ID = "kimi-k25-eagle3-delegation"
MODEL = "sglang/srt/models/kimi_k25.py"

# What a template engine would take for its own.
BRACES = """
    def describe(self, a):
        return f"{a} {{a}}" + "{{ a }} {% if a %} {# a #} {% raw %}"
"""
SECOND: dict[str, Any] = {
    "id": "kimi-k25-second",
    "title": "Another patch of the same file",
    "purpose": "To see that patches of one file live side by side.",
    "references": ["https://example.org/1"],
    "verified": "not at all",
    "kind": "model",
    "method": "blockinfile",
    "package": "sglang",
    "file": "srt/models/kimi_k25.py",
    "switch": {"default": True, "reason": "For a test."},
    "variants": [
        {"releases": ">=0.5.9", "edits": [{"before": "EntryClass = ...", "text_file": "methods.py"}]},
    ],
    "postconditions": [{"without_arguments": "KimiK25ForConditionalGeneration.second"}],
}

PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "vars": {"model_patches_directory": "{{ patches }}", "model_patches_python": "{{ python }}"},
        "roles": ["model_patches"],
    }
]


class Fleet:
    """Installations side by side, each a host of one inventory."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        patches = folder / "patches"
        shutil.copytree(trees.PATCHES / ID, patches / ID)
        with (patches / ID / "methods.py").open("a") as methods:
            methods.write(BRACES)
        (patches / SECOND["id"]).mkdir()
        (patches / SECOND["id"] / "patch.yml").write_text(yaml.safe_dump(SECOND))
        (patches / SECOND["id"] / "methods.py").write_text("    def second(self):\n        return None\n")
        hosts = {name: {"python": str(trees.installation(folder / name, "0.5.9"))} for name in names}
        common = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "patches": str(patches),
        }
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": common}}))
        (folder / "play.yml").write_text(yaml.safe_dump(PLAY))

    def model(self, name: str) -> Path:
        return trees.site_packages(self.folder / name) / MODEL

    def run(self) -> tuple[dict[str, int], dict[str, int], str]:
        """Changes and failures of each host, and what was said."""
        command = [str(Path(sys.executable).with_name("ansible-playbook")), str(self.folder / "play.yml")]
        command += [f"--inventory={self.folder / 'hosts.yml'}"]
        variables = {**playbook.ENVIRONMENT, "ANSIBLE_ROLES_PATH": str(trees.ROOT / "roles")}
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        recap = re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+).*?failed=(\d+)", done.stdout, re.MULTILINE)
        assert recap, done.stdout + done.stderr
        return {host: int(n) for host, n, _ in recap}, {host: int(n) for host, _, n in recap}, done.stdout


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, "plain", "misplaced", "docstring", "read_only")


def test_the_role_on_files_that_are_hard_on_it(fleet: Fleet) -> None:
    misplaced = fleet.model("misplaced")
    block = f"# BEGIN blackwell patch: {ID}\nOLD = True\n# END blackwell patch: {ID}\n"
    misplaced.write_text(misplaced.read_text() + block)
    docstring = fleet.model("docstring")
    # Here blockinfile finds another last line that begins with EntryClass than Python does.
    docstring.write_text(docstring.read_text() + '\n_TEXT = """\nEntryClass = [Something]\n"""\n')
    before = docstring.read_bytes()
    read_only = fleet.model("read_only")
    published = read_only.read_bytes()
    read_only.chmod(0o444)
    cached = fleet.folder / "cached.py"
    cached.hardlink_to(fleet.model("plain"))

    changed, failed, said = fleet.run()
    assert failed == {"plain": 0, "misplaced": 0, "docstring": 1, "read_only": 1}
    assert changed["plain"] and changed["misplaced"]
    assert docstring.read_bytes() == before
    assert "failed to validate" in said
    assert read_only.read_bytes() == cached.read_bytes() == published
    assert f"{read_only}: is read-only (mode 0444)" in " ".join(said.split())

    text = fleet.model("plain").read_text()
    assert BRACES.strip("\n") in text
    for name in (ID, SECOND["id"]):
        assert (
            text.count(f"# BEGIN blackwell patch: {name}\n")
            == text.count(f"# END blackwell patch: {name}\n")
            == 1
        )
    assert "OLD = True" not in misplaced.read_text()
    assert sorted(misplaced.read_text().split("\n")) == sorted(text.split("\n"))

    changed, failed, _ = fleet.run()
    assert (changed["plain"], changed["misplaced"]) == (0, 0)
    assert fleet.model("plain").read_text() == text
