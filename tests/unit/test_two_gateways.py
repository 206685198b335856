"""With two gateways behind one address, a restart of either loses no request."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blackwell.gateway import SERVING, Host, Records

from tests import gateways
from tests.rollout.load import Load
from tests.stand_in.server import Behaviour, StandIn

SENTENCE = "a server is as quick as it was seen to be at noon"


def is_ready(gateway: gateways.Gateway) -> bool:
    """What a balancer asks."""
    try:
        with urllib.request.urlopen(f"{gateway.url}/readiness", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Balancer:
    """Hands each new connection to the first gateway that was ready a moment ago; leaves open ones alone."""

    def __init__(self, behind: list[gateways.Gateway]) -> None:
        self.behind = behind
        self.ready = list(behind)
        self.port = gateways.free_port()

    async def serve(self, over: threading.Event) -> None:
        async with await asyncio.start_server(self._connection, "127.0.0.1", self.port):
            while not over.is_set():
                found = await asyncio.to_thread(lambda: [each for each in self.behind if is_ready(each)])
                self.ready = found or self.ready
                await asyncio.sleep(1)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self.ready[0].port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
            target.close()

        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer), return_exceptions=True)


@contextmanager
def balanced(behind: list[gateways.Gateway]) -> Iterator[str]:
    """One address in front of them."""
    balancer, over = Balancer(behind), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(balancer.serve(over)))
    thread.start()
    yield f"http://127.0.0.1:{balancer.port}"
    over.set()
    thread.join()


def test_a_restart_of_either_loses_no_request(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        StandIn(Behaviour(step_s=0.2)) as server,
        gateways.running(tmp_path / "one") as one,
        gateways.running(tmp_path / "two") as two,
    ):
        for each in (one, two):
            Records(each.state).write({server.url: Host(SERVING, "rollout", 1.0)})
        with balanced([one, two]) as url:
            while not (is_ready(one) and is_ready(two)):
                time.sleep(0.2)
            load = Load(url, "stand-in", SENTENCE)
            with load.running(clients=8):
                for each in (one, two):
                    time.sleep(3)
                    stopped = time.time()
                    each.stop()
                    assert load.open_at(stopped) or load.requests, "somebody asks"
                    each.start()
                    while not is_ready(each):
                        time.sleep(0.2)
        assert not load.lost, load.lost[:5]
        assert len(load.requests) > 50 and 0 < load.streamed < len(load.requests)
