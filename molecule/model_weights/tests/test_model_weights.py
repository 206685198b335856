"""Models on a host: recorded, fetched by the service user, readable by it, and refused when they are spoilt."""

from __future__ import annotations

import json

from testinfra.host import Host

STATE = "/var/lib/sglang/models"


def manifest(host: Host, model: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(host.check_output(f"cat {STATE}/{model}-????????.json"))
    return found


def test_the_mounted_model_is_recorded_with_its_digests(host: Host) -> None:
    recorded = manifest(host, "target")
    assert recorded["path"] == "/srv/models/target"
    files = recorded["files"]
    assert isinstance(files, dict)
    for name, entry in files.items():
        assert entry["sha256"] == host.file(f"/srv/models/target/{name}").sha256sum


def test_the_fetched_model_is_the_published_one(host: Host) -> None:
    for name in ("config.json", "model.safetensors"):
        fetched = host.file(f"/opt/models/draft/{name}")
        assert fetched.sha256sum == host.file(f"/srv/models/draft/{name}").sha256sum
        assert fetched.user == "sglang"
    assert manifest(host, "draft")["source"] == {
        "repository": "someone/drafter",
        "revision": "0123456789abcdef0123456789abcdef01234567",
    }


def test_the_unit_that_fetched_is_gone(host: Host) -> None:
    assert host.check_output("systemctl list-units --all --plain --no-legend 'sglang-fetch-*'") == ""
    assert host.check_output("find /run -maxdepth 1 -name 'sglang-fetch-*'") == ""


def test_nothing_was_written_beside_a_mounted_model(host: Host) -> None:
    assert host.run("touch /srv/models/target/probe").rc != 0
