"""URLs of servers: one place that knows brackets of IPv6 addresses, wildcards and what a gateway takes."""

from __future__ import annotations

import ipaddress
import re
from typing import Any
from urllib.parse import urlsplit

from .errors import OperatorError

# Underscores are in no name of DNS, and in names of machines.
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
# The last label decides: WHATWG's URL, and with it a gateway, takes such a name for an IPv4 address.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _bare(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def http_url(host: str, port: Any) -> str:
    """The URL of a host: an IPv6 address gets its brackets.

    Args:
        host: a name or an address, with brackets or without.
        port: the TCP port.
    """
    bare = _bare(str(host).strip())
    if ":" in bare:
        # A zone (fe80::1%eth0) is written as RFC 6874 has it.
        bare = f"[{bare.replace('%25', '%').replace('%', '%25')}]"
    return f"http://{bare}:{port}"


def local_url(host: str, port: Any) -> str:
    """The URL at which a machine reaches its own server.

    Args:
        host: where the server listens; a wildcard, also an empty one, is reached at the loopback.
        port: the TCP port.
    """
    bare = _bare(str(host).strip())
    address = _address(bare)
    if not bare or (address is not None and address.is_unspecified):
        bare = "::1" if isinstance(address, ipaddress.IPv6Address) else "127.0.0.1"
    return http_url(bare, port)


def worker_url(given: str) -> str:
    """The URL of a host as a gateway writes it: ``http://HOST:PORT`` in lower case, an IPv6 address at its shortest.

    smg 1.13.0 refuses a whole manifest for one entry that it does not take, so a URL is judged before it is written.

    Raises:
        OperatorError: it is not such a URL.
    """
    text = given.strip()
    try:
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not text.lower().startswith(("http://", "https://")):
            raise ValueError("it does not begin with http:// or https://")
        if parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError("it is more than a host and a port")
        if any(letter.isspace() or not letter.isprintable() for letter in text):
            raise ValueError("it has a blank in it")
        netloc = parts.netloc
        if re.search(r"[\[\]]", netloc) and not re.fullmatch(r"\[[^\[\]]*\](:.*)?", netloc):
            raise ValueError("it is more than an address in brackets and a port")
        colons = netloc.rpartition("]")[2].count(":")
        if colons > 1:
            raise ValueError("an IPv6 address in a URL is in brackets")
        if not parts.port or colons != 1:
            raise ValueError("it names no port from 1 to 65535")
        return f"{parts.scheme}://{_host(parts.hostname or '', '[' in netloc)}:{parts.port}"
    except ValueError as error:
        raise OperatorError(
            f"{given!r} is not the address of a host as a gateway uses it",
            found=str(error),
            expected="for example http://192.0.2.11:30000 or http://[2001:db8::11]:30000",
            remedy="set ansible_host of the host, or rollout_worker_url, to what the gateways reach; by hand: "
            "worker=http://HOST:PORT",
        ) from None


def _host(host: str, bracketed: bool) -> str:
    if "%" in host and bracketed:
        raise ValueError("an address of one link is known to one machine only, and no gateway takes a zone")
    address = _address(host)
    if bracketed and not isinstance(address, ipaddress.IPv6Address):
        raise ValueError(f"{host!r} is no IPv6 address")
    if address is None:
        return _name(host)
    if address.is_unspecified:
        raise ValueError("a wildcard is where a server listens, and not where it is reached")
    if isinstance(address, ipaddress.IPv6Address):
        # One that holds an IPv4 address is written in two ways, by Python's versions as well.
        return str(address.ipv4_mapped) if address.ipv4_mapped else f"[{address}]"
    return str(address)


def _name(name: str) -> str:
    try:
        written = name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError(f"{name!r} is no name of a host") from None
    labels = written.lower().removesuffix(".").split(".")
    if len(written) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{name!r} is no name of a host")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError(f"{name!r} is neither an IPv4 address nor a name")
    return written.lower()
