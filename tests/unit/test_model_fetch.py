"""Fetching a model: the real huggingface_hub against a stand-in for the hub, in a stand-in for systemd."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.hub import Fetch, read_listing

from tests.hub import COMMIT, REPOSITORY, Hub, serving

Run = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="fetches as another user than the one who asks")

WEIGHTS = bytes(range(256)) * 40
# A safetensors file without tensors.
EMPTY = (2).to_bytes(8, "little") + b"{}"
TOKEN = "hf_planted-token-0123456789"

SYSTEMD_RUN = """#!/bin/sh
while [ "$1" != -- ]; do
    echo "$1" >> {0}/options
    case "$1" in --property=EnvironmentFile=*) set -a; . "${{1#*EnvironmentFile=}}"; set +a ;; esac
    shift
done
shift
rm -f {0}/status
touch {0}/started
{{ "$@" > {0}/journal 2>&1; echo $? > {0}/status; }} > {0}/shell 2>&1 &
"""
SYSTEMCTL = """#!/bin/sh
if [ "$1" = reset-failed ]; then rm -f {0}/status {0}/started; exit; fi
[ -e {0}/started ] || {{ echo inactive; exit; }}
[ -e {0}/status ] || {{ echo active; exit; }}
[ "$(cat {0}/status)" = 0 ] && echo inactive || echo failed
"""


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what was asked of systemd: `options`, `journal`."""
    state = tmp_path / "systemd"
    (state / "bin").mkdir(parents=True)
    programs = {
        "systemd-run": SYSTEMD_RUN,
        "systemctl": SYSTEMCTL,
        "journalctl": "#!/bin/sh\ncat {0}/journal\n",
    }
    for name, text in programs.items():
        (state / "bin" / name).write_text(text.format(state))
        (state / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{state}/bin:{os.environ['PATH']}")
    return state


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub({"config.json": b"{}", ".gitattributes": b"*", "model.safetensors": WEIGHTS})) as hub:
        yield hub


@pytest.fixture
def fetch(repository: Path, tmp_path: Path, systemd: Path, hub: Hub, run_module: Run) -> Run:
    def run(check: bool = False, **given: Any) -> dict[str, Any]:
        arguments = {
            "repository": REPOSITORY,
            "revision": COMMIT,
            "path": str(tmp_path / "models" / "draft"),
            "manifest": str(tmp_path / "state" / "draft.json"),
            "python": sys.executable,
            "program": (repository / "roles" / "model_weights" / "files" / "fetch.py").read_text(),
            "user": getpass.getuser(),
            "environment": {"HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": 1},
            "seconds": 60,
        }
        return run_module("model_fetch", {**arguments, **given}, check=check)

    return run


def test_a_model_is_fetched_at_its_commit(fetch: Run, tmp_path: Path, hub: Hub) -> None:
    result = fetch()
    assert (result["changed"], result["done"]) == (True, True)
    assert (result["have"], result["total"]) == (len(WEIGHTS) + 2, len(WEIGHTS) + 2)
    assert (tmp_path / "models" / "draft" / "model.safetensors").read_bytes() == WEIGHTS
    assert set(result["published"]) == {"config.json", "model.safetensors"}
    assert len(result["published"]["model.safetensors"]["sha256"]) == 64
    assert result["published"]["config.json"]["sha256"] == ""


def test_a_recorded_model_needs_no_network(fetch: Run, tmp_path: Path, hub: Hub) -> None:
    source = {"repository": REPOSITORY, "revision": COMMIT}
    (tmp_path / "state").mkdir()
    record = {"path": str(tmp_path / "models" / "draft"), "source": source, "files": {}}
    (tmp_path / "state" / "draft.json").write_text(json.dumps(record))
    (tmp_path / "models" / "draft").mkdir(parents=True)
    result = fetch()
    assert (result["changed"], result["done"], hub.asked) == (False, True, [])
    (tmp_path / "models" / "draft").rmdir()
    assert fetch()["changed"]


def test_a_file_that_a_recorded_model_lost_is_fetched_again(fetch: Run, tmp_path: Path, hub: Hub) -> None:
    assert fetch()["done"]
    source = {"repository": REPOSITORY, "revision": COMMIT}
    files = {"model.safetensors": {"size": len(WEIGHTS), "changed": 1, "sha256": ""}}
    record = {"path": str(tmp_path / "models" / "draft"), "source": source, "files": files}
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "draft.json").write_text(json.dumps(record))
    assert not fetch()["changed"]
    (tmp_path / "models" / "draft" / "model.safetensors").unlink()
    assert fetch()["changed"]
    assert (tmp_path / "models" / "draft" / "model.safetensors").read_bytes() == WEIGHTS


