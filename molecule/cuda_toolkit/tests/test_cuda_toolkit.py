"""The toolkit of a release compiles for the GPUs, for the user that the server runs as."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

KERNEL = "__global__ void scale(float *x) { x[threadIdx.x] *= 2; }"


@pytest.fixture(scope="module")
def home(host: Host) -> str:
    found: str = host.check_output(
        "echo /opt/sglang/releases/*/venv/lib/python3.11/site-packages/nvidia/cu13"
    )
    return found


def test_nvcc_is_of_cuda_13_0(host: Host, home: str) -> None:
    assert "release 13.0, V13.0.88" in host.check_output(f"{home}/bin/nvcc --version")


def test_the_service_user_compiles_for_sm_120a(host: Host, home: str) -> None:
    compiled = host.check_output(
        "runuser -u sglang -- sh -c %s",
        f"cd $(mktemp -d) && echo '{KERNEL}' > k.cu && {home}/bin/nvcc -arch=sm_120a -cubin -o k.cubin k.cu"
        " && od -A n -t u1 -j 49 -N 1 k.cubin",
    )
    # Byte 1 of e_flags: the architecture that the code is for.
    assert int(compiled) == 120


def test_kernels_link_against_the_cuda_runtime(host: Host, home: str) -> None:
    assert host.file(f"{home}/lib64/libcudart.so").exists


def test_the_proof_is_on_record(host: Host) -> None:
    record = json.loads(host.check_output("cat /opt/sglang/releases/*/toolkit.json"))
    assert record["compiler"] == "13.0.88"
