"""What the patches do: real classes of SGLang 0.5.9 and FlashInfer 0.6.3, published and patched, without a GPU."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from blackwell.patching import definition, engine

from tests.patches import environment, trees

SCRIPTS = Path(__file__).with_name("behaviour")
EXAMPLES = trees.ROOT / "docs" / "examples" / "patches"


class Interpreters:
    """An environment with the published sources and one with every patch."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.interpreter = folder, python
        self.base = environment.base(python)
        self.python = {
            name: environment.copy(self.base, folder / name, python) for name in ("stock", "patched")
        }
        definitions = definition.load(trees.PATCHES) + definition.load(EXAMPLES)
        switches = {raw["id"]: True for raw in definitions}
        installation = engine.Installation(str(self.python["patched"]), definitions, switches)
        engine.apply(installation, installation.select())

    def patched_with(self, name: str) -> str:
        """Sources with one patch of the project alone; what :meth:`run` calls them."""
        if name not in self.python:
            self.python[name] = environment.copy(self.base, self.folder / name, self.interpreter)
            definitions = definition.load(trees.PATCHES)
            installation = engine.Installation(str(self.python[name]), definitions, {name: True})
            engine.apply(installation, installation.select([name]))
        return name

    def run(self, script: str, sources: str, *arguments: str) -> Any:
        """Run one script on ``stock`` or ``patched`` sources, or those of :meth:`patched_with`; what it printed."""
        toolkit = next(self.base.glob("lib/python3*/site-packages/nvidia/cu13"))
        variables = {
            "PATH": f"{self.base / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "PYTHONPATH": f"{SCRIPTS}:{self.base / 'more'}" if script == "flashinfer_flags" else str(SCRIPTS),
            "SGLANG_USE_CPU_ENGINE": "1",
            "CUDA_HOME": str(toolkit),
            "FLASHINFER_CUDA_ARCH_LIST": "12.0a",
            "FLASHINFER_WORKSPACE_BASE": str(self.folder / sources),
            "MAX_JOBS": "1",
        }
        command = [str(self.python[sources]), str(SCRIPTS / f"{script}.py"), *arguments]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def interpreters(tmp_path_factory: pytest.TempPathFactory) -> Interpreters:
    python = environment.python_of_the_lock()
    if python is None:
        pytest.skip("the lock is for Python 3.11, which this machine does not have")
    return Interpreters(tmp_path_factory.mktemp("behaviour"), python)


@pytest.mark.parametrize(
    "model", [("kimi_k25", "KimiK25ForConditionalGeneration"), ("kimi_vl", "KimiVLForConditionalGeneration")]
)
def test_the_wrapper_passes_the_calls_of_eagle_on(interpreters: Interpreters, model: tuple[str, str]) -> None:
    stock = interpreters.run("delegation", "stock", *model)
    assert "has no attribute 'set_eagle3_layers_to_capture'" in stock["error"]

    patched = interpreters.run("delegation", "patched", *model)
    assert patched["returned"] == ["embed", "head"]
    assert patched["calls"] == [
        ["set_eagle3_layers_to_capture", None],
        ["set_eagle3_layers_to_capture", [1, 29, 57]],
        ["get_embed_and_head"],
        ["set_embed_and_head", "embed", "head"],
    ]


def test_the_guard_admits_sm120_and_nothing_else_changes(interpreters: Interpreters) -> None:
    stock, patched = (interpreters.run("guard", sources) for sources in ("stock", "patched"))
    changed = {case for case in stock if stock[case] != patched[case]}
    assert changed == {"12.0 flag=True batch=1", "12.0 flag=True batch=2048"}
    assert all(patched[case] for case in changed)
    assert not any(admitted for case, admitted in patched.items() if case.startswith("8.9"))


def test_symmetric_memory_warns_instead_of_raising(interpreters: Interpreters) -> None:
    stock, patched = (interpreters.run("symmetric_memory", sources) for sources in ("stock", "patched"))
    assert stock.pop("12.0") == {"KeyError": "12"}
    twelve = patched.pop("12.0")
    assert twelve["disabled"] is True
    assert "Device capability 12 not supported" in twelve["warning"]
    assert patched == stock


def test_scales_stay_as_they_are_on_sm120_only(interpreters: Interpreters) -> None:
    stock, patched = (interpreters.run("ue8m0", sources) for sources in ("stock", "patched"))
    assert stock["12.0"]["ue8m0"] is True
    assert patched["12.0"]["ue8m0"] is False
    for other in ("10.0", "9.0", "8.9"):
        assert patched[other] == stock[other]
    assert patched["10.0"]["ue8m0"] is True


def test_graphs_are_captured_with_the_layers_of_the_drafter(interpreters: Interpreters) -> None:
    assert interpreters.run("capture_layers", "stock")["calls"] == [[], []]
    assert interpreters.run("capture_layers", "patched")["calls"] == [[[5, 11, 17]], [None]]


PASS = ("one", "two", "four, a batch of eight", "all accepted")


def test_the_pass_over_draft_tokens_is_replayed_as_it_runs_without_graphs(interpreters: Interpreters) -> None:
    """Attention after the real layout; in the published code every request is off."""
    stock, patched = (interpreters.run("draft_extend", sources) for sources in ("stock", "patched"))
    assert set(stock) == set(patched) == set(PASS)
    for case in PASS:
        assert min(stock[case]) > 0.05, (case, stock[case])
        assert patched[case] == pytest.approx([0] * len(stock[case]), abs=1e-6), (case, patched[case])


@pytest.mark.parametrize(
    ("alone", "right", "wrong"),
    [
        # Alone, each mends its own half: tokens of other requests, and tokens that are seen too early or twice.
        ("eagle3-draft-extend-v2", (), PASS),
        ("eagle3-draft-extend-prefix", ("all accepted",), ("two", "four, a batch of eight")),
    ],
)
def test_each_patch_of_the_pass_mends_its_own_half(
    interpreters: Interpreters, alone: str, right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    found = interpreters.run("draft_extend", interpreters.patched_with(alone))
    for case in right:
        assert found[case] == pytest.approx([0] * len(found[case]), abs=1e-6), (case, found[case])
    for case in wrong:
        assert max(found[case]) > 0.05


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def test_aux_states_are_whole_sums_when_the_allreduce_is_deferred(interpreters: Interpreters) -> None:
    """Two ranks. The reference is the same model with nothing deferred."""
    stock, patched = (
        interpreters.run("aux_states", sources, free_port()) for sources in ("stock", "patched")
    )
    for rank in stock:
        assert min(rank["off"]) > 0.1
        assert min(rank["ranks_differ"]) > 0.1
    for rank, before in zip(patched, stock, strict=True):
        assert rank["off"] == pytest.approx([0, 0, 0], abs=1e-6)
        assert rank["ranks_differ"] == pytest.approx([0, 0, 0], abs=1e-6)
        assert rank["reference"] == pytest.approx(before["reference"], rel=1e-6)
        assert rank["output"] == pytest.approx(0, abs=1e-6)


def test_flashinfer_has_flags_for_sm120(interpreters: Interpreters) -> None:
    assert "for major versions [9, 10]" in interpreters.run("flashinfer_flags", "stock")["error"]
    assert interpreters.run("flashinfer_flags", "patched")["flags"] == [
        "-gencode=arch=compute_120a,code=sm_120a"
    ]


def test_flashinfer_compiles_for_sm120(interpreters: Interpreters) -> None:
    """One of the three sources, with the real compiler: about a minute."""
    compiled = interpreters.run("flashinfer_flags", "patched", "--compile")["object"]
    assert b"sm_120a" in Path(compiled).read_bytes()
