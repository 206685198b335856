"""What counts as missing: the rules of the contract, each on a miniature SGLang written for it."""

from __future__ import annotations

import json
import os
import textwrap
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.blackwell.contract import record
from blackwell.contract.check import Contract, check, model_classes
from blackwell.contract.source import SourceTree, source_root
from blackwell.errors import OperatorError

SCHEDULER = """
from sglang.srt.model_executor.model_runner import ModelRunner

def run_scheduler_process(server_args, pipe):
    runner = ModelRunner(server_args)
    runner.start()
    while True:
        runner.serve(pipe.recv())
"""
SERVER_ARGS = """
import dataclasses

@dataclasses.dataclass
class ServerArgs:
    model_path: str
    fast: bool = False
    width: int = 1
"""
RUNNER = """
import inspect
from enum import IntEnum, auto
from sglang.srt.models.registry import load
from sglang.srt.helpers import warm_up

class Mode(IntEnum):
    PLAIN = auto()
    RARE = auto()

    def is_rare(self):
        return self == Mode.RARE

class ModelRunner:
    def __init__(self, server_args, is_draft_worker=False):
        self.server_args = server_args
        self.is_draft_worker = is_draft_worker
        self.model = load(server_args)

    def start(self):
        self.model.forward()
{start}

    def serve(self, batch):
        self.model.forward()
{serve}
"""
HELPERS = """
def warm_up(net):
    net.warm()
"""
MODEL = """
from torch import nn
from sglang.srt.models.parts import Base, Inner, make

class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.inner = Inner(config)
        self.width, self.depth = make(config)

    def forward(self):
        return self.inner.forward()
{body}

EntryClass = Net
"""
PARTS = """
from torch import nn

class Base(nn.Module):
    def inherited(self):
        return 1

class Inner(nn.Module):
    def forward(self):
        return 2

    def get_table(self):
        return 3

    def set_table(self, table):
        self.table = table

    def needs(self, one):
        return one

def make(config):
    return 1, 2
"""


def indented(code: str, columns: int) -> str:
    return textwrap.indent(textwrap.dedent(code), " " * columns)


def ask(tmp_path: Path, start: str = "", *, serve: str = "", body: str = "", **settings: Any) -> Contract:
    """Hold a model class with this body against a runner with these statements."""
    files = {
        "srt/managers/scheduler.py": SCHEDULER,
        "srt/server_args.py": SERVER_ARGS,
        "srt/helpers.py": HELPERS,
        "srt/model_executor/model_runner.py": RUNNER.format(
            start=textwrap.indent(textwrap.dedent(start), " " * 8),
            serve=textwrap.indent(textwrap.dedent(serve), " " * 8),
        ),
        "srt/models/net.py": MODEL.format(body=indented(body, 4)),
        "srt/models/parts.py": PARTS,
    }
    for name, text in files.items():
        path = tmp_path / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return check(SourceTree(tmp_path), "Net", {"model_path": "/m", **settings}, {})


def problems(contract: Contract) -> dict[str, str]:
    return {one.name: one.callers[0].problem for one in contract.missing}


USES = {
    "a call": "self.model.warm()",
    "a read": "x = self.model.warm",
    "an alias": "net = self.model\nnet.warm()",
    "a method that is kept": "warm = self.model.warm\nwarm()",
    "an argument of a function elsewhere": "warm_up(self.model)",
    "an argument by name": "warm_up(net=self.model)",
    "a nested function": "def inner():\n    self.model.warm()\ninner()",
    "a lambda": "run = lambda net: net.warm()\nrun(self.model)",
    "a table of functions": "{'a': warm_up}['a'](self.model)",
    "an element of a list": "for net in [self.model]:\n    net.warm()",
    "an attribute of another object": "class Box:\n    pass\nbox = Box()\nbox.net = self.model\nbox.net.warm()",
    "a conditional expression": "net = self.model if unknown() else None\nnet.warm()",
    "both branches of an unknown condition": "if unknown():\n    self.model.forward()\nelse:\n    self.model.warm()",
    "code after a way out": "if unknown():\n    return\nself.model.warm()",
    "an attempt for another error": "try:\n    self.model.warm()\nexcept KeyError:\n    pass",
    "an attempt that is reported and raised": "try:\n    self.model.warm()\nexcept Exception:\n    log()\n    raise",
    "a callback of code that is not read": "import thread\nthread.start(lambda: self.model.warm())",
}


@pytest.mark.parametrize("code", USES.values(), ids=USES.keys())
def test_what_is_used_and_not_there_is_missing(tmp_path: Path, code: str) -> None:
    assert problems(ask(tmp_path, code)) == {"warm": "Net has no attribute warm"}


