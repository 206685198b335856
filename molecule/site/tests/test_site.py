"""After site.yml the real SGLang serves, speculates, is what the machine starts, and was measured."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from testinfra.host import Host

URL = "http://127.0.0.1:30000"
SENTENCE = (
    " Hello from a tiny model that really runs inside this server - it has five layers, eight experts and"
    " one vision tower; please do not ask me about anything else today!"
)


def post(host: Host, path: str, body: dict[str, Any]) -> dict[str, Any]:
    curl = "curl --silent --fail --max-time 60 --header 'Content-Type: application/json' --data %s %s"
    answer = host.check_output(curl, json.dumps(body), URL + path)
    result: dict[str, Any] = json.loads(answer)
    return result


def test_it_answers_with_the_whole_sentence(host: Host) -> None:
    answer = post(
        host,
        "/v1/chat/completions",
        {"model": "kimi-tiny", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0},
    )
    choice = answer["choices"][0]
    assert choice["message"]["content"] == SENTENCE
    assert choice["finish_reason"] == "stop"


def test_the_drafter_is_believed(host: Host) -> None:
    # The gauge follows at the end of a log interval of 40 steps, which one sentence does not fill.
    for _ in range(4):
        answer = post(
            host, "/generate", {"text": "Hello", "sampling_params": {"temperature": 0, "max_new_tokens": 64}}
        )
        assert answer["meta_info"]["spec_accept_length"] > 3
    metrics = host.check_output(f"curl --silent --fail {URL}/metrics")
    gauge = next(line for line in metrics.splitlines() if line.startswith("sglang:spec_accept_length{"))
    assert float(gauge.rsplit(" ", 1)[1]) > 3


def test_only_the_wanted_profile_runs_and_starts_at_boot(host: Host) -> None:
    assert host.service("sglang@eagle3.service").is_running
    assert host.service("sglang@eagle3.service").is_enabled
    assert not host.service("sglang@baseline.service").is_running
    # The unit is there only while that profile is measured.
    assert host.run("systemctl is-enabled sglang@baseline.service").stdout.strip() != "enabled"


def test_the_link_names_the_release_that_runs(host: Host) -> None:
    accepted = host.check_output("readlink --canonicalize /opt/sglang/current")
    pid = host.check_output("systemctl show --property=MainPID --value sglang@eagle3.service")
    running = host.check_output(f"tr '\\0' ' ' < /proc/{pid}/cmdline")
    assert running.startswith(f"{accepted}/venv/bin/python")


@pytest.mark.parametrize("profile", ["eagle3", "baseline"])
def test_both_profiles_were_measured(host: Host, profile: str) -> None:
    results = host.check_output(f"find /var/lib/sglang/throughput -name '*.json' -path '*{profile}*'").split()
    assert results
    found = [json.loads(host.file(path).content_string) for path in results]
    measured = [result for result in found if result.get("profile") == profile and result.get("points")]
    assert measured
    speculated = [point["runs"][0]["accept_length"] for point in measured[0]["points"]]
    assert all(length > 3 for length in speculated) if profile == "eagle3" else set(speculated) == {1.0}


def test_nothing_but_root_reads_the_environment(host: Host) -> None:
    files = host.check_output("find /etc/sglang -name '*.env'").split()
    assert files
    for path in files:
        assert host.file(path).mode == 0o600
        assert host.file(path).user == "root"


def test_a_server_whose_scheduler_is_killed_is_started_again(host: Host) -> None:
    starts = int(host.check_output("systemctl show --property=NRestarts --value sglang@eagle3.service"))
    assert host.run("pkill --signal=KILL --full '^sglang::scheduler'").rc == 0
    # The health check is a real generation; the unit pauses before it starts a server again.
    waiting = f"curl --silent --fail --retry 60 --retry-delay 2 --retry-all-errors --max-time 30 {URL}/health"
    assert host.run(f"sleep 15; {waiting}").rc == 0
    after = int(host.check_output("systemctl show --property=NRestarts --value sglang@eagle3.service"))
    assert after == starts + 1


def test_no_cache_is_turned_off_when_it_starts(host: Host) -> None:
    """torch says so once, and compiles its kernels anew at every start from then on."""
    journal = host.check_output("journalctl --unit sglang@eagle3.service --output cat --no-pager")
    complaints = [
        line
        for line in journal.splitlines()
        if re.search(r"cache", line, re.IGNORECASE)
        and re.search(
            r"could not|cannot|disable|not writable|permission denied|no such file", line, re.IGNORECASE
        )
    ]
    # Switches of SGLang's own are in its list of arguments.
    assert [line for line in complaints if "server_args" not in line] == []


def test_the_service_can_write_to_the_folder_of_torch_s_kernels(host: Host) -> None:
    shown = host.check_output("systemctl show --property MainPID --value sglang@eagle3.service")
    environment = host.file(f"/proc/{shown}/environ").content.split(b"\0")
    cache = next(
        entry.partition(b"=")[2].decode() for entry in environment if entry.startswith(b"XDG_CACHE_HOME=")
    )
    folder = host.file(f"{cache}/torch/kernels")
    assert folder.is_directory
    assert (folder.user, folder.mode) == ("sglang", 0o750)