def test_an_interrupted_download_goes_on_where_it_was(fetch: Run, tmp_path: Path, hub: Hub) -> None:
    # huggingface_hub keeps pieces of 10 MiB.
    piece = 10 << 20
    content = bytes(range(256)) * (12 << 12)
    hub.files = {**hub.files, "model.safetensors": content}
    hub.break_after = piece + 1000
    if fetch().get("failed"):
        assert fetch()["done"]
    assert (tmp_path / "models" / "draft" / "model.safetensors").read_bytes() == content
    assert f"GET /{REPOSITORY}/resolve/{COMMIT}/model.safetensors bytes={piece}-" in " ".join(hub.asked)


def test_one_that_runs_is_waited_for(fetch: Run, systemd: Path) -> None:
    first = fetch(seconds=0)
    second = fetch(published=first["published"])
    assert second["done"]
    assert (systemd / "options").read_text().count("--unit=") == 1


def test_check_mode_tells_and_fetches_nothing(fetch: Run, tmp_path: Path) -> None:
    result = fetch(check=True)
    assert (result["changed"], result["total"]) == (True, len(WEIGHTS) + 2)
    assert not (tmp_path / "models").exists()
    # On an empty host there is nothing to ask with.
    assert fetch(check=True, python="/no/python")["total"] == 0


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:12], COMMIT.upper()])
def test_what_can_move_is_refused(fetch: Run, revision: str, hub: Hub) -> None:
    assert fetch(revision=revision)["msg"] == (
        f"someone/drafter is to be fetched without a commit, so hosts could get different models. Found: '{revision}'. "
        "Expected: the 40 hex digits of a commit, not a branch or a tag. To mend it: set "
        "model_weights_target_revision or model_weights_draft_revision to what this prints: git ls-remote "
        "https://huggingface.co/someone/drafter HEAD."
    )
    assert hub.asked == []


def test_a_name_that_is_none_is_refused(fetch: Run) -> None:
    assert fetch(repository="https://huggingface.co/someone/drafter")["msg"] == (
        "This is no repository of models. Found: 'https://huggingface.co/someone/drafter'. Expected: owner/name. "
        "To mend it: correct model_weights_target_repository or model_weights_draft_repository."
    )


def test_a_commit_that_does_not_exist_is_told(fetch: Run) -> None:
    message = fetch(revision="f" * 40)["msg"]
    assert message.startswith("The list of files of someone/drafter at ffffffffffff cannot be had. Found: ")
    assert "Revision Not Found" in message


