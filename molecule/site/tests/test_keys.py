"""No answer of the real SGLang tells a key, neither its own nor through the real smg."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from testinfra.host import Host

UNIT = "sglang@eagle3.service"
CLIENT, ADMIN = "planted-client-key-0123456789", "planted-admin-key-0123456789"
URL = "http://127.0.0.1:30000"
WAIT = f"curl --silent --fail --retry 300 --retry-delay 2 --retry-all-errors --max-time 30 {URL}/health"


@pytest.fixture(scope="module")
def config(host: Host) -> Iterator[str]:
    """Start the accepted deployment with planted keys in its configuration; afterwards all is as it was."""
    (line,) = [
        line
        for line in host.check_output(f"systemctl cat {UNIT}").splitlines()
        if ".yaml" in line and "--config" in line
    ]
    file = line.split()[-1]
    host.check_output(f"cp --archive {file} /root/before.yaml")
    host.check_output(f"sed -i '/^api-key:/d; /^admin-api-key:/d' {file}")
    host.check_output(f'printf \'api-key: "{CLIENT}"\nadmin-api-key: "{ADMIN}"\n\' >> {file}')
    try:
        host.check_output(f"systemctl restart {UNIT}")
        host.check_output(WAIT)
        yield file
    finally:
        host.check_output(f"cp --archive /root/before.yaml {file} && systemctl restart {UNIT}")
        host.check_output(WAIT)


def get(host: Host, path: str, key: str = CLIENT, base: str = URL) -> str:
    return str(
        host.check_output(f"curl --silent --max-time 60 -H 'Authorization: Bearer {key}' {base}{path}")
    )


@pytest.mark.parametrize(
    "path",
    ["/server_info", "/get_server_info", "/model_info", "/get_load", "/v1/loads", "/metrics", "/v1/models"],
)
@pytest.mark.usefixtures("config")
def test_no_answer_tells_a_key(host: Host, path: str) -> None:
    said = get(host, path)
    assert said and CLIENT not in said and ADMIN not in said


@pytest.mark.usefixtures("config")
def test_all_else_is_told_and_the_keys_still_hold(host: Host) -> None:
    said = json.loads(get(host, "/server_info"))
    assert said["api_key"] == said["admin_api_key"] == "********"
    assert said["internal_states"][0]["admin_api_key"] == "********"
    assert said["speculative_algorithm"] == "EAGLE3" and said["version"]
    status = "curl --silent --output /dev/null --write-out '%{http_code}' "
    assert host.check_output(f"{status}{URL}/server_info") == "401"
    assert host.check_output(f"{status}-H 'Authorization: Bearer {CLIENT}' {URL}/flush_cache") == "401"
    assert host.check_output(f"{status}-H 'Authorization: Bearer {ADMIN}' {URL}/flush_cache") == "200"


@pytest.mark.usefixtures("config")
def test_a_stream_still_streams(host: Host) -> None:
    body = json.dumps({"text": "Hello", "stream": True, "sampling_params": {"max_new_tokens": 32}})
    said = host.check_output(
        f"curl --silent --no-buffer --max-time 60 -H 'Authorization: Bearer {CLIENT}' "
        f"-H 'Content-Type: application/json' --data '{body}' {URL}/generate"
    )
    assert said.count("data: {") > 1 and said.rstrip().endswith("data: [DONE]")


@pytest.mark.usefixtures("config")
def test_an_idle_server_says_that_it_is_idle(host: Host) -> None:
    """Tokens that an idle server still held would keep a rollout waiting."""
    for rank in json.loads(get(host, "/get_load")):
        assert (rank["num_reqs"], rank["num_tokens"]) == (0, 0), rank


@pytest.mark.usefixtures("config")
def test_its_log_has_no_key(host: Host) -> None:
    assert host.run(f"journalctl --unit {UNIT} --no-pager | grep -e {CLIENT} -e {ADMIN}").rc == 1
