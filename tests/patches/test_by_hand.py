"""Edits that people made by hand on a real 0.5.9: recognised, left alone, replaced on request, refused when broken."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.patching import definition, engine

from tests.patches import trees

RAW = {raw["id"]: raw for raw in definition.load(trees.PATCHES)}
KIMI, FLASHINFER, GUARD = (
    "kimi-k25-eagle3-delegation",
    "flashinfer-trtllm-comm-sm120",
    "flashinfer-allreduce-guard",
)

SETTER = """
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.language_model.set_eagle3_layers_to_capture(layer_ids)
"""
GETTER = """
    def get_embed_and_head(self):
        return self.language_model.get_embed_and_head()
"""
COUNTERPART = """
    def set_embed_and_head(self, embed, head):
        self.language_model.set_embed_and_head(embed, head)
"""
UPSTREAMS_WAY = """
    # EAGLE3 support
    def set_eagle3_layers_to_capture(
        self, layer_ids: Optional[List[int]] = None
    ) -> None:
        \"\"\"Set the layers to capture for EAGLE3 speculative decoding.\"\"\"
        if not hasattr(self.language_model, "set_eagle3_layers_to_capture"):
            raise AttributeError("no EAGLE3")
        self.language_model.set_eagle3_layers_to_capture(layer_ids)

    def get_embed_and_head(self) -> Tuple[torch.Tensor, torch.Tensor]:
        return self.language_model.get_embed_and_head()

    def set_embed_and_head(self, embed: torch.Tensor, head: torch.Tensor) -> None:
        self.language_model.set_embed_and_head(embed, head)
"""


def quick_first(cases: Mapping[str, Any]) -> list[Any]:
    """The cases as parameters; the first of them is the quick one."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            id=name,
            marks=[] if number else [pytest.mark.quick],
        )
        for number, (name, case) in enumerate(cases.items())
    ]


class Site:
    def __init__(self, folder: Path, *on: str, release: str = "0.5.9") -> None:
        self.python = trees.installation(folder, release)
        self.packages = trees.site_packages(folder)
        self.on = dict.fromkeys(on, True)

    def path(self, file: str) -> Path:
        return self.packages / file

    def edit(self, file: str, change: Callable[[str], str]) -> bytes:
        path = self.path(file)
        before = path.read_text()
        path.write_text(change(before))
        assert path.read_text() != before
        return path.read_bytes()

    def status(self, patch: str, *, adopt: bool = False) -> engine.Status:
        installation = engine.Installation(str(self.python), RAW.values(), self.on, adopt=adopt)
        return engine.status(installation, installation.select([patch]))[0]

    def apply(self, patch: str, *, adopt: bool = False) -> engine.Outcome:
        installation = engine.Installation(str(self.python), RAW.values(), self.on, adopt=adopt)
        return engine.apply(installation, installation.select([patch]))


MODEL = "sglang/srt/models/kimi_k25.py"


@pytest.fixture
def ours(tmp_path: Path) -> bytes:
    """The model file as our patch leaves it on a fresh host."""
    site = Site(tmp_path / "fresh")
    site.apply(KIMI)
    return site.path(MODEL).read_bytes()


def inside(methods: str) -> Callable[[str], str]:
    """What an editor does: the methods at the end of the class."""
    return lambda text: text.replace("\n\n\nEntryClass", f"\n{methods}\n\nEntryClass")


def sed(methods: str) -> Callable[[str], str]:
    """What ``sed -i '/^EntryClass/e cat methods'`` does: they land right before EntryClass."""
    return lambda text: text.replace("EntryClass", f"{methods.lstrip(chr(10))}EntryClass")


def managed(text: str) -> str:
    """What ``ansible.builtin.blockinfile`` with its own markers does."""
    block = f"# BEGIN ANSIBLE MANAGED BLOCK{SETTER}{GETTER}{COUNTERPART}# END ANSIBLE MANAGED BLOCK\n"
    return text.replace("EntryClass", f"{block}EntryClass")