PROVIDED = {
    "hasattr": "if hasattr(self.model, 'warm'):\n    self.model.warm()",
    "getattr with a default": "warm = getattr(self.model, 'warm', None)\nif warm is not None:\n    warm()",
    "callable": "if callable(getattr(self.model, 'warm', None)):\n    self.model.warm()",
    "an unknown condition beside it": "if unknown() and hasattr(self.model, 'warm'):\n    self.model.warm()",
    "except AttributeError": "try:\n    self.model.warm()\nexcept AttributeError:\n    pass",
    "except Exception": "try:\n    self.model.warm()\nexcept Exception:\n    log()",
    "a flag that is off": "if self.server_args.fast:\n    self.model.warm()",
    "a number that is not reached": "if self.server_args.width > 1:\n    self.model.warm()",
    "a draft worker only": "if self.is_draft_worker:\n    self.model.warm()",
    "nobody calls it": "def never():\n    self.model.warm()",
    "nn.Module": "self.model.named_parameters()\nself.model.eval()",
    "a private attribute": "self.model._modules",
}


@pytest.mark.parametrize("code", PROVIDED.values(), ids=PROVIDED.keys())
def test_what_is_provided_for_or_switched_off_is_not_missing(tmp_path: Path, code: str) -> None:
    assert problems(ask(tmp_path, code)) == {}


OFFERS = {
    "a method": "def warm(self):\n    pass",
    "a property": "@property\ndef warm(self):\n    return len",
    "an assignment in the class": "warm = print",
    "an attribute of the instance": "def prepare(self):\n    self.warm = print",
    "a pair that is unpacked": "def prepare(self):\n    self.warm, self.cold = print, print",
    "a registered buffer": "def prepare(self):\n    self.register_buffer('warm', None)",
    "attributes under computed names": "def prepare(self, names):\n    for n in names:\n        setattr(self, n, 1)",
    "delegation of all that is not there": "def __getattr__(self, name):\n    return getattr(self.other, name)",
}


@pytest.mark.parametrize("body", OFFERS.values(), ids=OFFERS.keys())
def test_what_the_class_offers_in_any_way_is_not_missing(tmp_path: Path, body: str) -> None:
    assert problems(ask(tmp_path, "self.model.warm()", body=body)) == {}


def test_delegation_of_all_helps_only_where_the_part_has_it(tmp_path: Path) -> None:
    body = "def __getattr__(self, name):\n    return getattr(self.inner, name)"
    found = problems(ask(tmp_path, "self.model.get_table()\nself.model.warm()", body=body))
    assert found == {"warm": "Net has no attribute warm"}


def test_base_classes_of_other_modules_count(tmp_path: Path) -> None:
    ask(tmp_path, "self.model.inherited()")
    path = tmp_path / "sglang/srt/models/net.py"
    path.write_text(path.read_text().replace("Net(nn.Module)", "Net(Base)"))
    assert check(SourceTree(tmp_path), "Net", {"model_path": "/m"}, {}).missing == ()


CALLS = {
    "warm()": "Net.warm needs ids, which the caller does not give (a default is missing)",
    "warm(1, 2)": "Net.warm takes 1 positional arguments, but the caller gives 2",
    "warm(1, layers=2)": "Net.warm has no parameter layers, which the caller gives",
}


@pytest.mark.parametrize(("call", "problem"), CALLS.items(), ids=CALLS.keys())
def test_a_method_has_to_take_the_arguments(tmp_path: Path, call: str, problem: str) -> None:
    found = problems(ask(tmp_path, f"self.model.{call}", body="def warm(self, ids):\n    pass"))
    assert found == {"warm": problem}


HANDED_OVER = {
    "return self.inner.warm()": "Net.warm hands over to inner.warm, but Inner has no attribute warm",
    "return self.inner.needs()": (
        "Net.warm hands over to inner.needs, but Inner.needs needs one, which the caller does not give (a default is"
        " missing)"
    ),
    "return self.iner.get_table()": "Net.warm reads iner, and Net has no attribute iner",
}


@pytest.mark.parametrize(("body", "problem"), HANDED_OVER.items(), ids=HANDED_OVER.keys())
def test_a_method_that_hands_over_is_as_good_as_what_it_hands_over_to(
    tmp_path: Path, body: str, problem: str
) -> None:
    found = problems(ask(tmp_path, "self.model.warm()", body=f"def warm(self):\n    {body}"))
    assert found == {"warm": problem}


