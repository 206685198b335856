"""URLs of servers: what hosts, clients and gateways are given, and what no gateway may be given."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from blackwell.address import http_url, local_url, worker_url
from blackwell.errors import OperatorError
from blackwell.http_client import NoAnswerError, ask

from tests.unit.test_filters import filter_named

# Each with the form in which a gateway knows the host.
WORKERS = {
    "http://192.0.2.11:30000": "http://192.0.2.11:30000",
    "HTTP://GPU-1:30000": "http://gpu-1:30000",
    " http://gpu-1:30000 ": "http://gpu-1:30000",
    "http://gpu-1:30000/": "http://gpu-1:30000",
    "http://gpu_1.example:30000": "http://gpu_1.example:30000",
    "http://gpu-1.example.:30000": "http://gpu-1.example.:30000",
    "http://1-gpu.2nd:030000": "http://1-gpu.2nd:30000",
    "http://[2001:db8::11]:30000": "http://[2001:db8::11]:30000",
    "http://[2001:DB8:0:0::0011]:30000": "http://[2001:db8::11]:30000",
    "http://[::FFFF:192.0.2.11]:30000": "http://192.0.2.11:30000",
    "http://[::ffff:c000:20b]:30000": "http://192.0.2.11:30000",
    "http://bücher.example:30000": "http://xn--bcher-kva.example:30000",
    "https://gpu-1:443": "https://gpu-1:443",
}
NO_WORKERS = [
    "",
    "http://",
    "gpu-1:30000",
    "192.0.2.11:30000",
    "//gpu-1:30000",
    "http:/gpu-1:30000",
    "http:gpu-1:30000",
    "grpc://gpu-1:30000",
    "file:///etc/passwd",
    "http://gpu-1",
    "http://gpu-1:",
    "http://gpu-1:0",
    "http://gpu-1:99999",
    "http://gpu-1:-1",
    "http://gpu-1:http",
    "http://gpu-1:30000:30000",
    "http://2001:db8::11:30000",
    "http://::1:30000",
    "http://[2001:db8::11:30000",
    "http://[2001:db8::11]30000",
    "http://[2001:db8::11]",
    "http://[gpu-1]:30000",
    "http://[192.0.2.11]:30000",
    "http://[fe80::1%eth0]:30000",
    "http://[fe80::1%25eth0]:30000",
    "http://0.0.0.0:30000",
    "http://[::]:30000",
    "http://010.0.0.1:30000",
    "http://1.2.3:30000",
    "http://256.1.1.1:30000",
    "http://0x7f.1:30000",
    "http://7:30000",
    "http://gpu 1:30000",
    "http://gpu-1\n:30000",
    "http://gpu-1\x00:30000",
    "http://gpu..1x:30000",
    "http://.gpu:30000",
    "http://-gpu:30000",
    "http://gpu-:30000",
    "http://gpu{1}:30000",
    "http://gpu%31:30000",
    f"http://{'g' * 64}:30000",
    f"http://{'.'.join(['g' * 60] * 5)}:30000",
    "http://\ud800:30000",
    "http://user:password@gpu-1:30000",
    "http://[::1]x:30000",
    "http://x[::1]:30000",
    "http://[::1]]:30000",
    "http://@gpu-1:30000",
    "http://gpu-1:30000/v1",
    "http://gpu-1:30000?x=1",
    "http://gpu-1:30000#x",
    "{{ ansible_host }}",
    "http://None:30000 http://gpu-2:30000",
]


@pytest.mark.parametrize(("given", "written"), WORKERS.items())
def test_a_host_has_one_url_however_it_is_given(given: str, written: str) -> None:
    assert worker_url(given) == written
    assert worker_url(written) == written


@pytest.mark.parametrize("given", NO_WORKERS)
def test_what_is_no_url_of_a_host_is_refused(given: str) -> None:
    with pytest.raises(OperatorError) as said:
        worker_url(given)
    assert repr(given) in said.value.problem and "rollout_worker_url" in said.value.remedy


def test_a_percent_sign_is_a_zone_in_brackets_alone() -> None:
    for given, found in (("http://a%20b:1", "no name"), ("http://[fe80::1%25eth0]:1", "takes a zone")):
        with pytest.raises(OperatorError, match=found):
            worker_url(given)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("gpu-1", "http://gpu-1:30000"),
        ("192.0.2.11", "http://192.0.2.11:30000"),
        ("2001:db8::11", "http://[2001:db8::11]:30000"),
        ("[2001:db8::11]", "http://[2001:db8::11]:30000"),
        ("::ffff:192.0.2.11", "http://[::ffff:192.0.2.11]:30000"),
        ("fe80::1%eth0", "http://[fe80::1%25eth0]:30000"),
        ("[fe80::1%25eth0]", "http://[fe80::1%25eth0]:30000"),
    ],
)
def test_an_ipv6_address_gets_its_brackets_and_nothing_else_does(host: str, url: str) -> None:
    assert http_url(host, 30000) == local_url(host, 30000) == url
    assert filter_named("http_url")(host, 30000) == filter_named("local_url")(host, "30000") == url


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("[::]", "http://[::1]:1"),
        ("0:0:0:0:0:0:0:0", "http://[::1]:1"),
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("::1", "http://[::1]:1"),
    ],
)
def test_a_wildcard_is_reached_at_the_loopback_of_its_family(host: str, url: str) -> None:
    assert local_url(host, 1) == filter_named("local_url")(host, 1) == url


class _Server(HTTPServer):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("host", ["::", "::1", "[::1]"])
def test_a_server_with_an_ipv6_address_is_reached_at_its_url(host: str) -> None:
    try:
        server = _Server(("::1", 0), _Handler)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert ask(local_url(host, server.server_port), timeout=5).status == 200
        server.shutdown()


def test_the_resolver_is_given_the_zone_as_the_machine_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        raise OSError("no such zone")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    # %ee is also how a URL would write a byte.
    with pytest.raises(NoAnswerError):
        ask(local_url("fe80::1%ee0", 1), timeout=1)
    assert asked == ["fe80::1%ee0"]
