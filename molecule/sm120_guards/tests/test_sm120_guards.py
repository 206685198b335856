"""Each guard reads as it should, and nothing else of the installation changed."""

from __future__ import annotations

import pytest
from testinfra.host import Host

PACKAGES = "/opt/other/lib/python3.11/site-packages"

# File, a line that must be there, and how often the project's marker stands in the file.
EXPECTED = [
    ("flashinfer/jit/comm.py", "        supported_major_versions=[9, 10, 12]", 1),
    (
        "sglang/srt/distributed/device_communicators/torch_symm_mem.py",
        "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES:",
        1,
    ),
    (
        "sglang/srt/layers/communicator.py",
        "(_is_sm90_supported or _is_sm100_supported or _is_sm120_supported)",
        2,
    ),
    (
        "sglang/srt/layers/deep_gemm_wrapper/configurer.py",
        "DEEPGEMM_BLACKWELL and not is_sm120_supported()",
        1,
    ),
    (
        "sglang/srt/model_executor/cuda_graph_runner.py",
        "self.model_runner.eagle_aux_hidden_state_layer_ids",
        1,
    ),
    ("sglang/srt/models/deepseek_v2.py", "captured_aux_hidden_states.append(residual.clone())", 5),
]


@pytest.mark.parametrize(("file", "line", "hunks"), EXPECTED, ids=[file for file, _, _ in EXPECTED])
def test_the_file_is_patched(host: Host, file: str, line: str, hunks: int) -> None:
    text = host.file(f"{PACKAGES}/{file}").content_string
    assert line in text
    assert text.count("# BEGIN blackwell patch: ") == text.count("# END blackwell patch: ") == hunks


def test_no_other_file_is_patched(host: Host) -> None:
    found = host.check_output("grep --recursive --files-with-matches 'blackwell patch' %s", PACKAGES).split()
    assert sorted(found) == sorted(f"{PACKAGES}/{file}" for file, _, _ in EXPECTED)


@pytest.mark.parametrize("file", [file for file, _, _ in EXPECTED])
def test_the_file_is_still_python(host: Host, file: str) -> None:
    host.check_output(
        "python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' %s", f"{PACKAGES}/{file}"
    )