def test_a_part_that_has_it_is_named_with_what_completes_the_pair(tmp_path: Path) -> None:
    found = ask(tmp_path, "self.model.get_table()")
    assert found.missing[0].offered_by == ("inner (Inner)",)
    assert found.pairs == ("set_table",)


def test_parts_of_the_model_are_held_to_the_same(tmp_path: Path) -> None:
    assert problems(ask(tmp_path, "self.model.inner.warm()")) == {"inner.warm": "Inner has no attribute warm"}


def test_a_refusal_of_sglang_itself_is_told_with_its_words(tmp_path: Path) -> None:
    start = "if not hasattr(self.model, 'warm'):\n    raise ValueError('cold models are not served')"
    assert problems(ask(tmp_path, start)) == {
        "warm": "Net has no attribute warm: ValueError('cold models are not served')"
    }


def test_a_parameter_that_sglang_asserts_is_asked_of_the_method(tmp_path: Path) -> None:
    start = """
    takes = "stage" in inspect.signature(self.model.forward).parameters
    if self.server_args.width > 1:
        assert takes, "no stages"
    """
    assert problems(ask(tmp_path, start)) == {}
    found = problems(ask(tmp_path, start, width=2))
    assert found == {"forward": "Net.forward has no parameter stage: 'no stages'"}


def test_a_mode_that_nothing_produces_brings_nothing_into_play(tmp_path: Path) -> None:
    serve = "if batch.mode.is_rare():\n    self.model.warm()"
    assert problems(ask(tmp_path, "self.mode = Mode.PLAIN", serve=serve)) == {}
    start = "self.mode = Mode.PLAIN\nif self.server_args.fast:\n    self.mode = Mode.RARE"
    assert problems(ask(tmp_path, start, serve=serve)) == {}
    assert set(problems(ask(tmp_path, start, serve=serve, fast=True))) == {"warm"}


def test_what_one_round_of_a_loop_leaves_the_next_one_finds(tmp_path: Path) -> None:
    serve = "if self.last is not None:\n    self.model.warm()\nself.last = batch.result()"
    assert set(problems(ask(tmp_path, "self.last = None", serve=serve))) == {"warm"}


def test_a_caller_is_given_with_place_and_conditions(tmp_path: Path) -> None:
    caller = ask(tmp_path, "if unknown():\n    self.model.warm(1)").missing[0].callers[0]
    line = (
        (tmp_path / "sglang/srt/model_executor/model_runner.py")
        .read_text()
        .splitlines()
        .index("            self.model.warm(1)")
    )
    assert caller.place == f"sglang/srt/model_executor/model_runner.py:{line + 1}"
    assert (caller.function, caller.use) == ("ModelRunner.start", "self.model.warm(1)")
    assert caller.conditions == ("unknown()",)


def test_the_message_says_it_all_at_once(tmp_path: Path) -> None:
    found = ask(tmp_path, "self.model.warm()\nself.model.get_table()")
    assert found.message("write a patch").splitlines() == [
        "SGLang with these settings would fail on Net (sglang/srt/models/net.py:5) after it has loaded the weights."
        " Found: the class lacks warm, get_table. Expected: all that the workers and the model runner use of the"
        " target. To mend it: write a patch.",
        "warm: Net has no attribute warm. Used by:",
        "  sglang/srt/model_executor/model_runner.py:22 ModelRunner.start: self.model.warm()",
        "get_table: Net has no attribute get_table; inner (Inner) has it. Used by:",
        "  sglang/srt/model_executor/model_runner.py:23 ModelRunner.start: self.model.get_table()",
        "With them goes set_table: offer it too, so that the pair is complete.",
    ]


def test_model_classes_are_those_that_modules_register(tmp_path: Path) -> None:
    ask(tmp_path)
    assert set(model_classes(SourceTree(tmp_path))) == {"Net"}


def test_a_release_that_cannot_be_followed_is_not_passed(tmp_path: Path) -> None:
    """A check that finds no use at all must not look like a model that has everything."""
    ask(tmp_path)
    path = tmp_path / "sglang/srt/managers/scheduler.py"
    path.write_text("def run_scheduler_process(server_args, pipe):\n    server_args.elsewhere()\n")
    with pytest.raises(OperatorError, match="Cannot follow SGLang from its scheduler to the model"):
        check(SourceTree(tmp_path), "Net", {"model_path": "/m"}, {})


def test_speculation_without_a_worker_is_not_passed(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="workers: none"):
        ask(tmp_path, speculative_algorithm="EAGLE3")