def at_the_start(text: str) -> str:
    """Between two methods instead of at the end."""
    return text.replace(
        "    def get_image_feature",
        f"{(SETTER + GETTER + COUNTERPART).lstrip(chr(10))}\n    def get_image_feature",
    )


WORKING = {
    "at the end of the class": inside(SETTER + GETTER + COUNTERPART),
    "only what the worker calls": inside(SETTER + GETTER),
    "in another order": inside(COUNTERPART + GETTER + SETTER),
    "as upstream wrote it": inside(UPSTREAMS_WAY),
    "sed before EntryClass": sed(SETTER + GETTER + COUNTERPART),
    "blockinfile with its own markers": managed,
    "between other methods": at_the_start,
}


@pytest.mark.parametrize("change", quick_first(WORKING))
def test_working_methods_are_foreign_and_become_ours_on_request(
    change: Callable[[str], str], tmp_path: Path, ours: bytes
) -> None:
    site = Site(tmp_path / "host")
    edited = site.edit(MODEL, change)
    assert site.status(KIMI).state == engine.FOREIGN
    assert site.apply(KIMI).changes == []
    assert site.path(MODEL).read_bytes() == edited
    site.apply(KIMI, adopt=True)
    assert site.path(MODEL).read_bytes() == ours


def dedented(methods: str) -> str:
    return re.sub(r"^    ", "", methods, flags=re.MULTILINE)


BROKEN = {
    "after EntryClass": (lambda text: text + dedented(SETTER + GETTER), "outside the class"),
    "indentation lost": (sed(dedented(SETTER + GETTER)), "outside the class"),
    "only one of them": (inside(SETTER), "set_eagle3_layers_to_capture is defined already"),
    "something else": (
        inside(SETTER + GETTER.replace("language_model", "mm_projector")),
        "is defined already",
    ),
    "no default argument": (inside(SETTER.replace("=None", "") + GETTER), "is defined already"),
}


@pytest.mark.parametrize(("change", "reason"), quick_first(BROKEN))
def test_broken_methods_are_a_conflict_and_are_mended_on_request(
    change: Callable[[str], str], reason: str, tmp_path: Path, ours: bytes
) -> None:
    site = Site(tmp_path / "host")
    edited = site.edit(MODEL, change)
    status = site.status(KIMI)
    assert status.state == engine.CONFLICT
    assert reason in status.reason
    with pytest.raises(OperatorError, match=r"kimi_k25\.py"):
        site.apply(KIMI)
    assert site.path(MODEL).read_bytes() == edited
    site.apply(KIMI, adopt=True)
    assert site.path(MODEL).read_bytes() == ours


def test_methods_that_break_the_file_are_named_by_line(tmp_path: Path) -> None:
    """The heredoc of the first deployers: methods, still indented, after EntryClass."""
    site = Site(tmp_path / "host")
    edited = site.edit(MODEL, lambda text: text + SETTER + GETTER)
    for adopt in (False, True):
        status = site.status(KIMI, adopt=adopt)
        assert status.state == engine.CONFLICT
        assert re.search(r"is not valid Python [0-9.]+: unexpected indent.* \(line 778\)", status.reason)
        with pytest.raises(OperatorError):
            site.apply(KIMI, adopt=adopt)
    assert site.path(MODEL).read_bytes() == edited


def test_an_edit_with_more_to_it_stays(tmp_path: Path) -> None:
    site = Site(tmp_path / "host")
    change = inside(SETTER + GETTER)
    edited = site.edit(
        MODEL, lambda text: change(text).replace("class KimiK25For", "LIMIT = 7\n\n\nclass KimiK25For")
    )
    with pytest.raises(
        OperatorError, match=r"cannot be taken back to the published bytes: reinstall sglang 0\.5\.9"
    ):
        site.apply(KIMI, adopt=True)
    assert site.path(MODEL).read_bytes() == edited


