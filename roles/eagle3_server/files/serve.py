"""Run SGLang as a service: keys out of its log and its answers, stale locks out of its way, systemd's watchdog on it.

    serve.py SILENCE --config FILE

SILENCE is how many seconds the server may go without answering /health once it has answered, 0 for ever. The
rest is `python -m sglang.launch_server` with the same arguments: it runs in this process, and the processes
that it spawns import `sglang.launch_server` as they always do.
"""

from __future__ import annotations

import glob
import http.client
import json
import logging
import os
import runpy
import signal
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any


def read_config(config: Path) -> dict[str, Any]:
    """The arguments in a configuration file of ours: one `flag: value` a line, the value in JSON."""
    entries = (line.partition(": ") for line in config.read_text(encoding="utf-8").split("\n"))
    return {name: json.loads(value) for name, _, value in entries if value and not name.startswith("#")}


SECRETS = ("api-key", "admin-api-key", "ssl-keyfile-password")
HIDDEN = "********"
# A shorter one may be in any text by chance, so it is replaced only where it is a field of SGLang's arguments.
LONG = 16
WHOLE = {b"application/json", b"text/plain", b"text/html"}


def written(secrets: list[str]) -> list[str]:
    """The secrets as they are and as JSON and ``repr`` write them, the longest first, which may begin like another."""
    forms = [
        {item, repr(item)[1:-1], json.dumps(item)[1:-1], json.dumps(item, ensure_ascii=False)[1:-1]}
        for item in secrets
    ]
    return sorted({form for of_one in forms for form in of_one}, key=len, reverse=True)


def redact_log_records(secrets: list[str]) -> None:
    """Replace the secrets in the message of every log record of this process.

    SGLang logs all of its arguments when it starts, keys included. The change is made where records are born, so it
    holds for every logger and every release.
    """
    make_record = logging.getLogRecordFactory()
    forms = written(secrets)

    def make_redacted_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        try:
            message = record.getMessage()
        except Exception:  # Whoever logs goes on: logging itself says what does not fit.
            message = f"{record.msg!r} with {record.args!r}"
        if any(form in message for form in forms):
            for form in forms:
                message = message.replace(form, HIDDEN)
            record.msg, record.args = message, ()
        return record

    logging.setLogRecordFactory(make_redacted_record)


def hide(value: Any, secrets: list[str], name: str = "") -> Any:
    """What JSON holds, without the secrets: long ones in every text, short ones in the fields that are called so."""
    if isinstance(value, dict):
        return {key: hide(item, secrets, key) for key, item in value.items()}
    if isinstance(value, list):
        return [hide(item, secrets, name) for item in value]
    if not isinstance(value, str):
        return value
    if value in secrets and name.replace("_", "-") in SECRETS:
        return HIDDEN
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= LONG:
            value = value.replace(secret, HIDDEN)
    return value


def redact_body(body: bytes, secrets: list[str]) -> bytes:
    """The whole body of an answer without the secrets; one that holds none is returned as it is."""
    forms = [form.encode() for form in written(secrets)]
    if not any(form in body for form in forms):
        return body
    try:
        said = json.loads(body)
        hidden = hide(said, secrets)
    except (ValueError, RecursionError):
        for form in forms:
            if len(form) >= LONG:
                body = body.replace(form, HIDDEN.encode())
        return body
    return body if hidden == said else json.dumps(hidden, separators=(",", ":")).encode()