def test_too_little_space_is_told_before(
    fetch: Run, tmp_path: Path, systemd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert fetch()["msg"] == (
        f"There is not enough space for someone/drafter. Found: 0.0 GiB free in {tmp_path}. Expected: 0.0 GiB. "
        "To mend it: free some space, or set eagle3_server_model_path or eagle3_server_draft_model_path to a larger "
        "file system."
    )
    assert not (systemd / "options").exists()


def test_a_token_reaches_the_hub_and_nobody_else(fetch: Run, systemd: Path, hub: Hub, tmp_path: Path) -> None:
    hub.token = TOKEN
    refused = fetch()
    assert refused["msg"].startswith(
        "The list of files of someone/drafter at 0123456789ab cannot be had. Found: "
    )
    result = fetch(token=TOKEN)
    assert result["done"]
    seen = [json.dumps(result), (systemd / "options").read_text(), (systemd / "journal").read_text()]
    seen += [path.read_text(errors="replace") for path in (tmp_path / "models").rglob("*") if path.is_file()]
    assert not [text for text in seen if TOKEN in text]
    assert not list(Path("/run").glob("sglang-fetch-*"))


def test_a_failure_shows_what_was_said(fetch: Run, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "models" / "draft" / "model.safetensors").mkdir(parents=True)
    message = fetch()["msg"]
    assert message.startswith("Fetching someone/drafter failed. Found: ")
    assert "model.safetensors" in message
    assert message.endswith("To mend it: run the playbook again: it goes on where it stopped.")


def test_a_mirror_that_tells_no_sizes_tells_lengths_in_its_headers(fetch: Run, hub: Hub) -> None:
    hub.sizes = False
    result = fetch()
    assert (result["done"], result["total"]) == (True, len(WEIGHTS) + 2)
    assert result["published"] == {
        "config.json": {"size": 2, "sha256": ""},
        "model.safetensors": {"size": len(WEIGHTS), "sha256": ""},
    }
    assert not result.get("warnings")


def test_a_size_that_nobody_tells_is_compared_with_nothing(
    fetch: Run, hub: Hub, run_module: Run, tmp_path: Path
) -> None:
    hub.sizes = hub.lengths = False
    hub.files = {**hub.files, "config.json": b'{"eagle_config": {}}', "model.safetensors": EMPTY}
    result = fetch()
    assert (result["done"], result["total"]) == (True, None)
    assert {entry["size"] for entry in result["published"].values()} == {None}
    files = run_module(
        "model_files",
        {
            "path": str(tmp_path / "models" / "draft"),
            "manifest": str(tmp_path / "state" / "draft.json"),
            "published": result["published"],
        },
    )
    assert files["changed"]


def test_room_that_was_not_checked_is_told(hub: Hub, fetch: Run) -> None:
    hub.sizes = hub.lengths = False
    result = fetch(check=True)
    # Once as a line of the run, once as a warning of the module.
    said = next(str(one) for one in result["warnings"] if "room" in str(one))
    assert "Whether there is room for someone/drafter in " in said
    assert (
        "is not checked: the hub does not tell the size of 2 of its 2 files (config.json, model.safetensors)"
        in said
    )


def test_too_little_space_for_what_is_known_is_told_though_not_all_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Fetch(REPOSITORY, COMMIT, tmp_path, "python", "", "root", {})
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    published: dict[str, dict[str, Any]] = {
        "a": {"size": 2 << 30, "sha256": ""},
        "b": {"size": None, "sha256": ""},
    }
    with pytest.raises(OperatorError) as caught:
        wanted.check_space(published)
    assert caught.value.expected == "more than 2.0 GiB"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "is not JSON"),
        ("<html>", "is not JSON"),
        ("[]", "holds no JSON object"),
        ("{}", "has no files at this commit"),
        ('{".gitattributes": {"size": 1}}', "has no files at this commit"),
        ('{"config.json": 3}', "means nothing"),
        ('{"../config.json": {}}', "means nothing"),
        ('{"/etc/passwd": {}}', "means nothing"),
    ],
)
def test_an_answer_that_is_no_list_of_files_is_refused(answer: str, problem: str) -> None:
    with pytest.raises(OperatorError, match=problem):
        read_listing(answer, REPOSITORY)


@pytest.mark.parametrize("size", [None, "623", -1, True, 1.5, [], {}])
def test_a_size_that_is_none_is_unknown(size: object) -> None:
    answer = "a notice of the interpreter\n" + json.dumps({"config.json": {"size": size, "sha256": size}})
    assert read_listing(answer, REPOSITORY) == {"config.json": {"size": None, "sha256": ""}}


def listing(hub: Hub, monkeypatch: pytest.MonkeyPatch, **entries: dict[str, Any]) -> None:
    """Let the hub say something else of its files; names are written with an underscore for a dot."""
    told = [{"rfilename": name.replace("_", "."), **entry} for name, entry in entries.items()]
    monkeypatch.setattr(Hub, "listing", lambda self: {"id": REPOSITORY, "sha": COMMIT, "siblings": told})


@pytest.mark.parametrize("size", ["10240", "unknown", -1, 1.5, True, [], {}, None])
def test_a_size_that_is_none_is_asked_of_the_headers(
    fetch: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch, size: Any
) -> None:
    listing(hub, monkeypatch, config_json={"size": 2}, model_safetensors={"size": size})
    result = fetch()
    assert (result["done"], result["total"]) == (True, len(WEIGHTS) + 2)


@pytest.mark.parametrize("lfs", [{"oid": "a"}, {"sha256": "", "size": 1}, "pointer", [1], {"size": None}])
def test_details_that_the_library_does_not_understand_are_done_without(
    fetch: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch, lfs: Any
) -> None:
    listing(hub, monkeypatch, config_json={"size": 2}, model_safetensors={"size": 10240, "lfs": lfs})
    result = fetch()
    assert (result["done"], result["total"]) == (True, len(WEIGHTS) + 2)


def test_a_size_that_the_hub_lists_wrongly_is_named(
    fetch: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing(hub, monkeypatch, config_json={"size": 623}, model_safetensors={"size": len(WEIGHTS)})
    message = fetch()["msg"]
    assert message.startswith(
        "The hub lists other sizes of someone/drafter than it sends. Found: config.json of 2 bytes."
    )
    assert "Expected: 623 bytes." in message