def test_the_file_of_a_later_release_is_foreign(tmp_path: Path) -> None:
    """A fix is seen by its content, not by the number of the release."""
    later = Site(tmp_path / "later", release="0.5.10")
    site = Site(tmp_path / "host")
    site.path(MODEL).write_bytes(later.path(MODEL).read_bytes())
    assert site.status(KIMI).state == engine.FOREIGN
    assert site.apply(KIMI).changes == []


JIT = "flashinfer/jit/comm.py"


def test_the_extended_list_is_foreign_and_becomes_ours_on_request(tmp_path: Path) -> None:
    fresh = Site(tmp_path / "fresh", FLASHINFER)
    fresh.apply(FLASHINFER)
    site = Site(tmp_path / "host", FLASHINFER)
    site.edit(JIT, lambda text: text.replace("[9, 10]", "[9, 10, 12]"))
    assert site.status(FLASHINFER).state == engine.FOREIGN
    site.apply(FLASHINFER, adopt=True)
    assert site.path(JIT).read_bytes() == fresh.path(JIT).read_bytes()


def test_a_sed_that_hit_other_lists_too_is_not_taken_for_ours(tmp_path: Path) -> None:
    site = Site(tmp_path / "host", FLASHINFER, release="0.5.17")
    edited = site.edit(JIT, lambda text: text.replace("[9, 10]", "[9, 10, 12]"))
    assert site.status(FLASHINFER).state == engine.FOREIGN
    assert site.status(FLASHINFER).edited is True
    with pytest.raises(OperatorError, match="reinstall flashinfer-python"):
        site.apply(FLASHINFER, adopt=True)
    assert site.path(JIT).read_bytes() == edited


COMMUNICATOR = "sglang/srt/layers/communicator.py"
WIDENED = {
    "in line": lambda text: text.replace(
        "(_is_sm90_supported or _is_sm100_supported)",
        "(_is_sm90_supported or _is_sm100_supported or is_sm120_supported())",
    ),
    "with a flag": lambda text: text.replace(
        "_is_sm100_supported = _is_cuda and is_sm100_supported()\n",
        "_is_sm100_supported = _is_cuda and is_sm100_supported()\n"
        "_is_sm120_supported = _is_cuda and is_sm120_supported()\n",
    ).replace(
        "(_is_sm90_supported or _is_sm100_supported)",
        "(_is_sm90_supported or _is_sm100_supported or _is_sm120_supported)",
    ),
}


IMPORTED = {
    "in the list": lambda text: text.replace(
        "    is_sm100_supported,\n", "    is_sm100_supported,\n    is_sm120_supported,\n"
    ),
    "on its own": lambda text: text.replace(
        "_is_cuda = is_cuda()", "from sglang.srt.utils import is_sm120_supported\n_is_cuda = is_cuda()"
    ),
}


@pytest.mark.parametrize("imported", IMPORTED.values(), ids=IMPORTED.keys())
@pytest.mark.parametrize("widened", WIDENED.values(), ids=WIDENED.keys())
def test_a_widened_guard_is_foreign_and_becomes_ours_on_request(
    widened: Callable[[str], str], imported: Callable[[str], str], tmp_path: Path
) -> None:
    fresh = Site(tmp_path / "fresh", GUARD)
    fresh.apply(GUARD)
    site = Site(tmp_path / "host", GUARD)
    site.edit(COMMUNICATOR, lambda text: imported(widened(text)))
    assert site.status(GUARD).state == engine.FOREIGN
    site.apply(GUARD, adopt=True)
    assert site.path(COMMUNICATOR).read_bytes() == fresh.path(COMMUNICATOR).read_bytes()


@pytest.mark.parametrize("widened", WIDENED.values(), ids=WIDENED.keys())
def test_a_widened_guard_that_cannot_be_imported_is_a_conflict(
    widened: Callable[[str], str], tmp_path: Path
) -> None:
    site = Site(tmp_path / "host", GUARD)
    site.edit(COMMUNICATOR, widened)
    assert site.status(GUARD).state == engine.CONFLICT
