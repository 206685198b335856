"""Small real wheels, and a real uv in one, so that installations are tried without any network."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import shutil
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blackwell.lock import Lock, Pin, render

PYTHON = "{}.{}".format(*sys.version_info)
PLATFORM = "manylinux_2_35_x86_64"

WheelMaker = Callable[..., Pin]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the wheels of a test are: the folder of a bundle."""
    wheels = tmp_path / "bundle" / "wheels"
    wheels.mkdir(parents=True)
    return wheels


def pin_of(path: Path) -> Pin:
    name, version, *_ = path.name.split("-")
    content = path.read_bytes()
    return Pin(name.replace("_", "-"), version, path.name, hashlib.sha256(content).hexdigest(), len(content))


def _recorded(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"sha256={digest},{len(text.encode())}"


@pytest.fixture
def make_wheel(folder: Path) -> WheelMaker:
    """Make a wheel of one module that says its version, and return its pin."""

    def make(name: str, version: str, requires: Iterable[str] = (), into: Path = folder) -> Pin:
        into.mkdir(parents=True, exist_ok=True)
        stem = f"{name.replace('-', '_')}-{version}"
        path = into / f"{stem}-py3-none-any.whl"
        info = f"{stem}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: MIT\n"
        files = {
            f"{name.replace('-', '_')}.py": f"version = {version!r}\n",
            f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {needed}\n" for needed in requires),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{file},{_recorded(text)}\n" for file, text in files.items()) + f"{info}/RECORD,,\n"
        with zipfile.ZipFile(path, "w") as wheel:
            for file, text in {**files, f"{info}/RECORD": record}.items():
                # A fixed time, so that the same wheel has the same checksum.
                wheel.writestr(zipfile.ZipInfo(file, (2020, 1, 1, 0, 0, 0)), text)
        return pin_of(path)

    return make


def wrap_uv(binary: Path, into: Path) -> Pin:
    """A wheel with an executable, as uv's wheel has one."""
    path = into / "uv-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(binary, "uv-1.0.data/scripts/uv")
        wheel.writestr(
            "uv-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 1.0\nLicense: MIT\n"
        )
    return pin_of(path)


@pytest.fixture
def uv(folder: Path, tmp_path: Path) -> Pin:
    """The uv that tests run with, as the wheel of a bundle: a script that calls it, since it is large."""
    script = tmp_path / "uv"
    script.write_text(f'#!/bin/sh\nexec {shutil.which("uv")} "$@"\n')
    return wrap_uv(script, folder)


LOGIN = "reader:s3cret/word"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A simple index on this machine: its address, and the folder in which one folder is a project.

    Below ``closed/`` it asks for LOGIN.
    """
    root = tmp_path / "index"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = "Basic " + base64.b64encode(LOGIN.encode()).decode()
            if self.path.startswith("/closed/") and self.headers.get("Authorization") != wanted:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="closed"')
                self.end_headers()
            else:
                super().do_GET()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", root
    server.shutdown()
    thread.join()
    server.server_close()


def lock_of(*pins: Pin, without: Iterable[str] = (), overrides: Iterable[str] = ()) -> tuple[Lock, str]:
    """A lock of these pins for the Python that runs the tests, and its text."""
    lock = Lock(
        sglang="0.5.9",
        engine="cpu",
        python=PYTHON,
        platform=PLATFORM,
        pins=pins,
        without=tuple(without),
        overrides=tuple(overrides),
    )
    return lock, render(lock)
