"""Prove that a CUDA toolkit works, by using it as the just-in-time kernels will.

A compiler that answers ``--version`` can still be unable to compile: headers that are not installed, a host
compiler or a C library that it does not know. FlashInfer then fails at the first start, after minutes of
loading weights. So a small kernel is compiled for the target architecture, and linked as FlashInfer links its
own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import OperatorError
from .files import sha256
from .json_reader import find_object

_KERNEL = """
#include <cmath>
{includes}
__global__ void scale(float *values, float by) {{ values[threadIdx.x] *= cospif(by) + rsqrtf(by); }}
extern "C" int run(float *values) {{ scale<<<1, 32>>>(values, 2.0f); return (int)cudaDeviceSynchronize(); }}
"""


@dataclass(frozen=True)
class Toolkit:
    """A toolkit and what it has to be able to do.

    Attributes:
        home: its folder, the value of ``CUDA_HOME``.
        version: wanted release, ``major.minor``.
        architecture: what to compile for, for example ``sm_120a``.
        headers: headers that have to be there.
        wheels: whether it is made of PyPI's wheels, which lack the names that a linker looks for.
    """

    home: Path
    version: str
    architecture: str
    headers: tuple[str, ...]
    wheels: bool

    @property
    def nvcc(self) -> Path:
        return self.home / "bin" / "nvcc"

    @property
    def source(self) -> str:
        """The program that is compiled."""
        return _KERNEL.format(includes="\n".join(f"#include <{name}>" for name in self.headers))

    @property
    def present(self) -> bool:
        return self.nvcc.is_file()

    def missing_links(self) -> dict[Path, str]:
        """Names that a linker needs and PyPI's wheels do not have, with what each should point to."""
        if not self.wheels or not self.present:
            return {}
        wanted = {self.home / "lib64": "lib"}
        for library in sorted((self.home / "lib").glob("lib*.so.*")):
            name = library.name.split(".so.")[0] + ".so"
            wanted.setdefault(library.with_name(name), library.name)
        return {
            path: target
            for path, target in wanted.items()
            if not (path.is_symlink() and str(path.readlink()) == target) and not path.is_file()
        }

    def make_links(self) -> None:
        for path, target in self.missing_links().items():
            path.unlink(missing_ok=True)
            path.symlink_to(target)

    def digest(self) -> str:
        """Changes when the compiler, the host's compiler or the test itself changes."""
        host = shutil.which("c++")
        facts = [
            str(self.home),
            self.architecture,
            self.source,
            sha256(self.nvcc),
            f"{Path(host).resolve()} {Path(host).stat().st_size}" if host else "no c++",
        ]
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()

    def check_path(self) -> None:
        """Refuse a home that is not one fixed folder.

        Raises:
            OperatorError: it is relative, a link, or has characters that break a search path.
        """
        text = str(self.home)
        doubts = []
        if not self.home.is_absolute():
            doubts.append("not an absolute path")
        if re.search(r"[\s:]", text):
            doubts.append("it has a colon or a space, which a search path cannot hold")
        if self.home.is_symlink():
            doubts.append(
                f"a link to {self.home.resolve()}: whoever moves it changes the compiler of a running server"
            )
        if doubts:
            raise OperatorError(
                f"{text} cannot be the CUDA toolkit's folder",
                found="; ".join(doubts),
                expected=f"one folder, for example /usr/local/cuda-{self.version}",
                remedy="set cuda_toolkit_path",
            )

    def prove(self) -> str:
        """Check the version, compile and link. Returns the compiler's full version.

        Raises:
            OperatorError: any of it failed.
        """
        self.check_path()
        if not self.present:
            raise OperatorError(
                f"There is no CUDA toolkit in {self.home}",
                found=f"no {self.nvcc}",
                expected=f"CUDA {self.version}",
                remedy="install it, or set cuda_toolkit_source to wheels or apt",
            )
        answer = self._run([self.nvcc, "--version"], "nvcc does not start")
        release = re.search(r"release (\d+\.\d+), V(\S+)", answer)
        if not release or release[1] != self.version:
            raise OperatorError(
                f"{self.nvcc} is of another CUDA release",
                found=release[1] if release else answer.strip(),
                expected=self.version,
                remedy="set cuda_toolkit_path to the right one, or cuda_toolkit_source to wheels or apt",
            )
        if shutil.which("c++") is None:
            raise OperatorError(
                "There is no C++ compiler, and nvcc needs one",
                expected="c++ on the path",
                remedy="apt-get install g++",
            )
        with tempfile.TemporaryDirectory() as folder:
            source, compiled, linked = (Path(folder) / name for name in ("k.cu", "k.o", "k.so"))
            source.write_text(self.source, encoding="utf-8")
            virtual = self.architecture.replace("sm_", "compute_")
            gencode = f"-gencode=arch={virtual},code={self.architecture}"
            self._run(
                [self.nvcc, gencode, "--compiler-options=-fPIC", "-c", source, "-o", compiled],
                f"CUDA {self.version} in {self.home} cannot compile for {self.architecture}",
            )
            self._run(
                ["c++", compiled, "-shared", f"-L{self.home}/lib64", "-lcudart", "-o", linked],
                f"what CUDA {self.version} in {self.home} compiled cannot be linked",
            )
        return release[2]

    def _run(self, command: Sequence[str | Path], problem: str) -> str:
        result = subprocess.run(
            command,
            env={"PATH": os.environ.get("PATH", ""), "CUDA_HOME": str(self.home)},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if result.returncode:
            output = (result.stdout + result.stderr).strip()
            raise OperatorError(
                problem[0].upper() + problem[1:],
                found=output[-3000:] or f"exit status {result.returncode}",
                expected="exit status 0",
                remedy="install the missing packages, or use another cuda_toolkit_source",
            )
        return result.stdout


def read_record(path: Path) -> dict[str, str]:
    """What an earlier proof wrote; empty when there is none."""
    return find_object(path) or {}
