"""Text of patches that are in no folder of patches any more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from blackwell.errors import OperatorError
from blackwell.patching import engine, report, unknown

from .conftest import GREETING, PARTING, TWO_FILES, Site, patch

LEFT = patch(
    id="left-the-folder",
    variants=[{"releases": ">=1.0", "edits": [{"after": "FRIENDS = ...", "text": "WARM = True\n"}]}],
    postconditions=[{"has": "WARM = True"}],
    upstream=[],
)


def patched(site: Site) -> str:
    """A host that has the patch of today and one that left the folder since; the text that it then has."""
    installation = site.installation(patch(), LEFT)
    engine.apply(installation, installation.select())
    return site.path().read_text()


def found(site: Site) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.id, one.files) for one in unknown.find(site.installation())]


def test_text_of_a_patch_that_left_the_folder_is_found_and_no_other(site: Site) -> None:
    assert found(site) == []
    patched(site)
    assert found(site) == [("left-the-folder", ("greeting.py",))]


def test_it_is_taken_out_to_the_byte_and_the_patches_of_today_stay(site: Site) -> None:
    patched(site)
    outcome = unknown.remove(site.installation())
    assert [path for path, _, _ in outcome.changes] == [str(site.path())]
    assert site.state() == engine.APPLIED
    assert found(site) == []
    assert unknown.remove(site.installation()).changes == []
    installation = site.installation()
    engine.revert(installation, installation.select())
    assert site.path().read_text() == GREETING


def test_it_is_found_wherever_it_stands_in_the_package(site: Site) -> None:
    """Also in files that no patch of today names, and in several."""
    two = patch(**{**TWO_FILES, "id": "two-that-left", "needs": []})
    installation = site.installation(two)
    engine.apply(installation, installation.select())
    deep = site.path("layers/attention/back_end.py")
    deep.parent.mkdir(parents=True)
    deep.write_text("# BEGIN blackwell patch: older\n#-a = 1\na = 2\n# END blackwell patch: older\n")
    assert found(site) == [
        ("older", ("layers/attention/back_end.py",)),
        ("two-that-left", ("greeting.py", "parting.py")),
    ]
    unknown.remove(site.installation())
    assert (site.path().read_text(), site.path("parting.py").read_text()) == (GREETING, PARTING)
    assert deep.read_text() == "a = 1\n"


def test_nothing_is_written_in_check_mode(site: Site) -> None:
    before = patched(site)
    outcome = unknown.remove(site.installation(), write=False)
    assert len(outcome.changes) == 1
    assert site.path().read_text() == before


def test_a_report_names_it_and_how_it_is_taken_out(site: Site) -> None:
    patched(site)
    states = [one.describe() for one in unknown.find(site.installation())]
    assert (states[0]["id"], states[0]["state"], states[0]["path"]) == (
        "left-the-folder",
        "unknown",
        str(site.path()),
    )
    assert "patch_remove_unknown=true" in report.table(states)
    assert [
        line
        for line in report.drift(states)
        if "left-the-folder is unknown" in line and "greeting.py" in line
    ]


def test_verify_fails_and_its_remedy_mends(site: Site) -> None:
    patched(site)
    with pytest.raises(OperatorError, match=r"left-the-folder in .*greeting\.py.*patch_remove_unknown=true"):
        unknown.verify(site.installation())
    unknown.remove(site.installation())
    assert unknown.verify(site.installation()) == []


DAMAGED = {
    "no end": "# BEGIN blackwell patch: older\na = 1\n",
    "no begin": "a = 1\n# END blackwell patch: older\n",
    "CRLF": "# BEGIN blackwell patch: older\r\na = 1\r\n# END blackwell patch: older\r\n",
    "a mark": "\ufeff\n# BEGIN blackwell patch: older\na = 1\n# END blackwell patch: older\n",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_text_is_found_and_left_alone_with_the_reason(site: Site, text: str) -> None:
    before = patched(site)
    site.path("parting.py").write_bytes(text.encode())
    assert ("older", ("parting.py",)) in found(site)
    with pytest.raises(
        OperatorError, match=r"older, which no folder .* parting|parting\.py .*reinstall demo 1\.0"
    ) as raised:
        unknown.remove(site.installation())
    assert "parting.py" in raised.value.found
    assert site.path("parting.py").read_bytes() == text.encode()
    assert site.path().read_text() == before


def test_a_link_out_of_the_package_is_not_written_through(site: Site, tmp_path: Path) -> None:
    cached = tmp_path / "cached.py"
    cached.write_text("# BEGIN blackwell patch: older\na = 1\n# END blackwell patch: older\n")
    site.path("linked.py").symlink_to(cached)
    site.path("nowhere.py").symlink_to(tmp_path / "nothing")
    site.path("folder.py").symlink_to(tmp_path)
    before = cached.read_text()
    with pytest.raises(OperatorError, match="is a link to"):
        unknown.remove(site.installation())
    assert cached.read_text() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_cannot_be_read_is_named(site: Site) -> None:
    site.path("secret.py").touch(mode=0)
    with pytest.raises(OperatorError, match=r"secret\.py cannot be searched"):
        unknown.find(site.installation())


def test_what_only_speaks_of_a_marker_is_none(site: Site) -> None:
    site.path("prose.py").write_text(
        'TEXT = "# BEGIN blackwell patch: older"\n# a blackwell patch: older\n# BEGIN blackwell patch: Not an id\n'
    )
    assert found(site) == []
