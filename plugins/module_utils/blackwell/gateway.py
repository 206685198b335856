"""Which hosts a gateway sends requests to: who serves, who was taken out and by whom, and what smg makes of it.

Two files on the gateway hold it. ``hosts.json`` is the record: one entry for each host, with who took it out.
``workers.json`` is made from it: the manifest that smg watches (``--discovery-provider file``). A host that leaves
the manifest gets no new request from that moment, while its open ones go on: smg calls that ``draining`` for five
seconds and then forgets the worker. So the gateway can say that no new request is sent; that the old ones have ended
only the host itself can say.

A manifest and not smg's API, because a gateway that restarts in the middle of a rollout reads it again: it never
brings back a host that was taken out.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .errors import OperatorError
from .files import replace

SERVING = "serving"
DRAINED = "drained"

READY = "ready"
API_TIMEOUT = 10.0


@dataclass(frozen=True)
class Host:
    """One host of a gateway.

    Attributes:
        state: ``serving`` or ``drained``.
        by: who brought it there, ``rollout`` or ``operator``.
        since: when, in seconds since the epoch.
    """

    state: str
    by: str
    since: float


@dataclass(frozen=True)
class Step:
    """What a change comes to.

    Attributes:
        hosts: all hosts after it, by URL.
        changed: whether anything is to be written.
        left_out: why a host that was to serve does not; empty when it does.
    """

    hosts: dict[str, Host]
    changed: bool
    left_out: str = ""


def drain(
    hosts: Mapping[str, Host], url: str, *, by: str, now: float, ready: frozenset[str], min_available: int
) -> Step:
    """Take a host out.

    One that was never in, or that is out already, stays as it is: the one who took it out decides about its return.

    Args:
        hosts: all hosts by URL.
        url: the host's address as the gateway uses it.
        by: who asks.
        now: seconds since the epoch.
        ready: URLs of the workers that the gateway takes for healthy.
        min_available: how many others have to be left that serve and are healthy, if this one is.

    Raises:
        OperatorError: too few would be left.
    """
    before = hosts.get(url)
    if before is None or before.state == DRAINED:
        return Step(dict(hosts), changed=False)
    left = sorted(
        other for other, host in hosts.items() if host.state == SERVING and other != url and other in ready
    )
    # A host that gives no answers is no loss: where all are down, each can be mended.
    if url in ready and len(left) < min_available:
        raise OperatorError(
            f"Too few hosts would be left to serve if {url} were taken out",
            found=f"{len(left)} others serve and are healthy{': ' if left else ''}{', '.join(left)}",
            expected=f"at least {min_available}",
            remedy="bring the others back first, or lower rollout_min_available",
        )
    return Step({**hosts, url: Host(DRAINED, by, now)}, changed=True)


def serve(hosts: Mapping[str, Host], url: str, *, by: str, now: float) -> Step:
    """Put a host in, unless somebody else took it out."""
    before = hosts.get(url)
    if before is not None and before.state == SERVING:
        return Step(dict(hosts), changed=False)
    if before is not None and before.by != by:
        return Step(
            dict(hosts), changed=False, left_out=f"it was taken out by {before.by}, who has to bring it back"
        )
    return Step({**hosts, url: Host(SERVING, by, now)}, changed=True)


def forget(hosts: Mapping[str, Host], url: str) -> Step:
    """Take a host out that does not exist any more."""
    return Step({other: host for other, host in hosts.items() if other != url}, changed=url in hosts)


class Records:
    """The two files, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.hosts_file = folder / "hosts.json"
        self.manifest_file = folder / "workers.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep others away: several hosts of a batch are taken out at once, and each counts the rest."""
        with (self.hosts_file.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> dict[str, Host]:
        """All hosts by URL; none before the first one came.

        Where the record was removed, the manifest says who serves; who was taken out is forgotten.

        Raises:
            OperatorError: a file is damaged. To go on with none would let the gateway forget every host.
        """
        try:
            text = self.hosts_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return self._served()
        try:
            return {url: Host(**entry) for url, entry in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise OperatorError(
                f"{self.hosts_file} cannot be read",
                found=str(error),
                expected="the hosts of the gateway, as Ansible wrote them",
                remedy=f"remove it, and run again: {self.manifest_file} says who serves. What an operator has taken "
                "out is to be taken out again",
            ) from None

    def _served(self) -> dict[str, Host]:
        try:
            text = self.manifest_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        since = self.manifest_file.stat().st_mtime
        try:
            return {worker["url"]: Host(SERVING, "rollout", since) for worker in json.loads(text)["workers"]}
        except (ValueError, TypeError, KeyError) as error:
            raise OperatorError(
                f"{self.manifest_file} cannot be read",
                found=f"{type(error).__name__}: {error}, and no {self.hosts_file.name} beside it",
                expected="a manifest of smg, as Ansible wrote it",
                remedy="remove it, and run site.yml, which puts the hosts in again one after the other",
            ) from None

    def write(self, hosts: Mapping[str, Host]) -> None:
        """The record first: a run that is killed in between leaves a manifest that the next one mends."""
        entries = {url: asdict(host) for url, host in sorted(hosts.items())}
        replace(self.hosts_file, json.dumps(entries, indent=2) + "\n")
        replace(self.manifest_file, manifest(hosts))

    def manifest_is(self, hosts: Mapping[str, Host]) -> bool:
        """Whether the manifest is what the hosts make it."""
        try:
            return self.manifest_file.read_text(encoding="utf-8") == manifest(hosts)
        except OSError:
            return False


def manifest(hosts: Mapping[str, Host]) -> str:
    """smg's manifest: who serves. It takes no other fields."""
    workers = [{"url": url} for url, host in sorted(hosts.items()) if host.state == SERVING]
    return json.dumps({"version": 1, "workers": workers}, indent=2) + "\n"


@dataclass(frozen=True)
class Worker:
    """What smg makes of a host.

    Attributes:
        status: ``ready``, ``draining``, ...
        load: how many requests it has sent there that are open.
    """

    status: str
    load: int


@dataclass(frozen=True)
class Access:
    """How a gateway is reached from its own host.

    Attributes:
        url: where it answers.
        key: of its control plane.
        records: the two files.
    """

    url: str
    key: str
    records: Records

    @classmethod
    def read(cls, config: Path) -> Access:
        """From the gateway's configuration folder.

        Raises:
            OperatorError: there is no gateway of this project on this host.
        """
        try:
            settings = json.loads((config / "settings.json").read_text(encoding="utf-8"))
            key = (config / "control.key").read_text(encoding="utf-8").strip()
            host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings["host"], settings["host"])
            manifest_file = Path(settings["discovery_file"])
        except (OSError, ValueError, KeyError) as error:
            raise OperatorError(
                f"{config} does not say how the gateway of this host is reached",
                found=f"{type(error).__name__}: {error}",
                expected="the settings that the role gateway writes",
                remedy="ansible-playbook site.yml -i <inventory> --limit sglang_gateways, or take this host out of "
                "sglang_gateways",
            ) from None
        address = f"[{host}]" if ":" in host else host
        return cls(f"http://{address}:{settings['port']}", key, Records(manifest_file.parent))

    def workers(self) -> dict[str, Worker]:
        """What the gateway makes of its workers, by URL.

        Raises:
            OperatorError: it does not answer.
        """
        request = urllib.request.Request(
            f"{self.url}/workers", headers={"Authorization": f"Bearer {self.key}"}
        )
        # The gateway is this very host: a proxy from the environment must not be asked.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=API_TIMEOUT) as answer:
                said: dict[str, Any] = json.load(answer)
            return {
                worker["url"]: Worker(worker["status"], int(worker["load"])) for worker in said["workers"]
            }
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise OperatorError(
                f"The gateway at {self.url} does not say which workers it has",
                found=f"{type(error).__name__}: {error}",
                expected="an answer to GET /workers",
                remedy="look at systemctl status sglang-gateway, then run again",
            ) from None


def arrived(state: str, url: str, workers: Mapping[str, Worker]) -> bool:
    """Whether the gateway does what was asked: sends requests to a host, or sends it no new ones."""
    return (url in workers and workers[url].status == READY) is (state == SERVING)
