"""The installation is patched, and its service was started again for that, once in all runs."""

from __future__ import annotations

from testinfra.host import Host

PACKAGES = "/opt/other/lib/python3.11/site-packages"
UNIT = "other.service"


def patched(host: Host) -> list[str]:
    found: str = host.check_output("grep --recursive --files-with-matches 'blackwell patch' %s", PACKAGES)
    return sorted(file.removeprefix(f"{PACKAGES}/") for file in found.split())


def test_what_is_on_by_default_is_in_place(host: Host) -> None:
    assert patched(host) == [
        "sglang/srt/distributed/device_communicators/torch_symm_mem.py",
        "sglang/srt/layers/deep_gemm_wrapper/configurer.py",
        "sglang/srt/model_executor/cuda_graph_runner.py",
        "sglang/srt/models/deepseek_v2.py",
        "sglang/srt/models/kimi_k25.py",
    ]


def test_the_process_is_newer_than_the_patched_files(host: Host) -> None:
    process = host.check_output("systemctl show --value --property=MainPID %s", UNIT)
    started = int(host.check_output("stat --format=%%Y /proc/%s", process))
    for file in patched(host):
        assert host.file(f"{PACKAGES}/{file}").mtime.timestamp() <= started


def test_it_was_restarted_once(host: Host) -> None:
    """It was started by hand, then for the patches; neither the runs after that nor check mode touched it."""
    journal = host.check_output("journalctl --unit=%s --output=cat --no-pager", UNIT)
    assert sum(line.startswith(f"Started {UNIT}") for line in journal.split("\n")) == 2
    assert host.service(UNIT).is_running


def test_it_answers(host: Host) -> None:
    assert host.check_output("curl --fail --silent http://127.0.0.1:30000/health") == "OK"
