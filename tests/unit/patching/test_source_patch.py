"""The module, as Ansible runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .conftest import GREETING, Site, patch

RunModule = Callable[..., dict[str, Any]]


def arguments(site: Site, **more: Any) -> dict[str, Any]:
    return {"python": site.python, "patches": [patch()], **more}


def test_status_reports_and_changes_nothing(run_module: RunModule, site: Site) -> None:
    result = run_module("source_patch", arguments(site))
    assert result["changed"] is False
    (one,) = result["patches"]
    assert (one["id"], one["state"], one["enabled"], one["edited"]) == ("greet-warmly", "needed", True, False)
    assert (one["version"], one["path"]) == ("1.0", str(site.path()))
    assert site.path().read_text() == GREETING


def test_check_mode_shows_the_difference_and_changes_nothing(run_module: RunModule, site: Site) -> None:
    result = run_module("source_patch", arguments(site, state="applied"), check=True, diff=True)
    assert result["changed"] is True
    (difference,) = result["diff"]
    assert difference["before"] == GREETING
    assert '"Welcome"' in difference["after"]
    assert difference["before_header"] == str(site.path())
    assert site.path().read_text() == GREETING


def test_apply_again_and_revert(run_module: RunModule, site: Site) -> None:
    first = run_module("source_patch", arguments(site, state="applied"))
    assert (first["changed"], first["changed_files"]) == (True, [str(site.path())])
    assert (first["patches"][0]["before"], first["patches"][0]["state"]) == ("needed", "applied")
    again = run_module("source_patch", arguments(site, state="applied"), diff=True)
    assert (again["changed"], again["diff"]) == (False, [])
    assert run_module("source_patch", arguments(site, state="verified"))["changed"] is False
    assert run_module("source_patch", arguments(site, state="reverted"))["changed"] is True
    assert site.path().read_text() == GREETING


def test_the_hash_in_a_status_is_the_hash_after_applying(run_module: RunModule, site: Site) -> None:
    from blackwell.patching.transaction import sha256

    promised = run_module("source_patch", arguments(site))["patches"][0]["sha256"]
    run_module("source_patch", arguments(site, state="applied"))
    assert sha256(site.path().read_bytes()) == promised


def test_only_the_selected_kind(run_module: RunModule, site: Site) -> None:
    assert run_module("source_patch", arguments(site, kind="model"))["patches"] == []


def test_an_error_is_one_readable_message(run_module: RunModule, site: Site) -> None:
    site.path().write_text(GREETING.replace('"Hello"', '"Good day"'))
    result = run_module("source_patch", arguments(site, state="applied"))
    assert result["failed"] is True
    assert f'greet-warmly: conflict; {site.path()} `"Hello"` does not occur in Greeter.greet' in result["msg"]
    result = run_module("source_patch", arguments(site, state="verified"))
    assert "are not as they should be" in result["msg"]
