"""Note when a server last answered before it was stopped, and when it first answered again.

    outage_probe.py OUT SECONDS CONFIG...

Asks for one token, four times a second, on this host. The configurations are those of the server before and of the one
after; an answer to either is good. It ends with the first good answer after a bad one, so that it is in nobody's way
while the new server is measured, or when the seconds are over.
"""

import json
import sys
import time
import urllib.request
from pathlib import Path

INTERVAL = 0.25
TIMEOUT = 5


def request_for(config: str) -> urllib.request.Request:
    """The request for one token that this configuration's server answers."""
    lines = (
        line.partition(": ") for line in Path(config).read_text().splitlines() if not line.startswith("#")
    )
    settings = {name: json.loads(value) for name, _, value in lines}
    host = settings.get("host", "127.0.0.1")
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    headers = {"Content-Type": "application/json"}
    if settings.get("api-key"):
        headers["Authorization"] = f"Bearer {settings['api-key']}"
    body = {"text": "The", "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}}
    url = f"http://{host}:{settings.get('port', 30000)}/generate"
    return urllib.request.Request(url, json.dumps(body).encode(), headers)


def good(request: urllib.request.Request) -> bool:
    """Whether a token comes."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT) as answer:
            return bool(json.load(answer)["meta_info"]["completion_tokens"] > 0)
    except Exception:  # Whatever goes wrong, it is no good answer.
        return False


def main(out: str, seconds: str, *configs: str) -> None:
    """Probe until the server is back."""
    requests = [request_for(config) for config in dict.fromkeys(configs)]
    deadline = time.time() + float(seconds)
    seen: dict[str, float] = {}
    failed = False
    while time.time() < deadline:
        if any(good(request) for request in requests):
            seen["first_good" if failed else "last_good"] = time.time()
            Path(out).write_text(json.dumps(seen))
            if failed:
                return
        else:
            failed = True
        time.sleep(INTERVAL)


if __name__ == "__main__":
    main(*sys.argv[1:])
