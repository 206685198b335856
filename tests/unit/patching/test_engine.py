"""The state of a patch on an installation, and the way to the wanted one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.patching import engine

from .conftest import GREETING, TWO_FILES, Site, install, patch, python

PATCHED = GREETING.replace(
    '        return self.format("Hello", name)\n',
    "        # BEGIN blackwell patch: greet-warmly\n"
    '#-        return self.format("Hello", name)\n'
    '        return self.format("Welcome", name)\n'
    "        # END blackwell patch: greet-warmly\n",
)


def apply(site: Site, *definitions: dict[str, Any], **options: Any) -> engine.Outcome:
    installation = site.installation(*definitions, **options)
    return engine.apply(installation, installation.select())


def revert(site: Site, *definitions: dict[str, Any], **options: Any) -> engine.Outcome:
    installation = site.installation(*definitions, **options)
    return engine.revert(installation, installation.select())


def test_needed_then_applied_then_unchanged_then_published(site: Site) -> None:
    assert site.state() == engine.NEEDED
    outcome = apply(site)
    assert [one.state for one in outcome.after] == [engine.APPLIED]
    assert outcome.changes == [(str(site.path()), GREETING, PATCHED)]
    assert site.path().read_text() == PATCHED
    assert apply(site).changes == []
    assert revert(site).changes == [(str(site.path()), PATCHED, GREETING)]
    assert revert(site).changes == []
    assert site.path().read_text() == GREETING


def test_nothing_is_written_in_check_mode(site: Site) -> None:
    installation = site.installation()
    outcome = engine.apply(installation, installation.select(), write=False)
    assert (outcome.before[0].state, outcome.after[0].state) == (engine.NEEDED, engine.APPLIED)
    assert outcome.changes == [(str(site.path()), GREETING, PATCHED)]
    assert site.path().read_text() == GREETING


def test_disabled(site: Site) -> None:
    assert site.state(enabled={"greet-warmly": False}) == engine.DISABLED
    assert apply(site, enabled={"greet-warmly": False}).changes == []


def test_switched_off_it_is_taken_out(site: Site) -> None:
    apply(site)
    assert site.state(enabled={"greet-warmly": False}) == engine.STALE
    assert apply(site, enabled={"greet-warmly": False}).after[0].state == engine.DISABLED
    assert site.path().read_text() == GREETING


def test_upstream(tmp_path: Path) -> None:
    warm = GREETING.replace('"Hello"', '"Welcome"')
    site = install(tmp_path / "later", "2.0", warm)
    assert site.state() == engine.UPSTREAM
    assert site.state(enabled={"greet-warmly": False}) == engine.UPSTREAM
    assert apply(site).changes == []


def test_upstream_in_an_earlier_release_counts_if_the_file_is_the_published_one(tmp_path: Path) -> None:
    site = install(tmp_path / "backport", "1.5", GREETING.replace('"Hello"', '"Welcome"'))
    assert site.state() == engine.UPSTREAM


def test_our_text_goes_when_upstream_has_it(tmp_path: Path) -> None:
    warm = GREETING.replace('"Hello"', '"Welcome"')
    site = install(tmp_path / "later", "2.0", warm)
    site.path().write_text(
        warm.replace(
            "class Greeter",
            '# BEGIN blackwell patch: greet-warmly\n"x"\n# END blackwell patch: greet-warmly\nclass Greeter',
        )
    )
    assert site.state() == engine.STALE
    assert apply(site).after[0].state == engine.UPSTREAM
    assert site.path().read_text() == warm


def test_a_later_release_without_what_upstream_should_have_is_a_conflict(tmp_path: Path) -> None:
    site = install(tmp_path / "later", "2.0")
    assert site.state() == engine.CONFLICT
    with pytest.raises(OperatorError, match=r"upstream should have it since >=2.0"):
        apply(site)


def test_excluded(site: Site) -> None:
    excluded = [{"releases": "<1.1", "reason": "It has no feelings."}]
    installation = site.installation(patch(excluded=excluded))
    status = installation.status(installation.select())[0]
    assert (status.state, status.reason) == (engine.NOT_APPLICABLE, "It has no feelings.")


def test_a_release_that_nobody_wrote_it_for_is_a_conflict_unless_it_is_off(tmp_path: Path) -> None:
    site = install(tmp_path / "early", "0.9")
    assert site.state() == engine.CONFLICT
    assert site.state(enabled={"greet-warmly": False}) == engine.DISABLED


def test_a_package_that_is_not_installed(site: Site) -> None:
    other = patch(id="other", package="absent", upstream=[])
    installation = site.installation(patch(), other)
    states = {one.patch.id: one.state for one in installation.status(installation.select())}
    assert states == {"greet-warmly": engine.NEEDED, "other": engine.NOT_APPLICABLE}


BY_HAND = {
    "because": "Somebody wrote it.",
    "when": [{"at": "Greeter.greet", "has": 'self.format("Welcome", name)'}],
    "restore": [{"at": "Greeter.greet", "find": '"Welcome"', "replace": '"Hello"'}],
}


def test_an_edit_by_hand_is_foreign_and_stays(site: Site) -> None:
    site.path().write_text(GREETING.replace('"Hello"', '"Welcome"'))
    assert site.state(patch(foreign=[BY_HAND])) == engine.FOREIGN
    assert apply(site, patch(foreign=[BY_HAND])).changes == []


def test_an_edit_by_hand_becomes_ours_on_request(site: Site) -> None:
    site.path().write_text(GREETING.replace('"Hello"', '"Welcome"'))
    outcome = apply(site, patch(foreign=[BY_HAND]), adopt=True)
    assert (outcome.before[0].state, outcome.after[0].state) == (engine.FOREIGN, engine.APPLIED)
    assert site.path().read_text() == PATCHED


def test_an_edit_by_hand_with_more_to_it_is_not_adopted(site: Site) -> None:
    edited = GREETING.replace('"Hello"', '"Welcome"').replace("Ada", "Grace")
    site.path().write_text(edited)
    with pytest.raises(OperatorError, match=r"greeting\.py was edited by hand .* reinstall demo 1\.0"):
        apply(site, patch(foreign=[BY_HAND]), adopt=True)
    assert site.path().read_text() == edited


def test_an_older_text_of_ours_ends_as_on_a_fresh_host(site: Site) -> None:
    older = patch()
    older["variants"][0]["edits"].append({"before": "FRIENDS = ...", "text": "# The old way.\nWARM = True\n"})
    older["variants"][0]["edits"][0]["replace"] = '"Very welcome"'
    older["postconditions"] = [{"has": "WARM = True"}]
    apply(site, older)
    assert site.path().read_text() != GREETING
    assert site.state() == engine.STALE
    apply(site)
    assert site.path().read_text() == PATCHED


def test_our_text_in_the_wrong_place_is_moved(site: Site) -> None:
    method = patch(
        variants=[{"releases": ">=1.0", "edits": [{"after": "FRIENDS = ...", "text": "WARM = True\n"}]}],
        postconditions=[{"has": "WARM = True"}],
    )
    apply(site, method)
    right = site.path().read_text()
    block = right[right.index("# BEGIN") : right.index("class Greeter")].rstrip("\n") + "\n"
    site.path().write_text(GREETING + block)
    assert site.state(method) == engine.STALE
    apply(site, method)
    assert site.path().read_text() == right


def test_an_edit_elsewhere_in_the_file_is_noticed_and_kept(site: Site) -> None:
    site.path().write_text(GREETING.replace("Ada", "Grace"))
    outcome = apply(site)
    assert outcome.after[0].edited is True
    assert "Grace" in site.path().read_text()
    revert(site)
    assert site.path().read_text() == GREETING.replace("Ada", "Grace")


def test_our_own_text_is_no_edit(site: Site) -> None:
    assert apply(site).after[0].edited is False


def test_without_hashes_nobody_knows_of_edits(site: Site) -> None:
    next(site.packages.glob("*.dist-info/RECORD")).unlink()
    assert apply(site).after[0].edited is None


def test_damaged_markers_are_a_conflict(site: Site) -> None:
    apply(site)
    damaged = PATCHED.replace("        # END blackwell patch: greet-warmly\n", "")
    site.path().write_text(damaged)
    for act in (apply, revert):
        with pytest.raises(OperatorError, match=r"greeting\.py has damaged markers"):
            act(site)
    assert site.path().read_text() == damaged


def test_a_patch_that_would_not_do_what_it_is_for_is_a_conflict(site: Site) -> None:
    wrong = patch(postconditions=[{"at": "Greeter.greet", "has": '"Bonjour"'}])
    with pytest.raises(OperatorError, match=r"would not do what it is for: .*Bonjour"):
        apply(site, wrong)
    assert site.path().read_text() == GREETING


def test_a_precondition_says_why(site: Site) -> None:
    guarded = patch(preconditions=[{"undefined": "friends", "why": "there are friends already"}])
    with pytest.raises(OperatorError, match=r"greeting\.py there are friends already"):
        apply(site, guarded)


def test_one_conflict_stops_all(site: Site) -> None:
    impossible = patch(id="impossible", postconditions=[{"defined": "nothing"}])
    with pytest.raises(OperatorError, match="impossible: conflict"):
        apply(site, patch(), impossible)
    assert site.path().read_text() == GREETING


def test_all_files_of_a_patch_and_what_it_needs(site: Site) -> None:
    outcome = apply(site, patch(), patch(**TWO_FILES))
    assert {Path(path).name for path, _, _ in outcome.changes} == {"greeting.py", "parting.py"}
    assert 'return "Farewell"' in site.path("parting.py").read_text()
    assert revert(site, patch(), patch(**TWO_FILES)).after[0].edited is False


def test_half_of_a_patch_is_completed(site: Site) -> None:
    definitions = (patch(), patch(**TWO_FILES))
    apply(site, *definitions)
    whole = site.path("parting.py").read_text()
    site.path("parting.py").write_text('def part():\n    return "Bye"\n')
    assert (
        site.installation(*definitions).status(site.installation(*definitions).select())[1].state == "stale"
    )
    apply(site, *definitions)
    assert site.path("parting.py").read_text() == whole


def test_a_patch_whose_need_cannot_be_met_is_not_made(site: Site) -> None:
    needy = patch(**{**TWO_FILES, "needs": ["other"]})
    other = patch(id="other", package="absent", upstream=[])
    with pytest.raises(
        OperatorError, match="it needs other, which is not_applicable: absent is not installed"
    ):
        apply(site, needy, other)
    assert site.path().read_text() == GREETING


def test_naming_a_patch_takes_its_needs_along(site: Site) -> None:
    installation = site.installation(patch(), patch(**TWO_FILES))
    outcome = engine.apply(installation, installation.select(["two-files"]))
    assert [one.patch.id for one in outcome.after] == ["greet-warmly", "two-files"]


def test_taking_out_a_need_takes_out_what_needs_it(site: Site) -> None:
    apply(site, patch(), patch(**TWO_FILES))
    installation = site.installation(patch(), patch(**TWO_FILES))
    engine.revert(installation, installation.select(["greet-warmly"]))
    assert site.path().read_text() == GREETING


def test_patches_of_one_file_live_side_by_side(site: Site) -> None:
    definitions = [
        patch(),
        patch(
            **TWO_FILES,
        ),
    ]
    definitions[1]["needs"] = []
    for first, second in (definitions, definitions[::-1]):
        apply(site, first)
        apply(site, first, second)
        both = site.path().read_text()
        installation = site.installation(first, second)
        engine.revert(installation, installation.select([first["id"]]))
        apply(site, first, second)
        assert site.path().read_text() == both
        revert(site, first, second)
        assert site.path().read_text() == GREETING


def test_verify_passes_at_rest_and_names_what_is_not(site: Site) -> None:
    installation = site.installation()
    with pytest.raises(OperatorError, match="greet-warmly: needed"):
        engine.verify(installation, installation.select())
    apply(site)
    installation = site.installation()
    assert engine.verify(installation, installation.select())[0].state == engine.APPLIED


def test_an_unknown_patch_is_refused(site: Site) -> None:
    with pytest.raises(OperatorError, match="There is no patch nonsense"):
        site.installation().select(["nonsense"])


def test_a_file_that_is_missing(site: Site) -> None:
    site.path().unlink()
    with pytest.raises(OperatorError, match=r"greeting\.py is not there"):
        apply(site)


def test_a_folder_in_place_of_the_file(site: Site) -> None:
    site.path().unlink()
    site.path().mkdir()
    with pytest.raises(OperatorError, match=r"greeting\.py cannot be read: Is a directory"):
        apply(site)


def test_a_link_within_the_package_is_followed(site: Site) -> None:
    site.path().rename(site.path("real.py"))
    site.path().symlink_to("real.py")
    apply(site)
    assert site.path().is_symlink()
    assert site.path("real.py").read_text() == PATCHED


def test_a_link_out_of_the_package_is_never_written_through(site: Site, tmp_path: Path) -> None:
    """As uv --link-mode=symlink makes them: the cache is shared with every other environment."""
    (tmp_path / "cache").mkdir()
    cached = site.path().rename(tmp_path / "cache" / "greeting.py")
    site.path().symlink_to(cached)
    with pytest.raises(OperatorError, match=r"greeting\.py is a link to .*cache/greeting\.py, which other"):
        apply(site)
    assert cached.read_text() == GREETING
    assert site.path().is_symlink()


TABBED = GREETING.replace("    ", "\t")
NOT_PLAIN: dict[str, tuple[bytes, str]] = {
    "Latin-1, declared": (
        ("# -*- coding: latin-1 -*-\n# caf\xe9\n" + GREETING).encode("latin-1"),
        r"is not UTF-8 text \(byte 0xe9 in line 2\)",
    ),
    "Latin-1, not declared": (
        (GREETING + "# caf\xe9\n").encode("latin-1"),
        r"is not UTF-8 text \(byte 0xe9 in line 16",
    ),
    "another encoding declared": (
        b"# -*- coding: iso-8859-1 -*-\n" + GREETING.encode(),
        "declares the encoding iso-8859-1, the published file is UTF-8",
    ),
    "another encoding declared in the second line": (
        b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\n" + GREETING.encode(),
        "declares the encoding cp1252",
    ),
    "an unknown encoding": (
        b"# coding: klingon\n" + GREETING.encode(),
        r"declares an encoding that Python does not know \(unknown encoding: klingon\)",
    ),
    "UTF-16": (GREETING.encode("utf-16"), "is UTF-16 text"),
    "UTF-32": (GREETING.encode("utf-32"), "is UTF-32 text"),
    "UTF-8 with a mark": (b"\xef\xbb\xbf" + GREETING.encode(), "begins with a byte order mark"),
    "a mark, and a declaration that contradicts it": (
        b"\xef\xbb\xbf# coding: latin-1\n" + GREETING.encode(),
        "begins with a byte order mark",
    ),
    "null bytes": (GREETING.encode() + b"\0", r"has null bytes \(the first in line 16\)"),
    "CRLF": (GREETING.replace("\n", "\r\n").encode(), r"has CRLF line ends \(the first in line 1\)"),
    "one CRLF": (
        GREETING.replace('Ada"]\n', 'Ada"]\r\n').encode(),
        r"has CRLF line ends \(the first in line 3\)",
    ),
    "old Macintosh": (GREETING.replace("\n", "\r").encode(), "has carriage returns"),
    "no line break at the end": (GREETING.rstrip("\n").encode(), "does not end with a line break"),
    "no Python": (
        GREETING.replace("def greet(", "def greet((").encode(),
        r"is not valid Python 3\.\d+: .* \(line",
    ),
    "tabs among spaces": (
        GREETING.replace("        return self.format", "\treturn self.format")
        .replace("    def format", "\tdef format")
        .encode(),
        r"is not valid Python 3\.\d+: .*(tabs|unindent|indent)",
    ),
    "nested too deeply": (
        ("a = " + "(" * 9000 + ")" * 9000 + "\n" + GREETING).encode(),
        "too many nested|nested too deeply",
    ),
    "empty": (b"", "is empty"),
}


@pytest.mark.parametrize(("data", "reason"), NOT_PLAIN.values(), ids=NOT_PLAIN.keys())
def test_a_file_that_is_not_as_published_is_a_conflict_with_the_true_reason(
    site: Site, data: bytes, reason: str
) -> None:
    site.path().write_bytes(data)
    with pytest.raises(
        OperatorError, match=rf"greet-warmly: conflict; .*greeting\.py .*({reason})"
    ) as raised:
        apply(site)
    if "Python 3" not in reason and "nested" not in reason:
        assert "not valid Python" not in str(raised.value)
    assert site.path().read_bytes() == data


def test_a_declared_utf_8_is_plain_text(site: Site) -> None:
    for declared in ("utf-8", "UTF8", "utf_8"):
        site.path().write_text(f"# -*- coding: {declared} -*-\n{GREETING}", encoding="utf-8")
        apply(site)
        revert(site)
        assert site.path().read_text(encoding="utf-8") == f"# -*- coding: {declared} -*-\n{GREETING}"


def test_lines_with_spaces_in_a_file_with_tabs_are_said_not_to_fit(site: Site) -> None:
    """The file itself is valid, and must not be called otherwise."""
    method = patch(
        variants=[
            {
                "releases": ">=1.0",
                "edits": [{"into": "Greeter", "text": "\n    def part(self):\n        return 0\n"}],
            }
        ],
        postconditions=[{"defined": "Greeter.part"}],
    )
    site.path().write_text(TABBED)
    with pytest.raises(
        OperatorError,
        match=r"greeting\.py does not take the patch: with it, it is not valid .* indented with tabs",
    ):
        apply(site, method)
    assert site.path().read_text() == TABBED


def test_a_file_with_tabs_takes_what_fits_and_gives_it_back(site: Site) -> None:
    site.path().write_text(TABBED)
    apply(site)
    assert '\t\treturn self.format("Welcome", name)\n' in site.path().read_text()
    revert(site)
    assert site.path().read_text() == TABBED


def test_text_beyond_ascii_counts_columns_as_python_does(site: Site) -> None:
    site.path().write_text(GREETING.replace('"Hello", name', '"Hello", "Zoë \U0001f600" + name'))
    wider = patch(postconditions=[{"at": "Greeter.greet", "has": '"Welcome"'}])
    before = site.path().read_bytes()
    assert '"Welcome", "Zoë \U0001f600" + name' in apply(site, wider).changes[0][2]
    revert(site, wider)
    assert site.path().read_bytes() == before


PYTHONS = [found for minor in range(9, 15) if (found := python(f"3.{minor}"))]


@pytest.mark.parametrize("target", PYTHONS, ids=lambda path: Path(path).name)
def test_the_environment_may_run_another_python(tmp_path: Path, target: str) -> None:
    site = install(tmp_path / "environment", python=target)
    assert site.state() == engine.NEEDED
    apply(site)
    assert site.path().read_text() == PATCHED
    revert(site)
    assert site.path().read_text() == GREETING


def test_a_whole_environment_can_be_moved(site: Site, tmp_path: Path) -> None:
    apply(site)
    shutil.copytree(site.folder, tmp_path / "copy", symlinks=True)
    assert Site(tmp_path / "copy").state() == engine.APPLIED


def test_methods_go_to_the_end_of_their_class(site: Site) -> None:
    """Whatever follows the class: here a function."""
    method = "\n    def part(self):\n        return None\n"
    into = patch(
        variants=[{"releases": ">=1.0", "edits": [{"into": "Greeter", "text": method}]}],
        postconditions=[{"without_arguments": "Greeter.part"}],
    )
    apply(site, into)
    assert "    # END blackwell patch: greet-warmly\n\n\ndef friends" in site.path().read_text()
    revert(site, into)
    assert site.path().read_text() == GREETING


def test_patches_of_one_place_rest_in_any_order(site: Site) -> None:
    """Each inserts before the same line; whichever came last stands nearest to it."""
    definitions = [
        patch(
            id=name,
            variants=[
                {"releases": ">=1.0", "edits": [{"before": "FRIENDS = ...", "text": f"{name.upper()} = 1\n"}]}
            ],
            postconditions=[{"has": f"{name.upper()} = 1"}],
        )
        for name in ("one", "two")
    ]
    for first in definitions:
        apply(site, first)
        apply(site, *definitions)
        assert apply(site, *definitions).changes == []
        installation = site.installation(*definitions)
        assert [one.state for one in installation.status(installation.select())] == [engine.APPLIED] * 2
        revert(site, *definitions)
        assert site.path().read_text() == GREETING
