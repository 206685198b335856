"""Steps about a rollout: site.yml to its receipt and once more, the other playbooks, and what befalls the service."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from blackwell import release as releases
from blackwell.seal import write_marker

from .rig import HOST_PYTHON, ROOT, VERSION, Rig, dump, environment, image, patch_default, patch_ids, query
from .runner import Failed, NotRun
from .servers import ask

HOST = "gpu-tests"
LOCAL = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": HOST_PYTHON}
PORT = 30900
KEY, ADMIN_KEY = "gpu-tests-client-0123456789abcdef", "gpu-tests-admin-0123456789abcdef"
URL = f"http://127.0.0.1:{PORT}"
NAMESPACE = ROOT / "tests" / "gpu" / "namespace.sh"
TOOLKITS = (Path("/usr/local/cuda-13.0"), Path("/usr/local/cuda"))


class Host:
    """The machine as the project's playbooks see it: with systemd, its own or one in a namespace."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.root = rig.work / "opt"
        self.inventory = rig.work / "inventory" / "hosts.yml"

    @property
    def into(self) -> list[str]:
        """The command that goes before another one to run it where systemd is."""
        folder = self.rig.work / "namespace"
        return [str(NAMESPACE), "enter", str(folder)] if (folder / "pid").exists() else []

    def start(self) -> dict[str, Any]:
        """Find systemd, or start one in a namespace.

        Raises:
            NotRun: there is none.
        """
        if self.into:
            return {"systemd": "in a namespace"}
        if Path("/run/systemd/system").is_dir():
            if Path("/etc/sglang").exists() and not (self.rig.work / "deployed").exists():
                raise NotRun(
                    "/etc/sglang is there: this machine has a deployment, which a test may not touch"
                )
            (self.rig.work / "deployed").touch()
            return {"systemd": "the machine's own"}
        if not Path("/lib/systemd/systemd").exists():
            self._unpack()
        started = subprocess.run(
            [NAMESPACE, "start", self.rig.work / "namespace"], capture_output=True, text=True, timeout=120
        )
        if started.returncode != 0:
            raise Failed("no systemd in a namespace", {"log": started.stderr[-3000:]})
        return {"systemd": f"in a namespace, {started.stdout.strip()}"}

    def _unpack(self) -> None:
        """Put systemd where there is none: its own files, and the libraries that the machine lacks."""
        archive = self.rig.packages.parent / "systemd.tar.xz"
        if not archive.exists():
            raise NotRun(f"there is no systemd, and no {archive}")
        draft = self.rig.work / "systemd"
        draft.mkdir(exist_ok=True)
        subprocess.run(["tar", "--extract", "--file", archive, "--directory", draft], check=True)
        known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
        for path in sorted(draft.rglob("*")):
            place = Path("/") / path.relative_to(draft)
            if path.is_dir() and not path.is_symlink():
                continue
            library = re.match(r"(.*\.so\.\d+)", path.name)
            if library and "/systemd/" not in str(path):
                # By the name that programs ask for: an older one beside the machine's own would be taken instead.
                if f"\t{library[1]} " in known:
                    continue
                place = Path("/usr/local/lib") / path.name
            if not place.exists() and not place.is_symlink():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, place, follow_symlinks=False)
        subprocess.run(["ldconfig"], check=True)

    def run(self, *command: str, limit_s: float = 120) -> subprocess.CompletedProcess[str]:
        """A command where systemd is."""
        return subprocess.run([*self.into, *command], capture_output=True, text=True, timeout=limit_s)

    def play(self, log: str, playbook: str, *given: str, limit_s: float = 900) -> Any:
        """A playbook on this host."""
        return self.rig.play(
            log, playbook, "--inventory", str(self.inventory), *given, into=self.into, limit_s=limit_s
        )

    def unit(self) -> str:
        """The unit that runs."""
        for profile in ("eagle3", "baseline"):
            if self.run("systemctl", "is-active", f"sglang@{profile}.service").stdout.strip() == "active":
                return f"sglang@{profile}.service"
        raise Failed(
            "no unit of SGLang is active", {"units": self.run("systemctl", "list-units", "sglang*").stdout}
        )

    def shown(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit."""
        said = self.run("systemctl", "show", unit, f"--property={','.join(properties)}").stdout
        return dict(line.partition("=")[::2] for line in said.splitlines())

    def write_inventory(self) -> None:
        """The inventory: what differs from inventory/blackwell is what the machine asks for."""
        name, _memory, capability = query("name", "memory.total", "compute_cap")[0]
        variables = {**settings(self.rig), **self._of_card(name, capability)}
        servers = {
            "hosts": {HOST: LOCAL},
            "vars": variables,
        }
        dump(self.inventory, {"sglang_servers": servers})

    @staticmethod
    def _of_card(name: str, capability: str) -> dict[str, Any]:
        number = capability.replace(".", "")
        return {
            "preflight_gpu_models": [name],
            "preflight_compute_capability": capability,
            "preflight_gpu_memory_gib": 8,
            "cuda_toolkit_architecture": f"sm_{number}a",
            "eagle3_server_extra_environment": {
                "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
                "FLASHINFER_CUDA_ARCH_LIST": f"{capability}a",
            },
        }


def settings(rig: Rig) -> dict[str, Any]:
    """Variables of the project for a tiny model on one card."""
    kinds, version = patch_ids(rig.project), f"{sys.version_info[0]}.{sys.version_info[1]}"
    toolkit = next((path for path in TOOLKITS if path.exists()), None)
    if toolkit is None:
        raise NotRun("there is no CUDA toolkit in /usr/local/cuda")
    return {
        "sglang_stack_version": VERSION,
        "sglang_stack_python": version,
        "sglang_stack_root": str(rig.work / "opt"),
        "sglang_stack_lock": str(rig.work / "lock.txt"),
        "sglang_stack_packages": ["g++"],
        "sglang_stack_required_space": 2,
        "cuda_toolkit_source": "present",
        "cuda_toolkit_path": str(toolkit),
        "model_patches_enabled": {name: patch_default(rig.project, name) for name in kinds.get("model", [])},
        "sm120_guards_enabled": {name: patch_default(rig.project, name) for name in kinds.get("guard", [])},
        "eagle3_server_profile": "auto",
        "eagle3_server_port": PORT,
        "eagle3_server_api_key": KEY,
        "eagle3_server_admin_api_key": ADMIN_KEY,
        "eagle3_server_model_path": str(rig.models / "kimi"),
        "eagle3_server_draft_model_path": str(rig.models / "eagle3"),
        "eagle3_server_served_model_name": "kimi",
        "eagle3_server_tensor_parallel_size": 1,
        "eagle3_server_quantization": None,
        "eagle3_server_tool_call_parser": None,
        "eagle3_server_reasoning_parser": None,
        "eagle3_server_context_length": 16384,
        "eagle3_server_allow_overwrite_longer_context_len": True,
        "eagle3_server_mem_fraction_static": 0.3,
        "eagle3_server_max_running_requests": 8,
        "eagle3_server_cuda_graph_max_bs": 8,
        "eagle3_server_extra_arguments": {
            "max_total_tokens": 131072,
            "mm_attention_backend": "sdpa",
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
        },
        "eagle3_server_start_timeout": 300,
        "eagle3_server_prepare_timeout": 30,
        "eagle3_server_poll_interval": 1,
        "eagle3_server_drain_timeout": 60,
        "eagle3_server_silence_limit": 60,
        "rollout_refuse_connections": False,
        "rollout_receipts": str(rig.work / "state" / "receipts"),
        "rollout_controller_receipts": str(rig.work / "reports" / "receipts"),
        "model_weights_state": str(rig.work / "state" / "models"),
        "throughput_check_state": str(rig.work / "state" / "throughput"),
        "throughput_check_reports": str(rig.work / "reports" / "throughput"),
        "throughput_check_concurrency": [1, 8],
        "throughput_check_long_concurrency": [],
        "throughput_check_output_tokens": 128,
        "throughput_check_runs_max": 5,
        # The model is as quick as the host's single cores: this is about logic.
        "throughput_check_floors": {
            profile: {"1": {"decode_tok_s": 50}, "8": {"decode_tok_s": 10}}
            for profile in ("eagle3", "baseline")
        },
        "throughput_check_standing": False,
        "preflight_memory_gib": 8,
        "preflight_report_directory": str(rig.work / "reports" / "preflight"),
        "host_tuning_persistence": False,
        "host_tuning_block_driver_upgrades": False,
    }


def write_lock(rig: Rig) -> None:
    """A lock of what lies in the folder of packages. Those of PyTorch are the machine's, and not among them."""
    told = {}
    listing = rig.packages.parent / "packages.json"
    if listing.exists():
        told = {each["name"]: each for each in json.loads(listing.read_text(encoding="utf-8"))}
    lines = [
        f"# sglang: {VERSION}",
        "# engine: cuda",
        f"# python: {sys.version_info[0]}.{sys.version_info[1]}",
    ]
    lines += [
        "# platform: manylinux_2_39_x86_64",
        "# without: sgl-kernel flashinfer-cubin torch torchvision torchaudio",
    ]
    for path in sorted(rig.site.glob("*.dist-info")):
        name, _, version = path.name.removesuffix(".dist-info").rpartition("-")
        name = re.sub(r"[-_.]+", "-", name).lower()
        wheel = told.get(
            name, {"filename": f"{name}-{version}-py3-none-any.whl", "size": 0, "sha256": "0" * 64}
        )
        lines.append(
            f"{name}=={version} --hash=sha256:{wheel['sha256']}  # {wheel['filename']} {wheel['size']}"
        )
    (rig.work / "lock.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def stage(rig: Rig) -> dict[str, Any]:
    """Put the packages where staging would install them from a lock, so that site.yml finds them and goes on."""
    write_lock(rig)
    given, version = settings(rig), f"{sys.version_info[0]}.{sys.version_info[1]}"
    lock = releases.read_lock(rig.work / "lock.txt", sglang=VERSION, engine="cuda", python=version)
    planned = releases.plan(
        root=given["sglang_stack_root"],
        lock=lock,
        patches=dict.fromkeys(("model", "guard"), rig.project / "files" / "patches"),
        enabled={"model": given["model_patches_enabled"], "guard": given["sm120_guards_enabled"]},
        engine_files=rig.project / "files" / "engines" / "cuda" / "site-packages",
        toolkit="present",
    )
    folder = Path(planned["path"])
    if not (folder / "lock.txt").exists():
        packages = environment(folder / "venv", [image()])
        shutil.copytree(rig.site, packages, symlinks=True, dirs_exist_ok=True)
        # Kernels are compiled by it, and the service looks for it beside its interpreter.
        (folder / "venv" / "bin" / "ninja").symlink_to(packages / "bin" / "ninja")
        write_marker(folder / "venv", lock=lock.digest, python=sys.executable, proved=False)
        shutil.copy(rig.work / "lock.txt", folder / "lock.txt")
    return {"release": planned["id"]}


def deploy(rig: Rig, host: Host) -> dict[str, Any]:
    """site.yml with profile auto, to its receipt."""
    about = host.start()
    about |= stage(rig)
    host.write_inventory()
    started = time.monotonic()
    play = host.play("site-1", "site.yml")
    figures = {**about, "seconds": round(time.monotonic() - started), "tasks": play.counts()}
    play.require_success()
    receipts = sorted(Path(rig.work / "state" / "receipts").rglob("*.json"))
    if not receipts:
        raise Failed("site.yml wrote no receipt", figures)
    receipt = json.loads(receipts[-1].read_text(encoding="utf-8"))
    shutil.copy(receipts[-1], rig.logs / "receipt.json")
    figures["receipt"] = {
        "outcome": receipt.get("outcome"),
        "serves": receipt.get("serves"),
        "verdict": (receipt.get("verdict") or {}).get("headline"),
        "choice": (receipt.get("choice") or {}).get("reason"),
    }
    if receipt.get("outcome") != "accepted":
        raise Failed("the receipt does not say that the release was accepted", figures)
    figures["answer"] = answer()
    return figures


def answer() -> str:
    """What the deployed server says to Hello."""
    body = {
        "model": "kimi",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 24,
        "temperature": 0,
    }
    said = ask(f"{URL}/v1/chat/completions", body, key=KEY)
    return str(said["choices"][0]["message"]["content"])


def deploy_again(rig: Rig, host: Host) -> dict[str, Any]:
    """A second site.yml changes nothing and restarts nothing."""
    unit = host.unit()
    before = host.shown(unit, "MainPID", "ActiveEnterTimestampMonotonic")
    started = time.monotonic()
    play = host.play("site-2", "site.yml")
    figures = {"seconds": round(time.monotonic() - started), "tasks": play.counts(), "unit": unit}
    play.require_success()
    if play.counts().get("changed") != 0:
        figures["said"] = "\n".join(line for line in play.text.splitlines() if line.startswith("changed:"))
        raise Failed(f"{play.counts().get('changed')} tasks of the second run changed something", figures)
    if host.shown(unit, "MainPID", "ActiveEnterTimestampMonotonic") != before:
        raise Failed("the second run restarted the server", figures)
    return figures


def other_playbook(host: Host, name: str, *given: str) -> dict[str, Any]:
    """A playbook that looks at, measures or mends what serves, and finds nothing to change on it."""
    started = time.monotonic()
    play = host.play(f"playbook-{name}", f"playbooks/{name}.yml", *given)
    figures = {"seconds": round(time.monotonic() - started), "tasks": play.counts()}
    play.require_success()
    return figures


def drain(host: Host) -> dict[str, Any]:
    """A stream that is open when the unit is stopped comes to its end, and the stop counts as a clean one."""
    unit, stream = host.unit(), Stream(1500)
    stream.start()
    time.sleep(1.0)
    started = time.monotonic()
    stopping = subprocess.Popen([*host.into, "systemctl", "stop", unit])
    health: list[str] = []
    while stopping.poll() is None:
        status = health_status()
        if not health or health[-1].split()[-1] != status:
            health.append(f"{time.monotonic() - started:.1f} s {status}")
        time.sleep(0.2)
    took = time.monotonic() - started
    stream.join(5)
    stopped = host.shown(unit, "Result", "ExecMainStatus")
    figures = {
        "stop took s": round(took, 1),
        "tokens of the open stream": stream.tokens,
        "ended with": stream.finish or stream.error,
        "health meanwhile": health,
        "unit": stopped,
    }
    start(host, unit)
    if stream.finish != "length" or stream.tokens != stream.wanted:
        raise Failed("the open stream was cut off", figures)
    if stopped["Result"] != "success":
        raise Failed("a stop that was waited for counts as a failure", figures)
    return figures


def start(host: Host, unit: str, limit_s: float = 240) -> float:
    """Start a unit and wait until it answers; seconds."""
    started = time.monotonic()
    host.run("systemctl", "reset-failed", unit)
    host.run("systemctl", "start", unit, limit_s=limit_s)
    wait(limit_s)
    return time.monotonic() - started


def wait(limit_s: float) -> float:
    """Seconds until a request is answered.

    Raises:
        Failed: it is not in time.
    """
    started = time.monotonic()
    while time.monotonic() - started < limit_s:
        try:
            answer()
            return time.monotonic() - started
        except (OSError, urllib.error.URLError, KeyError, TypeError):
            time.sleep(0.5)
    raise Failed(f"no answer within {limit_s:.0f} s")


def health_status() -> str:
    """The status of /health, or what kept it from having one."""
    try:
        ask(f"{URL}/health", key=KEY, timeout=3)
        return "200"
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return type(getattr(error, "reason", error)).__name__


class Stream(threading.Thread):
    """One long request whose tokens are read as they come."""

    def __init__(self, wanted: int) -> None:
        super().__init__(daemon=True)
        self.wanted, self.tokens, self.finish, self.error = wanted, 0, "", ""

    def run(self) -> None:
        """Read to the end."""
        body = {
            "text": "import os\n",
            "stream": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": self.wanted, "ignore_eos": True},
        }
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        request = urllib.request.Request(f"{URL}/generate", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as lines:
                for line in lines:
                    if line.startswith(b"data: {"):
                        told = json.loads(line[6:])["meta_info"]
                        self.tokens = told["completion_tokens"]
                        self.finish = (told.get("finish_reason") or {}).get("type", "")
        except (OSError, ValueError, KeyError) as error:
            self.error = repr(error)


def processes(host: Host, unit: str) -> dict[int, str]:
    """The unit's processes by what they call themselves; numbers are those of the namespace that systemd is in."""
    group = host.shown(unit, "ControlGroup")["ControlGroup"]
    script = 'for p in $(cat "/sys/fs/cgroup$1/cgroup.procs"); do echo "$p $(tr "\\0" " " <"/proc/$p/cmdline")"; done'
    said = host.run("bash", "-c", script, "-", group).stdout
    return {int(line.split()[0]): line.partition(" ")[2] for line in said.splitlines() if line.strip()}


def killed_scheduler(host: Host) -> dict[str, Any]:
    """A scheduler that is killed ends the server, and systemd starts it again."""
    return _restarts(host, "KILL", 240)


def watchdog(host: Host) -> dict[str, Any]:
    """A scheduler that hangs is noticed after the limit of silence, and systemd starts the server again."""
    return _restarts(host, "STOP", 300)


def _restarts(host: Host, sent: str, limit_s: float) -> dict[str, Any]:
    unit = host.unit()
    before = host.shown(unit, "MainPID", "NRestarts")
    schedulers = [number for number, name in processes(host, unit).items() if "scheduler" in name]
    if not schedulers:
        raise Failed("the unit has no scheduler", {"processes": processes(host, unit)})
    host.run("kill", f"-{sent}", *map(str, schedulers))
    started = time.monotonic()
    while host.shown(unit, "MainPID")["MainPID"] in (before["MainPID"], "0"):
        if time.monotonic() - started > limit_s:
            raise Failed(
                f"not started again within {limit_s:.0f} s",
                {"unit": host.shown(unit, "MainPID", "NRestarts")},
            )
        time.sleep(0.5)
    noticed = time.monotonic() - started
    wait(limit_s)
    return {
        "seconds until a new process": round(noticed, 1),
        "seconds until an answer": round(time.monotonic() - started, 1),
        "restarts": f"{before['NRestarts']} -> {host.shown(unit, 'NRestarts')['NRestarts']}",
    }
