"""Fetching one wheel from a simple index (PEP 503), for a host that has no installer yet."""

from __future__ import annotations

import base64
import shutil
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from .errors import OperatorError
from .lock import Pin


class _Links(HTMLParser):
    """The href of every link of a simple index page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for key, value in attrs if key == "href" and value]


def download(pin: Pin, indexes: Sequence[str], to: Path) -> None:
    """Fetch one wheel from the first simple index that has it. The caller compares the checksum."""
    tried = []
    for index in indexes:
        address, login = _login(index)
        page = f"{address.rstrip('/')}/{pin.name}/"
        try:
            with _open(page, login) as answer:
                links = _Links()
                links.feed(answer.read().decode())
                base = answer.geturl()
            for link in links.found:
                url = urllib.parse.urljoin(base, link)
                if urllib.parse.unquote(urllib.parse.urlsplit(url).path).endswith("/" + pin.filename):
                    same = urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(address).netloc
                    with _open(url, login if same else {}) as answer, to.open("wb") as copy:
                        shutil.copyfileobj(answer, copy)
                    return
            tried.append(f"{page} does not have it")
        except OSError as error:
            tried.append(f"{page}: {error}")
    raise OperatorError(
        f"{pin.filename} cannot be downloaded",
        found="; ".join(tried) or "no index",
        remedy="set sglang_stack_indexes to one that this host reaches, or sglang_stack_bundle to a bundle",
    )


def _login(index: str) -> tuple[str, dict[str, str]]:
    """The address of an index without name and password, and the header that carries them instead."""
    parts = urllib.parse.urlsplit(index)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return index, {}
    token = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {token}"}


def _open(url: str, headers: Mapping[str, str]) -> Any:
    request = urllib.request.Request(url)
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    return urllib.request.urlopen(request, timeout=60)
