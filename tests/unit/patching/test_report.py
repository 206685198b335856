"""The states of patches, for people."""

from __future__ import annotations

from typing import Any

from blackwell.patching.report import drift, superfluous, table


def state(name: str, what: str, **more: Any) -> dict[str, Any]:
    plain = {
        "reason": "so it is",
        "package": "sglang",
        "version": "0.5.9",
        "path": f"/x/{name}.py",
        "edited": False,
    }
    return {"id": name, "state": what, **plain, **more}


def test_the_table_lines_up_and_shows_what_changed() -> None:
    states = [
        state("a", "applied", before="needed"),
        state("long-name", "not_applicable", version=None),
    ]
    assert table(states).split("\n") == [
        "patch      state              release       because",
        "a          needed -> applied  sglang 0.5.9  so it is",
        "long-name  not_applicable     no sglang     so it is",
    ]


def test_what_is_at_rest_did_not_drift() -> None:
    at_rest = ("applied", "upstream", "foreign", "not_applicable", "disabled")
    assert drift([state(name, name) for name in at_rest]) == []


def test_drift_names_patch_file_and_reason() -> None:
    states = [
        state("lost", "needed"),
        state("old", "stale", reason="our text is there, but in another version or place"),
        state("odd", "conflict", reason="is not valid Python"),
        state("one", "applied", path="/x/shared.py", edited=True),
        state("two", "applied", path="/x/shared.py", edited=True),
        state("unknown", "applied", edited=None),
    ]
    assert drift(states) == [
        "lost is needed: /x/lost.py lacks it",
        "old is stale: /x/old.py: our text is there, but in another version or place",
        "odd is conflict: /x/odd.py is not valid Python",
        "/x/shared.py was edited: it differs from the published file in more than our patches",
    ]


def test_what_upstream_has_is_superfluous() -> None:
    assert superfluous([state("a", "upstream"), state("b", "applied")]) == ["a: so it is"]
