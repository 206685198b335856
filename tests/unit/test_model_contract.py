"""What a model's class lacks of what SGLang uses: on published releases, and on a miniature of SGLang."""

from __future__ import annotations

import json
import shutil
import textwrap
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.model_classes import SourceTree, source_root
from blackwell.target_contract import Contract, check

from tests.wheels import unpacked

KIMI = "KimiK25ForConditionalGeneration"
EAGLE3 = {"model_path": "/models/target", "speculative_algorithm": "EAGLE3", "tp_size": 8}
NEEDED = ["get_embed_and_head", "set_eagle3_layers_to_capture"]


def missing(contract: Contract) -> list[str]:
    return [one.name for one in contract.missing]


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    """A copy of SGLang 0.5.9 that a test may edit."""
    return Path(shutil.copytree(unpacked("sglang", "0.5.9"), tmp_path / "tree"))


def edit(tree: Path, file: str, old: str, new: str) -> None:
    path = tree / "sglang" / "srt" / file
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_all_missing_methods_of_stock_0_5_9_are_named_at_once() -> None:
    found = check(SourceTree(unpacked("sglang", "0.5.9")), KIMI, EAGLE3)

    assert missing(found) == NEEDED
    assert found.pairs == ("set_embed_and_head",)
    message = found.message("apply the patch")
    assert "cuda_graph_runner.py:365" in message
    assert "eagle_worker_v2.py:194" in message
    assert "language_model (DeepseekV3ForCausalLM) has it" in message
    assert message.split("To mend it: ")[1].startswith("apply the patch.")


@pytest.mark.parametrize(
    "architecture", ["KimiVLForConditionalGeneration", "Qwen3VLForConditionalGeneration", "InternVLChatModel"]
)
def test_other_wrappers_of_0_5_9_lack_the_same(architecture: str) -> None:
    assert missing(check(SourceTree(unpacked("sglang", "0.5.9")), architecture, EAGLE3)) == NEEDED


@pytest.mark.parametrize("architecture", ["DeepseekV3ForCausalLM", "LlamaForCausalLM"])
def test_models_that_are_no_wrappers_lack_nothing(architecture: str) -> None:
    found = check(SourceTree(unpacked("sglang", "0.5.9")), architecture, EAGLE3)
    assert (found.missing, found.unchecked) == ((), ())


def test_the_delegation_patch_gives_what_is_used(stock: Path, repository: Path) -> None:
    methods = (repository / "files/patches/kimi-k25-eagle3-delegation/methods.py").read_text("utf-8")
    edit(stock, "models/kimi_k25.py", "\nEntryClass =", f"\n{methods}\n\nEntryClass =")
    found = check(SourceTree(stock), KIMI, EAGLE3)
    assert (found.missing, found.unchecked) == ((), ())


def test_a_method_without_a_default_does_not_answer_a_call_without_arguments(
    stock: Path, repository: Path
) -> None:
    methods = (repository / "files/patches/kimi-k25-eagle3-delegation/methods.py").read_text("utf-8")
    assert " = None" in methods
    edit(stock, "models/kimi_k25.py", "\nEntryClass =", f"\n{methods.replace(' = None', '')}\n\nEntryClass =")
    found = check(SourceTree(stock), KIMI, EAGLE3)
    assert missing(found) == ["set_eagle3_layers_to_capture"]
    assert "other arguments" in found.missing[0].problem


def test_a_release_that_has_the_methods_passes() -> None:
    found = check(SourceTree(unpacked("sglang", "0.5.10.post1")), KIMI, EAGLE3)
    assert (found.missing, found.unchecked) == ((), ())


def test_a_call_that_is_renamed_is_reported_by_its_new_name(stock: Path) -> None:
    """No name of a worker's call is written down in the scan."""
    edit(stock, "speculative/eagle_worker_v2.py", "get_embed_and_head()", "hand_over_embedding()")
    found = missing(check(SourceTree(stock), KIMI, EAGLE3))
    assert found == [*NEEDED[:1], "hand_over_embedding", *NEEDED[1:]]


def test_without_speculation_nothing_is_missing() -> None:
    assert check(SourceTree(unpacked("sglang", "0.5.9")), KIMI, {"tp_size": 8}).missing == ()


