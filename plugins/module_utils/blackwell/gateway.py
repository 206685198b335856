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
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from shlex import quote
from typing import Any

from .address import local_url, worker_url
from .errors import OperatorError
from .files import replace
from .http_client import AnswerError, NoAnswerError, ask
from .json_reader import read_object

SERVING = "serving"
DRAINED = "drained"
ROLLOUT = "rollout"
OPERATOR = "operator"

READY = "ready"
DRAINING = "draining"
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

    One that is out already stays as it is: the one who took it out decides about its return. One that was never in
    stays out for a rollout, which may be its first; an operator means one that is in.

    Args:
        hosts: all hosts by URL.
        url: the host's address as the gateway uses it.
        by: who asks.
        now: seconds since the epoch.
        ready: URLs of the workers that the gateway takes for healthy.
        min_available: how many others have to be left that serve and are healthy, if this one is.

    Raises:
        OperatorError: too few would be left, or an operator names a host that the gateway does not know.
    """
    before = hosts.get(url)
    if before is None and by == OPERATOR:
        raise OperatorError(
            f"The gateway has no host {url}, so none is taken out",
            found=f"it has {', '.join(sorted(hosts)) or 'none'}",
            expected="one of its hosts",
            remedy="name one of them as worker",
        )
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


def usable(hosts: Mapping[str, Host]) -> tuple[dict[str, Host], list[str]]:
    """The hosts that a manifest may name, and the entries that it may not: smg refuses the whole of it for one.

    No gateway has ever sent a request to such an entry. Of two entries of one host that is out which is out.
    """
    taken: dict[str, Host] = {}
    refused = []
    for url, host in hosts.items():
        try:
            known = worker_url(url)
        except OperatorError:
            refused.append(url)
            continue
        if known not in taken or taken[known].state == SERVING:
            taken[known] = host
    return taken, sorted(refused)


class Records:
    """The two files, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.hosts_file = folder / "hosts.json"
        self.manifest_file = folder / "workers.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep others away: several hosts of a batch are taken out at once, and each counts the rest."""
        with (self.hosts_file.parent / ".lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> dict[str, Host]:
        """All hosts by URL; none before the first one came.

        Where the record was removed, the manifest says who serves; who was taken out is forgotten.

        Raises:
            OperatorError: a file is damaged. To go on with none would let the gateway forget every host.
        """
        if not self.hosts_file.exists():
            return self._served()
        remedy = (
            f"rm {quote(str(self.hosts_file))}, and run again: {self.manifest_file} says who serves. What an "
            "operator has taken out is to be taken out again"
        )
        entries = read_object(self.hosts_file, remedy=remedy)
        return {url: _host(entry, self.hosts_file, remedy) for url, entry in entries.items()}

    def _served(self) -> dict[str, Host]:
        if not self.manifest_file.exists():
            return {}
        remedy = (
            f"rm {quote(str(self.manifest_file))}, and run site.yml, which puts the hosts in again one after the "
            f"other; there is no {self.hosts_file.name} beside it"
        )
        since = self.manifest_file.stat().st_mtime
        workers = read_object(self.manifest_file, remedy=remedy).get("workers")
        if not isinstance(workers, list) or not all(
            isinstance(worker, dict) and isinstance(worker.get("url"), str) for worker in workers
        ):
            raise OperatorError(
                f"{self.manifest_file} is no manifest of smg",
                found=f"{workers!r:.200} as workers",
                expected="a list of workers, each with a url",
                remedy=remedy,
            )
        return {worker["url"]: Host(SERVING, ROLLOUT, since) for worker in workers}

    def write(self, hosts: Mapping[str, Host]) -> None:
        """The record first: a run that is killed in between leaves a manifest that the next one mends."""
        entries = {url: asdict(host) for url, host in sorted(hosts.items())}
        replace(self.hosts_file, json.dumps(entries, indent=2) + "\n")
        replace(self.manifest_file, manifest(hosts))

    def put_back(self, url: str, before: Host | None, written: Host | None) -> bool:
        """Undo a change of one host that smg has not made, unless somebody has changed that host since.

        Others may have come or gone meanwhile, so only this one is put back.

        Args:
            url: the host.
            before: what the record had before the change; None for nothing.
            written: what the change has written.

        Returns:
            Whether the record and the manifest are as they were for this host.
        """
        with self.held():
            hosts = self.read()
            if hosts.get(url) != written:
                return False
            hosts.pop(url, None)
            self.write({**hosts, **({url: before} if before else {})})
            return True

    def manifest_is(self, hosts: Mapping[str, Host]) -> bool:
        """Whether the manifest is what the hosts make it."""
        try:
            return self.manifest_file.read_bytes() == manifest(hosts).encode()
        except OSError:
            return False


def _host(entry: Any, file: Path, remedy: str) -> Host:
    if (
        not isinstance(entry, dict)
        or set(entry) != {"state", "by", "since"}
        or entry["state"] not in (SERVING, DRAINED)
        or entry["by"] not in (ROLLOUT, OPERATOR)
        or not isinstance(entry["since"], (int, float))
    ):
        raise OperatorError(
            f"{file} holds what is no host of a gateway",
            found=f"{entry!r:.200}",
            expected="state (serving or drained), by (rollout or operator) and since",
            remedy=remedy,
        )
    return Host(**entry)


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
            OperatorError: there is no gateway of this project on this host, or its settings are damaged.
        """
        remedy = (
            "ansible-playbook site.yml -i <inventory> --limit sglang_gateways, or take this host out of "
            "sglang_gateways"
        )
        settings = read_object(config / "settings.json", remedy=remedy)
        host, port, manifest_file = (settings.get(name) for name in ("host", "port", "discovery_file"))
        try:
            key = (config / "control.key").read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise OperatorError(
                f"{config / 'control.key'} cannot be read",
                found=str(error),
                expected="the key that the role gateway makes",
                # The role makes one only where there is none.
                remedy=f"rm -f {quote(str(config / 'control.key'))} on the gateway, then {remedy}",
            ) from None
        # No header can carry anything else.
        if not key or not key.isascii() or not key.isprintable():
            raise OperatorError(
                f"{config / 'control.key'} holds no key",
                found=f"{len(key)} characters, not all of them letters and digits",
                expected="the key that the role gateway makes",
                remedy=f"rm -f {quote(str(config / 'control.key'))} on the gateway, then {remedy}",
            )
        if not isinstance(host, str) or not isinstance(port, int) or not isinstance(manifest_file, str):
            raise OperatorError(
                f"{config / 'settings.json'} does not say how the gateway of this host is reached",
                found=f"host {host!r:.100}, port {port!r:.100}, discovery_file {manifest_file!r:.100}",
                expected="the settings that the role gateway writes",
                remedy=remedy,
            )
        return cls(local_url(host, port), key, Records(Path(manifest_file).parent))

    def workers(self) -> dict[str, Worker]:
        """What the gateway makes of its workers, by URL.

        Raises:
            OperatorError: it does not answer, or not with its workers.
        """
        try:
            answer = ask(f"{self.url}/workers", timeout=API_TIMEOUT, key=self.key)
            if answer.status != HTTPStatus.OK:
                raise AnswerError(f"status {answer.status}: {answer.text[:200]}")
            return read_workers(answer.json_object())
        except (NoAnswerError, AnswerError) as error:
            raise OperatorError(
                f"The gateway at {self.url} does not say which workers it has",
                found=str(error),
                expected="an answer to GET /workers",
                remedy="systemctl restart sglang-gateway, then run again; where it goes on, journalctl --unit "
                "sglang-gateway says why",
            ) from None


def read_workers(said: Mapping[str, Any]) -> dict[str, Worker]:
    """The workers in smg's answer to ``GET /workers``, by URL.

    Raises:
        AnswerError: it is no such answer.
    """
    workers = said.get("workers")
    if not isinstance(workers, list):
        raise AnswerError(f"an answer without a list of workers: {said!r:.200}")
    found = {}
    for worker in workers:
        url, status, load = (
            (worker.get("url"), worker.get("status"), worker.get("load"))
            if isinstance(worker, dict)
            else (None, None, None)
        )
        if not isinstance(url, str) or not isinstance(status, str) or type(load) is not int:
            raise AnswerError(f"a worker without url, status or load: {worker!r:.200}")
        found[url] = Worker(status, load)
    return found


def arrived(state: str, url: str, workers: Mapping[str, Worker]) -> bool:
    """Whether the gateway does what was asked: sends requests to a host, or sends it no new ones.

    A host that is taken out may be in any other state as long as the manifest is not read, and come to life.
    """
    if state == SERVING:
        return url in workers and workers[url].status == READY
    return url not in workers or workers[url].status == DRAINING
