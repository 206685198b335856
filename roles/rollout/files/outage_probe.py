"""Note for how long a server gives no answer while it is exchanged.

    outage_probe.py OUT SECONDS CONFIG...

Asks for one token, four times a second, on this host. The configurations are those of the server before and of the one
after; an answer to either is good. The outage is from the last good answer before nobody listened to the first good one
after that: a server that is slow or fails once is not stopped, and one that listens does not answer yet. OUT has
``last_good`` and ``first_good``, in seconds since the epoch; an end that was not seen is missing. The program ends with
the first good answer after the stop, so that it is in nobody's way while the new server is measured, or when the
seconds are over.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path

INTERVAL = 0.25
TIMEOUT = 5

GOOD, BAD, REFUSED = "good", "bad", "refused"


def local_url(host: str, port: int) -> str:
    """The URL at which this machine reaches its own server."""
    bare = host.strip("[] ")
    bare = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(bare, bare)
    return f"http://[{bare.replace('%', '%25')}]:{port}" if ":" in bare else f"http://{bare}:{port}"


def request_for(config: str) -> urllib.request.Request:
    """The request for one token that this configuration's server answers."""
    lines = (line.partition(": ") for line in Path(config).read_text(encoding="utf-8").split("\n"))
    settings = {name: json.loads(value) for name, _, value in lines if value and not name.startswith("#")}
    headers = {"Content-Type": "application/json"}
    if settings.get("api-key"):
        headers["Authorization"] = f"Bearer {settings['api-key']}"
    body = {"text": "The", "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}}
    url = f"{local_url(settings.get('host', '127.0.0.1'), settings.get('port', 30000))}/generate"
    return urllib.request.Request(url, json.dumps(body).encode(), headers)


def ask(request: urllib.request.Request) -> str:
    """Whether a token comes, and if not, whether nobody listens."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT) as answer:
            return GOOD if json.load(answer)["meta_info"]["completion_tokens"] > 0 else BAD
    except Exception as error:  # Whatever else goes wrong, it is no good answer.
        return REFUSED if isinstance(getattr(error, "reason", None), ConnectionRefusedError) else BAD


def note(seen: dict[str, float], answers: list[str], now: float) -> None:
    """Add what was answered now: ``last_good``, ``stopped`` or ``first_good``.

    Args:
        seen: what was seen before.
        answers: of the server before, and of the one after where that has another configuration.
        now: seconds since the epoch.
    """
    if GOOD in answers:
        seen["first_good" if "stopped" in seen else "last_good"] = now
    elif set(answers) == {REFUSED}:
        seen.setdefault("stopped", now)


def write(out: Path, seen: dict[str, float]) -> None:
    """In one step: whoever reads it ends this program at any moment."""
    draft = out.with_name(f".{out.name}.new")
    draft.write_text(json.dumps(seen), encoding="utf-8")
    draft.replace(out)


def main(out: str, seconds: str, *configs: str) -> None:
    """Probe until the server is back."""
    requests = [request_for(config) for config in dict.fromkeys(configs)]
    # A clock that is set meanwhile would lengthen or shorten the outage.
    epoch = time.time() - time.monotonic()
    deadline = time.monotonic() + float(seconds)
    seen: dict[str, float] = {}
    while time.monotonic() < deadline and "first_good" not in seen:
        note(seen, [ask(request) for request in requests], epoch + time.monotonic())
        write(Path(out), seen)
        time.sleep(INTERVAL)


if __name__ == "__main__":
    main(*sys.argv[1:])