def test_a_setting_brings_its_names_into_play() -> None:
    tree = SourceTree(unpacked("sglang", "0.5.9"))
    assert missing(check(tree, KIMI, {"enable_pdmux": True})) == ["forward_split_prefill"]
    assert missing(check(tree, KIMI, {"enable_pdmux": False, "enable_eplb": "true"})) == [
        "routed_experts_weights_of_layer"
    ]


def test_a_class_that_the_release_does_not_have_is_named() -> None:
    with pytest.raises(OperatorError, match="has no model class Kimi99"):
        check(SourceTree(unpacked("sglang", "0.5.9")), "Kimi99", EAGLE3)


RUNNER = """
class ModelRunner:
    def start(self):
        self.model.forward()
{start}
"""
MODEL = """
from torch import nn
from {base_module} import Base
from sglang.srt.models.parts import Inner

class Net(Base):
    def __init__(self, config):
        self.inner = Inner(config)
{body}

EntryClass = [Net]
"""
PARTS = """
from torch import nn

class Parent(nn.Module):
    def inherited(self):
        return 1

class Inner(nn.Module):
    def get_table(self):
        return 3

    def set_table(self, table):
        self.table = table
"""


def scan(
    tmp_path: Path, start: str, body: str = "", base: str = "sglang.srt.models.parts", **settings: Any
) -> Contract:
    """Hold a small class against a model runner with these statements."""
    files = {
        "model_executor/model_runner.py": RUNNER.format(
            start=textwrap.indent(textwrap.dedent(start), " " * 8)
        ),
        "models/net.py": MODEL.format(base_module=base, body=textwrap.indent(textwrap.dedent(body), " " * 4)),
        "models/parts.py": PARTS.replace("Parent", "Base"),
    }
    for name, text in files.items():
        path = tmp_path / "sglang" / "srt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return check(SourceTree(tmp_path), "Net", settings)


@pytest.mark.parametrize(
    "code",
    [
        "self.model.warm()",
        "x = self.model.warm",
        "run = lambda: self.model.warm()",
        "if not hasattr(self.model, 'warm'):\n    raise ValueError('cold models are not served')\nself.model.warm()",
        "if unknown():\n    return\nself.model_runner.model.warm()",
    ],
)
def test_what_is_used_and_not_there_is_missing(tmp_path: Path, code: str) -> None:
    assert missing(scan(tmp_path, code)) == ["warm"]


@pytest.mark.parametrize(
    "code",
    [
        "if hasattr(self.model, 'warm'):\n    self.model.warm()",
        "warm = getattr(self.model, 'warm', None)",
        "self.model.named_parameters()",
        "self.model._modules",
        "self.model.inherited()",
        "self.model.warm = 1",
    ],
)
def test_what_is_asked_for_first_or_inherited_is_not_missing(tmp_path: Path, code: str) -> None:
    assert missing(scan(tmp_path, code)) == []


@pytest.mark.parametrize(
    "body",
    [
        "def warm(self):\n    pass",
        "@property\ndef warm(self):\n    return len",
        "warm = print",
        "def prepare(self):\n    self.warm, self.cold = print, print",
        "def prepare(self):\n    self.register_buffer('warm', None)",
    ],
)
def test_what_the_class_offers_in_any_way_is_not_missing(tmp_path: Path, body: str) -> None:
    found = scan(tmp_path, "self.model.warm()", body)
    assert (found.missing, found.unchecked) == ((), ())


@pytest.mark.parametrize(
    ("body", "base", "reason"),
    [
        (
            "def __getattr__(self, name):\n    return getattr(self.inner, name)",
            "sglang.srt.models.parts",
            "__getattr__",
        ),
        ("def prepare(self, n):\n    setattr(self, n, 1)", "sglang.srt.models.parts", "computed name"),
        ("", "transformers.elsewhere", "the base Base"),
    ],
)
def test_what_cannot_be_read_is_said_and_does_not_pass(
    tmp_path: Path, body: str, base: str, reason: str
) -> None:
    found = scan(tmp_path, "self.model.warm()", body, base)
    assert found.missing == ()
    assert len(found.unchecked) == 1
    assert reason in found.unchecked[0]
    assert found.unchecked[0].startswith("warm: ")


