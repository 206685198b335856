"""The two programs that the unit runs: prepare.py and serve.py, as processes of their own."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import logging
import mmap
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from blackwell.address import local_url

from tests.unit.vanishing import losing

KEY, ADMIN_KEY = "planted-key-0123456789", "planted-admin-0123456789"

# Logs its arguments as SGLang does, from its own process and from a spawned one, and prints what it was given.
LAUNCH_SERVER = """
import logging, multiprocessing, sys

def child():
    print("child is in", __name__, flush=True)

if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(name)s %(message)s", stream=sys.stdout, force=True)
    config = open(sys.argv[2]).read()
    logging.getLogger("sglang.srt.entrypoints.engine").info(f"server_args={config!r}")
    logging.getLogger("other").warning("keys: %s and %s", "planted-key-0123456789", "planted-admin-0123456789")
    logging.getLogger("other").warning("half: %d%%", 50)
    print("path has", "a" if any(part.endswith("/deployment") for part in sys.path) else "no", "deployment", flush=True)
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""

HEALTH_SERVER = """
import http.server, json, sys

answers = iter([503, 503, 200, 200, 200])

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(next(answers, 503))
        self.end_headers()
    def log_message(self, *_):
        pass

config = dict(line.split(": ") for line in open(sys.argv[2]))
http.server.HTTPServer(("127.0.0.1", int(config["port"])), Health).serve_forever()
"""

# Answers for ever, and has a process that calls itself what SGLang's scheduler does; the kernel keeps 15 letters.
WORKED_SERVER = HEALTH_SERVER.replace("iter([503, 503, 200, 200, 200])", "iter([200] * 1000)").replace(
    "config =",
    """import subprocess
naming = "open('/proc/self/comm', 'w').write('sglang::scheduler'[:15]); import time; time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", naming]).pid, flush=True)
config =""",
)


@pytest.fixture
def programs(repository: Path) -> Path:
    return repository / "roles" / "eagle3_server" / "files"


def load(program: Path) -> ModuleType:
    """One of them as a module."""
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def served(programs: Path, tmp_path: Path) -> str:
    """What serve.py prints when it runs the stand-in above in a cache with a stale and a held lock."""
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(LAUNCH_SERVER)
    deployment = tmp_path / "deployment"
    deployment.mkdir()
    (deployment / "serve.py").write_bytes((programs / "serve.py").read_bytes())
    config = deployment / "eagle3.yaml"
    config.write_text(f'# x\nport: 1\napi-key: "{KEY}"\nadmin-api-key: "{ADMIN_KEY}"\n')
    cache = tmp_path / "cache"
    (cache / "cached_ops").mkdir(parents=True)
    (cache / "cached_ops" / "lock").touch()
    (cache / "stale.lock").touch()
    (cache / "kernel.so").touch()
    with (cache / "held.lock").open("w"):
        done = subprocess.run(
            [sys.executable, str(deployment / "serve.py"), "0", "--config", str(config)],
            cwd=cache,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in cache.rglob("*") if file.is_file()) == ["held.lock", "kernel.so"]
    return done.stdout + done.stderr


def test_no_log_line_has_a_key(served: str) -> None:
    assert "server_args=" in served
    assert KEY not in served
    assert ADMIN_KEY not in served
    assert "other keys: ******** and ********" in served


def test_other_log_lines_stay_as_they_are(served: str) -> None:
    assert "other half: 50%" in served


def test_spawned_processes_import_sglang_as_they_always_do(served: str) -> None:
    assert "child is in __mp_main__" in served


def test_the_deployment_is_no_place_for_modules(served: str) -> None:
    assert "path has no deployment" in served


def test_stale_locks_are_removed_by_name(served: str) -> None:
    assert "Removing the stale lock file" in served