def test_source_that_cannot_be_parsed_is_named(tmp_path: Path) -> None:
    ask(tmp_path, "warm_up(self.model)")
    (tmp_path / "sglang/srt/helpers.py").write_text("def broken(:\n")
    with pytest.raises(OperatorError, match=r"Cannot parse .*helpers\.py\. Found: line 1"):
        check(SourceTree(tmp_path), "Net", {"model_path": "/m"}, {})


def test_a_folder_without_sglang_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="No SGLang source to read the contract from"):
        SourceTree(tmp_path)


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"Cannot ask .*/python where its sglang is"):
        source_root(tmp_path / "python")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The interpreter of an environment into which the miniature is linked, as a source checkout is."""
    ask(tmp_path, "self.model.get_table()")
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    (packages / "checkout.pth").write_text(f"{tmp_path}\n")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Net"]}))
    return tmp_path / "venv" / "bin" / "python"


RunModule = Callable[..., dict[str, Any]]


def test_the_module_fails_with_all_that_is_missing(installed: Path, run_module: RunModule) -> None:
    given = {"python": str(installed), "model": str(installed.parents[2]), "arguments": {"model_path": "/m"}}
    result = run_module("model_contract", given, check=True)
    assert result["failed"]
    assert "Found: the class lacks get_table." in result["msg"]
    assert "apply the patches that this release needs" in result["msg"]


def test_the_module_reports_what_is_asked(installed: Path, run_module: RunModule) -> None:
    path = installed.parents[2] / "sglang/srt/models/net.py"
    path.write_text(
        path.read_text().replace("    def forward", "    get_table = set_table = print\n\n    def forward")
    )
    given = {"python": str(installed), "model": str(installed.parents[2]), "arguments": {"model_path": "/m"}}
    result = run_module("model_contract", given)
    assert not result["changed"]
    assert result["contract"]["asked"] == ["forward", "get_table"]
    assert result["contract"]["place"] == "sglang/srt/models/net.py:5"


def test_what_held_is_not_followed_again_until_something_changes(
    installed: Path, run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "sglang/srt/models/net.py"
    whole = source.read_text().replace("    def forward", "    get_table = print\n\n    def forward")
    source.write_text(whole)
    note = tmp_path / "venv" / "contract.json"
    given = {
        "python": str(installed),
        "model": str(tmp_path),
        "arguments": {"model_path": "/m"},
        "record": str(note),
    }
    assert run_module("model_contract", given, check=True)["changed"]
    assert not note.exists()
    first = run_module("model_contract", given)
    assert first["changed"]
    again = {**first, "changed": False}
    assert run_module("model_contract", given) == again
    assert run_module("model_contract", given, check=True) == again

    for changed in ({"arguments": {"model_path": "/m", "width": 2}}, {"environment": {"X": "1"}}):
        assert run_module("model_contract", {**given, **changed})["changed"], changed
    assert run_module("model_contract", given)["changed"], "the note is about the last question"

    (tmp_path / "sglang/srt/another.py").write_text("")
    assert run_module("model_contract", given)["changed"]
    (tmp_path / "another_package").mkdir()
    assert run_module("model_contract", given)["changed"]
    monkeypatch.setattr(record, "_code", lambda: ["another check"])
    assert run_module("model_contract", given)["changed"]
    assert not run_module("model_contract", given)["changed"]

    # Same size, and the time of the old file: what an edit that is to go unnoticed would leave.
    kept = source.stat()
    source.write_text(whole.replace("get_table", "got_table"))
    os.utime(source, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert source.stat().st_size == kept.st_size
    assert "the class lacks get_table" in run_module("model_contract", given)["msg"]
    assert "the class lacks get_table" in run_module("model_contract", given)["msg"], (
        "only what held is noted"
    )
    note.write_text("{")
    source.write_text(whole)
    assert run_module("model_contract", given)["changed"]


def test_the_check_is_known_by_its_code() -> None:
    package = Path(record.__file__).parent
    assert [line.split()[0] for line in record._code()] == sorted(
        path.stem for path in package.glob("*.py") if path.stem != "__init__"
    )


def test_the_module_wants_a_model_that_names_its_class(installed: Path, run_module: RunModule) -> None:
    folder = installed.parents[2]
    (folder / "config.json").write_text("{}")
    given = {"python": str(installed), "model": str(folder), "arguments": {"model_path": "/m"}}
    message = run_module("model_contract", given)["msg"]
    assert message.startswith(
        f"{folder / 'config.json'} does not say which class the model needs. Found: KeyError"
    )


def test_an_interpreter_without_sglang_is_named(tmp_path: Path, run_module: RunModule) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    given = {"python": str(python), "model": str(tmp_path), "arguments": {}}
    assert run_module("model_contract", given)["msg"].startswith(f"{python} has no sglang.")