def test_a_base_in_another_package_of_the_release_is_read(tmp_path: Path) -> None:
    package = tmp_path / "elsewhere"
    package.mkdir()
    (package / "__init__.py").write_text("class Base:\n    def warm(self):\n        pass\n", "utf-8")
    found = scan(tmp_path, "self.model.warm()", base="elsewhere")
    assert (found.missing, found.unchecked) == ((), ())


def test_a_part_that_has_the_method_is_named_with_the_other_half_of_the_pair(tmp_path: Path) -> None:
    found = scan(tmp_path, "self.model.get_table()")
    assert found.missing[0].offered_by == ("inner (Inner)",)
    assert found.pairs == ("set_table",)


def test_code_that_uses_the_target_in_an_unknown_way_is_not_passed(tmp_path: Path) -> None:
    scan(tmp_path, "")
    runner = tmp_path / "sglang/srt/model_executor/model_runner.py"
    runner.write_text("def run(net):\n    net.forward()\n", "utf-8")
    with pytest.raises(OperatorError, match="in a way that is known"):
        check(SourceTree(tmp_path), "Net", {})
    with pytest.raises(OperatorError, match="speculative"):
        scan(tmp_path, "", speculative_algorithm="EAGLE3")


@pytest.mark.parametrize("text", [b"def broken(:\n", b"\0", b"\xff\xfe", b"(" * 5000])
def test_source_that_cannot_be_parsed_is_named(tmp_path: Path, text: bytes) -> None:
    scan(tmp_path, "")
    (tmp_path / "sglang/srt/model_executor/model_runner.py").write_bytes(text)
    with pytest.raises(OperatorError, match=r"Cannot parse .*model_runner\.py"):
        check(SourceTree(tmp_path), "Net", {})


def test_a_folder_without_sglang_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="No SGLang source to read the contract from"):
        SourceTree(tmp_path)


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=str(tmp_path / "python")):
        source_root(tmp_path / "python")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The interpreter of an environment into which the miniature is linked, as a source checkout is."""
    scan(tmp_path, "self.model.get_table()")
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    (packages / "checkout.pth").write_text(f"{tmp_path}\n", "utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Net"]}), "utf-8")
    return tmp_path / "venv" / "bin" / "python"


RunModule = Callable[..., dict[str, Any]]


def test_the_module_fails_with_all_that_is_missing(installed: Path, run_module: RunModule) -> None:
    given = {"python": str(installed), "model": str(installed.parents[2]), "arguments": {}}
    result = run_module("model_contract", given, check=True)
    assert result["failed"]
    assert "the class lacks get_table" in result["msg"]
    assert "apply the patches that this release needs" in result["msg"]


def test_the_module_reports_what_is_asked_and_warns_of_what_was_not_read(
    installed: Path, run_module: RunModule
) -> None:
    folder = installed.parents[2]
    given = {"python": str(installed), "model": str(folder), "arguments": {}}
    scan(folder, "self.model.get_table()", "get_table = print")
    result = run_module("model_contract", given)
    assert not result["changed"]
    assert result["contract"]["asked"] == ["forward", "get_table"]
    assert result["contract"]["place"].startswith("sglang/srt/models/net.py:")

    scan(folder, "self.model.get_table()", base="transformers.elsewhere")
    result = run_module("model_contract", given)
    assert result["contract"]["unchecked"]
    assert "was not checked in full" in str(result["warnings"])


@pytest.mark.parametrize("config", ["{}", '{"architectures": []}', '{"architectures": 3}', "[]", "{"])
def test_a_model_that_does_not_name_its_class_is_named(
    installed: Path, run_module: RunModule, config: str
) -> None:
    folder = installed.parents[2]
    (folder / "config.json").write_text(config, "utf-8")
    given = {"python": str(installed), "model": str(folder), "arguments": {}}
    assert str(folder / "config.json") in run_module("model_contract", given)["msg"]


def test_an_interpreter_without_sglang_is_named(tmp_path: Path, run_module: RunModule) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    given = {"python": str(python), "model": str(tmp_path), "arguments": {}}
    assert run_module("model_contract", given)["msg"].startswith(f"{python} has no sglang.")
