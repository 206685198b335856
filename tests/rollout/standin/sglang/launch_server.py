"""The stand-in server as SGLang is started: from a configuration file, with SGLang's own way to end.

``behaviour.json`` beside the package says what is wrong with this release: the fields of ``Behaviour``, and ``start_s``
(seconds until it answers), ``crash`` and ``hang`` (it never does); under ``eagle3`` and ``baseline`` what holds for
that profile only. ``POST /mute`` makes it take connections and answer nothing any more, as a server does whose
scheduler is stuck.
"""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from stand_in_server import Behaviour, StandIn, _send

POLL = 0.5


class Server(StandIn):
    """Ends as SGLang does: goes on answering, says 503 to /health, and kills itself when no request is open."""

    draining = False
    mute = False

    async def _answer(self, method, path, headers, body, writer):
        self.mute = self.mute or path == "/mute"
        if self.mute:
            await asyncio.sleep(3600)
        if path == "/health" and self.draining:
            return _send(writer, 503, "")
        if path == "/get_load":
            return _send(writer, 200, [{"dp_rank": 0, "num_reqs": self.state.running, "num_waiting_reqs": 0}])
        return await super()._answer(method, path, headers, body, writer)

    async def end(self):
        """What SGLang does after SIGTERM."""
        self.draining = True
        while self.state.running:
            await asyncio.sleep(POLL)
        os.kill(os.getpid(), signal.SIGKILL)

    async def run(self, host, port):
        """Serve, and end on SIGTERM."""
        loop = asyncio.get_running_loop()
        tasks = []
        loop.add_signal_handler(signal.SIGTERM, lambda: tasks.append(loop.create_task(self.end())))
        await self.serve(host, port)


lines = (
    line.partition(": ") for line in Path(sys.argv[sys.argv.index("--config") + 1]).read_text().splitlines()
)
config = {name: json.loads(value) for name, _, value in lines if value and not name.startswith("#")}
behaviour = json.loads((Path(__file__).parents[1] / "behaviour.json").read_text())
speculative = "speculative-algorithm" in config
of_profile = {profile: behaviour.pop(profile, {}) for profile in ("eagle3", "baseline")}
behaviour |= of_profile["eagle3" if speculative else "baseline"]
time.sleep(behaviour.pop("start_s", 1))
if behaviour.pop("crash", False):
    raise RuntimeError("the release of this test crashes at its start")
if behaviour.pop("hang", False):
    time.sleep(3600)
as_configured = {
    "speculative": speculative,
    "tokenizer": config["model-path"],
    "api_key": config.get("api-key", ""),
    "admin_key": config.get("admin-api-key", ""),
}
asyncio.run(Server(Behaviour(**{**as_configured, **behaviour})).run(config["host"], config["port"]))