def test_a_process_that_ends_while_locks_are_looked_for_is_passed_over(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = load(programs / "serve.py")
    (tmp_path / "stale.lock").touch()
    other = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(os, "scandir", losing(Path(f"/proc/{other.pid}/fd")))
    try:
        with (tmp_path / "held.lock").open("w"):
            serve.remove_stale_locks(tmp_path)
            assert [file.name for file in tmp_path.iterdir()] == ["held.lock"]
    finally:
        other.kill()
        other.wait()


class Served:
    """serve.py with a stand-in for SGLang, and what systemd hears of it."""

    def __init__(self, program: Path, folder: Path, server: str, **environment: str) -> None:
        package = folder / "site" / "sglang"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "launch_server.py").write_text(server)
        config = folder / "eagle3.yaml"
        config.write_text(f'host: "0.0.0.0"\nport: {free_port()}\n')
        self.systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.systemd.bind(str(folder / "notify"))
        self.systemd.settimeout(30)
        self.process = subprocess.Popen(
            [sys.executable, str(program), "1", "--config", str(config)],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(folder / "site"),
                "NOTIFY_SOCKET": str(folder / "notify"),
                **environment,
            },
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.systemd.close()

    def heard(self, messages: int) -> list[str]:
        return [self.systemd.recv(100).decode() for _ in range(messages)]