def redacted(send: Any, secrets: list[str]) -> Any:
    """An ASGI ``send`` that takes the secrets out of whole answers. A stream goes through it as it comes."""
    held: list[dict[str, Any]] = []

    async def send_redacted(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kinds = dict(message.get("headers", [])).get(b"content-type", b"").partition(b";")
            if kinds[0].strip().lower() in WHOLE:
                held.append(message)  # the length of the body is in it
                return
        elif held and message["type"] == "http.response.body":
            held.append(message)
            if message.get("more_body"):
                return
            message = held.pop()
            parts = [*held[1:], message]
            body = b"".join(part.get("body", b"") for part in parts)
            hidden = redact_body(body, secrets)
            if hidden != body:
                length = str(len(hidden)).encode()
                headers = [
                    (name, length if name.lower() == b"content-length" else value)
                    for name, value in held[0].get("headers", [])
                ]
                held[:] = [{**held[0], "headers": headers}]
                message = {"type": message["type"], "body": hidden}
        # Whatever was held goes before what comes behind it.
        while held:
            await send(held.pop(0))
        await send(message)

    return send_redacted


def redact_answers(secrets: list[str]) -> None:
    """Take the secrets out of every answer of this server.

    SGLang 0.5.8 to 0.5.10 tell all of their arguments, keys included, to whoever asks for /server_info or
    /get_server_info, once from this process and once from each scheduler. Every answer leaves through Starlette, on
    which SGLang is built, whatever a release calls its addresses.
    """
    try:
        from starlette.applications import Starlette
    except ModuleNotFoundError:  # nor does SGLang start without it
        return
    serve = Starlette.__call__

    async def serve_redacted(self: Any, scope: Any, receive: Any, send: Any) -> None:
        await serve(self, scope, receive, redacted(send, secrets) if scope["type"] == "http" else send)

    Starlette.__call__ = serve_redacted


def local_url(host: str, port: int) -> str:
    """The URL at which this machine reaches its own server."""
    bare = host.strip("[] ")
    bare = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(bare, bare)
    return f"http://[{bare.replace('%', '%25')}]:{port}" if ":" in bare else f"http://{bare}:{port}"


def remove_stale_locks(cache: Path) -> None:
    """Remove lock files that no process has open.

    A kernel build that was killed leaves its lock file behind, and a later start waits for it for ever
    ("Loading JIT ops"). A live holder keeps its file open, and it runs as this user, so /proc shows it.
    """
    held = set()
    for link in glob.iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 - Path.glob fails when a process ends meanwhile
        try:
            held.add(Path(link).stat()[1:3])
        except OSError:  # another user's process, or one that has just ended
            continue
    for folder, _, names in os.walk(cache):
        for name in names:
            file = Path(folder, name)
            if (name == "lock" or name.endswith(".lock")) and file.stat()[1:3] not in held:
                print(f"Removing the stale lock file {file}", flush=True)
                file.unlink()


def workers() -> set[int]:
    """The live processes of this server that call themselves sglang::...: schedulers and the detokenizer."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            identity, _, rest = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:  # it has just ended
            continue
        state, parent = rest.split()[:2]
        if "(sglang::" in identity and state != "Z" and int(parent) == os.getpid():
            found.add(int(stat.parent.name))
    return found


def end_with_a_worker(known: set[int]) -> set[int]:
    """End this server when a worker has died: without it /health answers 503 for ever, and nothing else happens.

    Returns the workers that live now. SGLang itself notices a worker that fails, not one that is killed.
    """
    alive = workers()
    if dead := known - alive:
        print(
            f"Process {min(dead)} of the server is gone: the server ends, for systemd to start it again",
            flush=True,
        )
        os.kill(os.getpid(), signal.SIGKILL)
    return alive


def watch(url: str, silence: float) -> None:
    """Tell systemd's watchdog whenever the server answers; it restarts a server that is alive and answers
    nothing. A server that has answered and loses one of its processes ends at once.

    Until the first answer the unit's own limit holds, which is that of a start. /health is a real generation
    of one token, or the proof that others are under way.
    """
    address = os.environ["NOTIFY_SOCKET"].replace("@", "\0", 1)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answered = False
    alive: set[int] = set()
    ask_next = 0.0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.connect(address)
        while True:
            time.sleep(min(1.0, silence / 10))
            if answered:
                alive = end_with_a_worker(alive)
            if time.monotonic() < ask_next:
                continue
            try:
                direct.open(f"{url}/health", timeout=silence / 10 + 25).close()
            except (
                OSError,
                http.client.HTTPException,
                ValueError,
            ):  # an HTTP error, an answer that breaks off
                continue
            if not answered:
                systemd.send(f"WATCHDOG_USEC={int(silence * 1_000_000)}".encode())
                answered = True
            systemd.send(b"WATCHDOG=1")
            ask_next = time.monotonic() + silence / 10


def main() -> None:
    silence = float(sys.argv.pop(1))
    config = read_config(Path(sys.argv[sys.argv.index("--config") + 1]))
    secrets = [str(config[name]) for name in SECRETS if config.get(name)]
    if secrets:
        if int(config.get("tokenizer-worker-num", 1)) > 1:
            sys.exit(
                "tokenizer_worker_num has to be 1 where a key is set: with more, SGLang checks no key, and its answers "
                "come from processes that tell them. To mend it: take tokenizer_worker_num out of the settings."
            )
        redact_log_records(secrets)
        redact_answers(secrets)
    remove_stale_locks(Path.cwd())
    if silence and "NOTIFY_SOCKET" in os.environ:
        url = local_url(config["host"], config["port"])
        threading.Thread(target=watch, args=(url, silence), daemon=True).start()
    del sys.path[0]  # this file's folder, which holds no module for SGLang
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