def test_the_watchdog_hears_of_every_answer_and_of_nothing_else(programs: Path, tmp_path: Path) -> None:
    # Stands for SGLang: /health fails at first, answers three times, then fails for good.
    proxy = {"http_proxy": "http://127.0.0.1:9"}
    with Served(programs / "serve.py", tmp_path, HEALTH_SERVER, **proxy) as served:
        heard = served.heard(4)
        served.systemd.settimeout(1)
        with pytest.raises(TimeoutError):
            served.systemd.recv(100)
    assert heard == ["WATCHDOG_USEC=1000000", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_server_that_lost_a_process_ends(programs: Path, tmp_path: Path) -> None:
    with Served(programs / "serve.py", tmp_path, WORKED_SERVER) as served:
        assert served.process.stdout is not None
        worker = int(served.process.stdout.readline())
        heard = served.heard(5)  # it has answered for a while, and runs on
        os.kill(worker, signal.SIGKILL)
        said = served.process.communicate(timeout=30)[0]
    assert heard == ["WATCHDOG_USEC=1000000"] + ["WATCHDOG=1"] * 4
    assert served.process.returncode == -signal.SIGKILL
    assert f"Process {worker} of the server is gone" in said


@pytest.fixture
def prepare(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load(programs / "prepare.py")
    monkeypatch.setattr(module, "RECORDS", tmp_path / "run")
    monkeypatch.setattr(module, "UNIFIED_MEMORY", tmp_path / "nvidia-uvm")
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "shm").mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return module


def put_command(folder: Path, name: str, script: str) -> None:
    file = folder / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_a_host_without_gpus_needs_only_a_free_port(prepare: ModuleType) -> None:
    assert prepare.not_ready(free_port(), 0) == ""


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_that_somebody_listens_on(prepare: ModuleType, family: socket.AddressFamily) -> None:
    try:
        listener = socket.create_server(("", 0), family=family, dualstack_ipv6=family is socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert "is taken" in prepare.not_ready(listener.getsockname()[1], 0)


def test_no_driver_yet(prepare: ModuleType) -> None:
    assert prepare.not_ready(free_port(), 8).startswith(
        "nvidia-smi shows 0 of 8 GPUs: nvidia-smi does not run"
    )


def test_the_driver_shows_some_of_the_gpus(prepare: ModuleType, tmp_path: Path) -> None:
    put_command(tmp_path, "nvidia-smi", "printf '2\\n2\\n2\\n'")
    assert prepare.not_ready(free_port(), 8) == "nvidia-smi shows 3 of 8 GPUs"


def test_processes_of_the_last_server_hold_memory(prepare: ModuleType, tmp_path: Path) -> None:
    put_command(
        tmp_path,
        "nvidia-smi",
        "case $1 in *gpu=*) printf '2\\n74000\\n';; *) echo '42, python, 74000 MiB';; esac",
    )
    (tmp_path / "nvidia-uvm").touch()
    assert prepare.not_ready(free_port(), 2) == (
        "1 GPUs are in use by another process (GPU 1): 42, python, 74000 MiB"
    )


def test_the_module_of_unified_memory_is_loaded(prepare: ModuleType, tmp_path: Path) -> None:
    put_command(tmp_path, "nvidia-smi", "printf '2\\n2\\n'")
    assert "nvidia-uvm is missing" in prepare.not_ready(free_port(), 2)
    put_command(tmp_path, "nvidia-modprobe", f"touch {tmp_path / 'nvidia-uvm'}")
    assert prepare.not_ready(free_port(), 2) == ""


def test_a_start_waits_for_the_driver_and_records_what_it_uses(
    prepare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Fails three times, as a driver does that is still loading.
    count = tmp_path / "count"
    put_command(
        tmp_path,
        "nvidia-smi",
        f"echo x >> {count}; [ $(wc -l < {count}) -gt 3 ] && printf '2\\n2\\n' || exit 9",
    )
    (tmp_path / "nvidia-uvm").touch()
    deployment = tmp_path / "0.5.9-x-12345678"
    deployment.mkdir()
    (deployment / "eagle3.yaml").write_text("port: 1\n")
    (deployment / "sglang@eagle3.service").write_text("as written\n")
    unit = tmp_path / "sglang@eagle3.service"
    unit.write_text("as loaded\n")
    put_command(tmp_path, "systemctl", f'[ "$5" = sglang@eagle3.service ] && echo {unit}')
    monkeypatch.setenv("INVOCATION_ID", "abc")
    monkeypatch.setattr(
        sys,
        "argv",
        f"prepare.py --profile eagle3 --deployment {deployment} --unit sglang@eagle3.service "
        f"--port {free_port()} --gpus 2 --timeout 60".split(),
    )
    assert prepare.main() == ""
    assert capsys.readouterr().out == (
        "Waiting: nvidia-smi shows 0 of 2 GPUs: it ends with status 9: it says nothing\n"
    )
    assert json.loads((tmp_path / "run" / "eagle3.json").read_text()) == {
        "deployment": "0.5.9-x-12345678",
        "invocation": "abc",
        "files": {
            "eagle3.yaml": hashlib.sha256(b"port: 1\n").hexdigest(),
            "sglang@eagle3.service": hashlib.sha256(b"as loaded\n").hexdigest(),
        },
    }


def test_a_start_is_given_up_with_the_reason(
    prepare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys,
        "argv",
        f"prepare.py --profile eagle3 --deployment {tmp_path} --unit x --port {free_port()} --gpus 8 "
        "--timeout 0".split(),
    )
    assert prepare.main().startswith("Not started after waiting for 0 s: nvidia-smi shows 0 of 8 GPUs")
    assert not (tmp_path / "run").exists()


Answer = list[dict[str, Any]]
SHORT = "abc"


def answer(body: bytes | list[bytes], kind: bytes = b"application/json") -> Answer:
    """What an application sends: one body, or one in parts."""
    parts = [body] if isinstance(body, bytes) else body
    headers = [(b"Content-Length", str(sum(map(len, parts))).encode()), (b"content-type", kind)]
    start = {"type": "http.response.start", "status": 200, "headers": headers}
    last = len(parts) - 1
    return [
        start,
        *(
            {"type": "http.response.body", "body": part, "more_body": number < last}
            for number, part in enumerate(parts)
        ),
    ]


@pytest.fixture
def leave(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[Answer, list[int]]]]:
    """How an answer leaves a server that is built on Starlette; and how many messages had left after each one sent."""
    package = tmp_path / "starlette"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "applications.py").write_text(
        "class Starlette:\n"
        "    def __init__(self, sent): self.sent = sent\n"
        "    async def __call__(self, scope, receive, send):\n"
        "        for message in self.sent: await send(message)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    serve = load(programs / "serve.py")

    def run(sent: Answer, secrets: list[str], kind: str = "http") -> tuple[Answer, list[int]]:
        serve.redact_answers(secrets)
        application = sys.modules["starlette.applications"].Starlette([])
        left: Answer = []
        counts: list[int] = []

        async def send(message: dict[str, Any]) -> None:
            left.append(message)

        def watched() -> Iterator[dict[str, Any]]:
            for message in sent:
                yield message
                counts.append(len(left))

        application.sent = watched()
        asyncio.run(application({"type": kind}, None, send))
        return left, counts

    yield run
    for name in ("starlette", "starlette.applications"):
        sys.modules.pop(name, None)


def body_of(left: Answer) -> bytes:
    head, *rest = left
    body = b"".join(message["body"] for message in rest)
    assert dict(head["headers"])[b"Content-Length"] == str(len(body)).encode()
    return body


QUOTED = 'planted-"key"-with-ä-and-\\'
INFO = {
    "api_key": KEY, "admin_api_key": ADMIN_KEY, "port": 30000, "mem": 0.85, "none": None, "on": True, "ü": "ä",
    "internal_states": [{"admin_api_key": ADMIN_KEY, "argv": ["--api-key", KEY]}, {"text": f"Bearer {ADMIN_KEY}."}],
}  # fmt: skip


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("cut", [0, 30])
@pytest.mark.parametrize(
    "keys", [(KEY, ADMIN_KEY), (KEY, KEY + "-and-more"), (QUOTED, ADMIN_KEY), (SHORT, "abcdef")]
)
def test_no_answer_tells_a_key_and_all_else_stays_as_it_is(
    leave: Callable[..., tuple[Answer, list[int]]], ascii_only: bool, cut: int, keys: tuple[str, str]
) -> None:
    said = {
        **INFO,
        "api_key": keys[0],
        "admin_api_key": keys[1],
        "internal_states": [{"admin_api_key": keys[1]}],
    }
    text = json.dumps(said, ensure_ascii=ascii_only).encode()
    left, _ = leave(answer([text[:cut], text[cut:]] if cut else text), list(keys))
    found = json.loads(body_of(left))
    assert found == {
        **said, "api_key": "********", "admin_api_key": "********", "internal_states": [{"admin_api_key": "********"}]
    }  # fmt: skip


@pytest.mark.parametrize(
    "kind", [b"application/json", b"text/plain; version=0.0.4", b"Text/HTML;charset=utf-8"]
)
def test_a_long_key_is_in_no_text_of_an_answer(
    leave: Callable[..., tuple[Answer, list[int]]], kind: bytes
) -> None:
    for text in (json.dumps(INFO), f"launched with {KEY} and {ADMIN_KEY}", f'{{"cut": "{KEY}'):
        body = body_of(leave(answer(text.encode(), kind), [KEY, ADMIN_KEY])[0])
        assert KEY.encode() not in body and ADMIN_KEY.encode() not in body and body.count(b"********") >= 1


def test_a_completion_is_handed_on_to_the_byte(leave: Callable[..., tuple[Answer, list[int]]]) -> None:
    body = b'{ "choices": [{"text": "abc abcdef"}], "usage": 1e-7 }'
    assert body_of(leave(answer(body), [SHORT, KEY])[0]) == body


def test_a_stream_is_not_held_back(leave: Callable[..., tuple[Answer, list[int]]]) -> None:
    sent = answer([b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"], b"text/event-stream")
    left, counts = leave(sent, [KEY])
    assert left == sent and counts == [1, 2, 3, 4]


def test_what_is_no_answer_passes(leave: Callable[..., tuple[Answer, list[int]]]) -> None:
    sent = [{"type": "lifespan.startup.complete"}]
    assert leave(sent, [KEY], "lifespan")[0] == sent
    disconnect = [{"type": "http.response.trailers", "headers": []}]
    assert leave(disconnect, [KEY])[0] == disconnect


@pytest.mark.parametrize("kind", [b"application/json", b"text/plain"])
def test_an_answer_without_a_key_leaves_as_the_application_sent_it(
    leave: Callable[..., tuple[Answer, list[int]]], kind: bytes
) -> None:
    start, *parts = answer([b'{"a": ', b"1", b"}"], kind)
    # An answer to HEAD, and one that says "not modified", tell the length of a body that does not follow.
    bodiless = [{**start, "status": 304}, {"type": "http.response.body", "body": b""}]
    for sent in ([start, *parts], bodiless, [start, {"type": "http.response.body"}]):
        assert leave(list(sent), [KEY])[0] == sent


def test_nothing_leaves_before_the_start_of_its_answer(
    leave: Callable[..., tuple[Answer, list[int]]],
) -> None:
    start, body = answer(b'{"a": 1}')
    for kind in ("http.response.pathsend", "http.response.zerocopysend", "http.response.debug"):
        sent = [start, {"type": kind}]
        assert leave(list(sent), [KEY])[0] == sent
    sent = [start, body, {"type": "http.response.trailers", "headers": []}]
    assert leave(list(sent), [KEY])[0] == sent


@pytest.mark.parametrize(
    "given", [("%d tokens for " + KEY, "many"), ("%s %s", KEY), ("100% of " + KEY, 1), ("{}", KEY)]
)
def test_a_log_call_that_does_not_fit_ends_no_request_and_tells_no_key(
    programs: Path, given: tuple[Any, ...]
) -> None:
    before = logging.getLogRecordFactory()
    try:
        load(programs / "serve.py").redact_log_records([KEY])
        record = logging.getLogger("anybody").makeRecord("a", 20, "f", 1, given[0], given[1:], None)
        assert KEY not in record.getMessage()
    finally:
        logging.setLogRecordFactory(before)


def test_keys_with_several_tokenizers_are_refused_before_anything_starts(
    programs: Path, tmp_path: Path
) -> None:
    config = tmp_path / "eagle3.yaml"
    config.write_text(f'host: "::"\nport: 1\nadmin-api-key: "{ADMIN_KEY}"\ntokenizer-worker-num: 4\n')
    done = subprocess.run(
        [sys.executable, str(programs / "serve.py"), "0", "--config", str(config)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "take tokenizer_worker_num out" in done.stderr


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "[::]", "", "127.0.0.1", "gpu-1", "2001:db8::11", "fe80::1%eth0"]
)
def test_the_programs_reach_a_server_where_everybody_does(
    programs: Path, repository: Path, host: str
) -> None:
    serve = load(programs / "serve.py")
    probe = load(repository / "roles" / "rollout" / "files" / "outage_probe.py")
    assert serve.local_url(host, 30000) == probe.local_url(host, 30000) == local_url(host, 30000)


BROKEN_SERVER = """
import socket, sys

config = dict(line.split(": ") for line in open(sys.argv[2]))
answers = [b"", b"nonsense\\r\\n\\r\\n", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n"]
with socket.create_server(("127.0.0.1", int(config["port"]))) as listener:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answers.pop(0) if len(answers) > 1 else answers[0])
"""


def test_an_answer_that_breaks_off_does_not_end_the_watchdog(programs: Path, tmp_path: Path) -> None:
    with Served(programs / "serve.py", tmp_path, BROKEN_SERVER) as served:
        assert served.heard(3) == ["WATCHDOG_USEC=1000000", "WATCHDOG=1", "WATCHDOG=1"]


# --- which cards ---

PRO = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:84:00.0"


def rows(*used: str, first: str = PRO) -> str:
    """What nvidia-smi prints of cards that use so much memory; the first one is of another model."""
    return "\n".join(
        f"{n}, GPU-0000000{n}-5ac1, {PRO if n else first}, {memory}" for n, memory in enumerate(used)
    )


def put_cards(folder: Path, text: str, status: int = 0) -> None:
    (folder / "cards.csv").write_bytes(text.encode())
    put_command(
        folder, "nvidia-smi", f"case $1 in *gpu=*) cat {folder}/cards.csv; exit {status};; *) exit 6;; esac"
    )
    (folder / "nvidia-uvm").touch()


@pytest.mark.parametrize(
    "text",
    [
        "2\n2\n" + INFOROM + "\n",
        INFOROM + "\n2\n2\n",
        "2\n" + INFOROM + "\n2\n",
        "2\r\n2\r\n" + INFOROM + "\r\n",
        "\0\0" + rows("2", "2") + "\n\n" + INFOROM,
        rows("2 MiB", "1 MiB") + "\n" + INFOROM,
        "WARNING: a, b, 2\n" + rows("0", "0") + "\n" + INFOROM,
    ],
)
@pytest.mark.parametrize("status", [0, 14])
def test_a_whole_report_counts_whatever_is_said_beside_it(
    prepare: ModuleType, tmp_path: Path, text: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    put_cards(tmp_path, text, status)
    assert prepare.not_ready(free_port(), 2) == ""
    assert prepare.not_ready(free_port(), 2) == ""
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Warning: nvidia-smi says: ") and INFOROM in line, "it is said once"


@pytest.mark.parametrize("status", [2, 9, 10, 15, 18, 255])
def test_no_report_is_taken_from_a_driver_that_failed(
    prepare: ModuleType, tmp_path: Path, status: int
) -> None:
    put_cards(
        tmp_path, "2\n2\nUnable to determine the device handle for GPU 0000:84:00.0: Unknown Error", status
    )
    reason = prepare.not_ready(free_port(), 2)
    assert f"status {status}" in reason and "Unable to determine the device handle" in reason


@pytest.mark.parametrize(
    "field",
    [
        "[GPU requires reset]",
        "[N/A]",
        "N/A",
        "[Not Supported]",
        "[Insufficient Permissions]",
        "[Unknown Error]",
        "Unknown Error",
        "GPU requires reset",
        "ERR!",
        "[GPU is lost]",
        "[Function Not Found]",
    ],
)
@pytest.mark.parametrize("single", [True, False])
def test_a_card_that_does_not_tell_its_memory_is_not_ready_and_is_named(
    prepare: ModuleType, tmp_path: Path, field: str, single: bool
) -> None:
    put_cards(tmp_path, f"2\n{field}\n2" if single else rows("2", field, "2"))
    reason = prepare.not_ready(free_port(), 3)
    assert reason.startswith(f"GPU 1 is not ready: its memory.used is {field}")
    assert len(reason) < 400


@pytest.mark.parametrize("field", ["-1", "12 apples", "", "1e999", "nan", "x" * 9000])
def test_what_is_neither_a_figure_nor_a_known_word_is_no_card(
    prepare: ModuleType, tmp_path: Path, field: str
) -> None:
    put_cards(tmp_path, rows("2", field))
    reason = prepare.not_ready(free_port(), 2)
    assert reason.startswith("nvidia-smi shows 1 of 2 GPUs")
    assert len(reason) < 600


def test_free_cards_beside_the_chosen_ones_make_no_start(
    prepare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_cards(tmp_path, rows("90000", *["2"] * 8))
    assert "in use by another process (GPU 0)" in prepare.not_ready(free_port(), 8)
    chosen = prepare.Wanted(8, "1,2,3,4,5,6,7,8", (PRO,))
    assert prepare.not_ready(free_port(), 8, chosen) == ""
    assert prepare.not_ready(free_port(), 2, prepare.Wanted(2, "GPU-00000003-5ac1,GPU-00000005-5ac1")) == ""


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (("0,9",), "nvidia-smi shows no GPU 9, which the deployment names"),
        (("1,GPU-ffff",), "nvidia-smi shows no GPU GPU-ffff, which the deployment names"),
        (("1,GPU-00000001",), "CUDA_VISIBLE_DEVICES=1,GPU-00000001 names GPU 1 twice"),
        (("1,MIG-4c2e",), "nvidia-smi shows no GPU MIG-4c2e, which the deployment names; it shows 0, 1, 2"),
        (("1",), "CUDA_VISIBLE_DEVICES=1 names 1 of 2 GPUs"),
        (("0,1", (PRO,)), "the name of GPU 0 is NVIDIA T400, and the deployment was made for " + PRO),
        (("1,2", (), ("GPU-00000001-5ac1", "GPU-a")), "the uuid of GPU 2 is GPU-00000002-5ac1"),
    ],
)
def test_cards_that_are_not_those_of_the_deployment(
    prepare: ModuleType, tmp_path: Path, wanted: tuple[str, ...], reason: str
) -> None:
    put_cards(tmp_path, rows("2", "2", "2", first="NVIDIA T400"))
    assert prepare.not_ready(free_port(), 2, prepare.Wanted(2, *wanted)).startswith(reason)


@pytest.mark.parametrize("name", ["[Unknown Error]", "[GPU requires reset]", "ERR!"])
def test_a_card_that_does_not_tell_its_name_is_not_ready(
    prepare: ModuleType, tmp_path: Path, name: str
) -> None:
    put_cards(tmp_path, rows("2", "2", first=name))
    reason = prepare.not_ready(free_port(), 2, prepare.Wanted(2, "0,1", (PRO,)))
    assert reason == f"GPU 0 is not ready: its name is {name}"


def run_prepare(
    programs: Path, folder: Path, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-IS", str(programs / "prepare.py"), *words],
        env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


DEPLOYED_UNIT = """[Service]
ExecStartPre=+/opt/python -IS {folder}/prepare.py \\
    --profile eagle3 --deployment {folder} --unit %n \\
    --port 30000 --gpus 2 --timeout 180 \\
    --user sglang --name "{name}"
ExecStart=/opt/python {folder}/serve.py
"""


@pytest.mark.parametrize(
    ("visible", "name", "status", "said"),
    [
        ("1,2", PRO, 0, ""),
        ("0,1", PRO, 1, "the name of GPU 0 is NVIDIA T400"),
        ("1,7", PRO, 1, "nvidia-smi shows no GPU 7"),
        ("1,2", "NVIDIA H200", 1, "the deployment was made for NVIDIA H200"),
    ],
)
def test_a_deployment_says_which_cards_have_to_be_there_before_a_server_is_stopped(
    prepare: ModuleType, programs: Path, tmp_path: Path, visible: str, name: str, status: int, said: str
) -> None:
    put_cards(tmp_path, rows("2", "90000", "90000", first="NVIDIA T400"))
    deployment = tmp_path / "deployment"
    deployment.mkdir()
    (deployment / "sglang@eagle3.service").write_text(DEPLOYED_UNIT.format(folder=deployment, name=name))
    (deployment / "eagle3.env").write_text(f'# x\nHOME="/x"\nCUDA_VISIBLE_DEVICES="{visible}"\n')
    done = run_prepare(programs, tmp_path, "--check-driver", "--gpus", "8", "--deployment", str(deployment))
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_working_driver_no_server_can_start(
    prepare: ModuleType, programs: Path, tmp_path: Path
) -> None:
    put_cards(tmp_path, "Failed to initialize NVML: Driver/library version mismatch", 18)
    done = run_prepare(programs, tmp_path, "--check-driver", "--gpus", "8")
    assert done.returncode == 1
    assert "Driver/library version mismatch" in done.stderr
    # Of an installation that is not ours nothing is known: a driver that is there has to work.
    put_command(
        tmp_path, "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
    )
    assert run_prepare(programs, tmp_path, "--check-driver", "--gpus", "0").returncode == 1
    (tmp_path / "bin" / "nvidia-smi").unlink()
    assert run_prepare(programs, tmp_path, "--check-driver", "--gpus", "0").returncode == 0


def test_a_full_card_of_the_running_server_does_not_keep_another_one_from_being_asked_for(
    prepare: ModuleType, programs: Path, tmp_path: Path
) -> None:
    put_cards(tmp_path, rows("90000", "90000"))
    assert run_prepare(programs, tmp_path, "--check-driver", "--gpus", "2").returncode == 0


def test_a_unit_that_systemd_does_not_know_is_told_without_a_traceback(
    prepare: ModuleType, programs: Path, tmp_path: Path
) -> None:
    put_command(tmp_path, "systemctl", "echo 'Failed to connect to bus' >&2; exit 1")
    words = f"--profile eagle3 --deployment {tmp_path} --unit x --port {free_port()} --gpus 0 --timeout 0"
    done = run_prepare(programs, tmp_path, *words.split())
    assert done.returncode == 1
    assert done.stderr.strip().endswith("Failed to connect to bus")


# --- what earlier servers left in shared memory ---


@pytest.fixture
def user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def test_what_nobody_has_open_is_removed_and_said(
    prepare: ModuleType, tmp_path: Path, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shm"
    for name in ("nccl-a1", "psm_b2", "sgl_c3", "torch_d4", "opened", "sem.other", "nccl-open", "psm_mapped"):
        (shared / name).write_bytes(b"x" * 5000)
        os.utime(shared / name, (0, 0))
    (shared / "psm_on_its_way").write_bytes(b"x")
    (shared / "sgl_folder").mkdir()
    (shared / "sgl_link").symlink_to(tmp_path)
    with (shared / "nccl-open").open("rb"), (shared / "psm_mapped").open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        file.close()
        prepare.clear_shared_memory(user)
        left = sorted(path.name for path in shared.iterdir())
        mapped.close()
    assert left == [
        "nccl-open",
        "opened",
        "psm_mapped",
        "psm_on_its_way",
        "sem.other",
        "sgl_folder",
        "sgl_link",
    ]
    said = capsys.readouterr().out
    assert f"what an earlier server of {user} left" in said
    assert all(name in said for name in ("nccl-a1", "psm_b2", "sgl_c3", "torch_d4"))


def test_files_of_other_users_stay(prepare: ModuleType, tmp_path: Path, user: str) -> None:
    (tmp_path / "shm" / "nccl-a1").touch()
    os.utime(tmp_path / "shm" / "nccl-a1", (0, 0))
    other = next(entry.pw_name for entry in pwd.getpwall() if entry.pw_uid != os.getuid())
    for name in (other, "no-such-user"):
        prepare.clear_shared_memory(name)
    assert (tmp_path / "shm" / "nccl-a1").exists()


def test_nothing_is_removed_where_processes_cannot_be_looked_into(
    prepare: ModuleType, tmp_path: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shm" / "nccl-a1").touch()
    os.utime(tmp_path / "shm" / "nccl-a1", (0, 0))

    def refuse(path: Path, *_: Any, **__: Any) -> str:
        raise PermissionError(path)

    monkeypatch.setattr(prepare, "may_hold", lambda process, owners: owners == {os.getuid()})
    monkeypatch.setattr(Path, "read_text", refuse)
    prepare.clear_shared_memory(user)
    assert (tmp_path / "shm" / "nccl-a1").exists()


def test_too_little_shared_memory_is_named_with_what_fills_it(
    prepare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shm" / "somebody").write_bytes(b"x" * 2**21)
    put_cards(tmp_path, "2\n")

    def room(free: int) -> Callable[[Any], SimpleNamespace]:
        return lambda path: SimpleNamespace(f_bavail=free, f_blocks=100, f_frsize=2**20)

    monkeypatch.setattr(os, "statvfs", room(10))
    reason = prepare.not_ready(free_port(), 1)
    assert "has 10 of 100 MiB free, and a start needs 25" in reason
    assert "somebody (2 MiB)" in reason
    assert prepare.not_ready(free_port(), 0) == "", "a processor needs none"
    monkeypatch.setattr(os, "statvfs", room(30))
    assert prepare.not_ready(free_port(), 1) == ""
