"""What a server is started with: the check of its settings and the files that hold them.

A *deployment* is a folder with everything that one start of one profile depends on: SGLang's arguments, the
environment, the unit and the two small programs that the unit runs. Its name carries a digest of that
content, so a folder never changes its meaning, and going back to an older deployment brings back all of its
settings.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .booleans import parse_environment_boolean
from .errors import OperatorError
from .free_form import (
    VARIABLE_OF,
    argument_doubts,
    argument_problems,
    canonical,
    environment_problems,
    name_problems,
    number,
    setting,
)

PROFILES = ("eagle3", "baseline")

# Stands in the unit for the folder of its deployment, whose name is known only once the unit's text is.
FOLDER_MARK = "@deployment@"

# With a draft model the weights of the drafter, the graphs and the vision tower live outside the static pool.
MEM_FRACTION_LIMIT = 0.90
MEM_FRACTION_DOUBTFUL = 0.85

SPECULATION_NUMBERS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")

# SGLang's own names for what a variable of ours sets. Nobody else calls anything so, and whoever knows SGLang writes
# them first. Left out are names that are too common to be SGLang's wherever they stand.
SGLANG_NAMES: Mapping[str, str] = {
    name: variable
    for name, variable in VARIABLE_OF.items()
    if name in ("tp_size", "mem_fraction_static", "cuda_graph_max_bs")
    or name.startswith(("moe_", "fp4_", "enable_flashinfer_", "speculative_"))
}
_ENVIRONMENTS = "eagle3_server_extra_environment or eagle3_server_nccl_environment"

# What an HTTP bearer token may hold (RFC 6750); it also keeps a key the same in YAML, in a header and in a
# repr().
KEY_FORM = re.compile(r"[A-Za-z0-9._~+/=-]{16,}")

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Characters that JSON leaves as they are and YAML takes for line breaks or refuses.
_YAML_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class SettingsError(OperatorError):
    """A setting that no file can be written from."""


def flag(name: str) -> str:
    """SGLang's command line flag for an argument: ``mem_fraction_static`` is ``--mem-fraction-static``."""
    return "--" + name.replace("_", "-")


def problems(
    profile: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, Any],
    *,
    engine: str,
    keys: Mapping[str, str] | None = None,
) -> list[str]:
    """Everything in a profile's settings that cannot work, each as one sentence; empty when all is well.

    Args:
        profile: ``eagle3`` or ``baseline``.
        arguments: SGLang's flags, written with underscores and without the leading dashes.
        environment: the environment variables of the server.
        engine: ``cuda`` or ``cpu``.
        keys: the API keys by flag name; no message repeats one.
    """
    # YAML takes a name like 1 or no for something else than text.
    arguments = {str(name): value for name, value in arguments.items() if value is not None}
    environment = {str(name): value for name, value in environment.items()}
    given = {canonical(name): value for name, value in arguments.items()}
    found = [
        *name_problems(arguments),
        *_path_problems(given),
        *_environment_problems(environment),
        *environment_problems(environment, engine),
        *argument_problems(given, profile, engine),
    ]
    if profile == "eagle3":
        found += _speculation_problems(given, environment)
    port = number(given.get("port", 30000))
    if port is None or not 1 <= port <= 65535:
        found.append(f"The port is {given['port']}, expected 1 to 65535; set eagle3_server_port")
    fraction = number(given.get("mem_fraction_static", 0.5))
    if fraction is None or not 0 < fraction < 1:
        found.append(
            f"mem_fraction_static is {given['mem_fraction_static']}, expected a share of the memory between 0 and 1; "
            "set eagle3_server_mem_fraction_static"
        )
    elif profile == "eagle3" and fraction > MEM_FRACTION_LIMIT:
        found.append(
            f"mem_fraction_static is {fraction}, at most {MEM_FRACTION_LIMIT} leaves room for the draft "
            "model and the graphs, which live outside the static pool; lower eagle3_server_mem_fraction_static"
        )
    for name in sorted({"api_key", "admin_api_key"} & set(given)):
        found.append(
            f"{name} is among the arguments, set eagle3_server_{name}, which is kept out of logs and diffs"
        )
    for name, key in sorted((keys or {}).items()):
        if key and not KEY_FORM.fullmatch(key):
            found.append(
                f"eagle3_server_{name} has characters that a bearer token cannot have, or fewer than 16 of "
                "them; make one with: openssl rand -hex 32"
            )
    return found


def doubts(
    profile: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, Any] | None = None,
    *,
    engine: str,
) -> list[str]:
    """What is legal and known to go wrong on some hosts, each as one sentence; arguments as for :func:`problems`."""
    given = {canonical(str(name)): value for name, value in arguments.items() if value is not None}
    found = []
    fraction = number(given.get("mem_fraction_static"))
    if profile == "eagle3" and fraction is not None and fraction > MEM_FRACTION_DOUBTFUL:
        found.append(
            f"mem_fraction_static is {fraction}: above {MEM_FRACTION_DOUBTFUL} servers with a draft model "
            "were reported to run out of memory at graph capture or under load; "
            "eagle3_server_mem_fraction_static sets it"
        )
    return found + (argument_doubts(given, environment or {}) if engine == "cuda" else [])


def _path_problems(arguments: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} is {arguments[name]!r}, expected the absolute path of a folder on the host; set {setting(name)}"
        for name in ("model_path", "speculative_draft_model_path")
        if name in arguments and not str(arguments[name]).startswith("/")
    ]


def _environment_problems(environment: Mapping[str, Any]) -> list[str]:
    found = []
    for name, value in environment.items():
        if value is None:
            continue
        if not _VARIABLE_NAME.fullmatch(name):
            found.append(
                f"{name!r} is not the name of an environment variable; correct it in {_ENVIRONMENTS}"
            )
        if isinstance(value, (list, dict)):
            found.append(
                f"The environment variable {name} is a {type(value).__name__}, expected one text; correct it in "
                f"{_ENVIRONMENTS}"
            )
        if str(value) == "":
            found.append(
                f"The environment variable {name} is empty; set it to null to leave it out, in {_ENVIRONMENTS}"
            )
        if re.search(r"[\0\n\r]", str(value)):
            found.append(
                f"The environment variable {name} holds a line break, which no environment file can carry; "
                f"correct it in {_ENVIRONMENTS}"
            )
    home = environment.get("CUDA_HOME")
    if home is not None and not re.fullmatch(r"/[^:\s]*[^:\s/]", str(home)):
        found.append(
            f"CUDA_HOME is {home!r}, expected one absolute folder without colon, blank or trailing slash "
            "(it is not a search path); set eagle3_server_cuda_home"
        )
    return found


def _speculation_problems(arguments: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
    found = []
    draft = arguments.get("speculative_draft_model_path")
    if not draft:
        found.append(
            "speculative_draft_model_path is not set, SGLang would load the target a second time; set "
            "eagle3_server_draft_model_path"
        )
    elif draft == arguments.get("model_path"):
        found.append(
            f"The draft model and the target are the same folder, {draft}; correct eagle3_server_draft_model_path"
        )
    if arguments.get("speculative_draft_attention_backend") is None:
        found.append(
            "speculative_draft_attention_backend is not set, the drafter would inherit the target's, which "
            "may be one for latent attention only; set eagle3_server_draft_attention_backend"
        )
    missing = [name for name in SPECULATION_NUMBERS if arguments.get(name) is None]
    if missing:
        found.append(
            f"{' and '.join(missing)} not set, SGLang takes the three numbers of speculation only together; "
            f"set {' and '.join(f'eagle3_server_{name}' for name in missing)}"
        )
        return found
    numbers = {name: number(arguments[name]) for name in SPECULATION_NUMBERS}
    wrong = [name for name, value in numbers.items() if value is None or not 1 <= value < 10_000 or value % 1]
    if wrong:
        return found + [
            f"{name} is {arguments[name]!r}, expected a whole number from 1; set {setting(name)}"
            for name in wrong
        ]
    steps, topk, tokens = (int(value) for value in numbers.values() if value is not None)
    if topk == 1 and tokens != steps + 1:
        found.append(
            f"speculative_num_draft_tokens is {tokens}, with speculative_eagle_topk 1 it has to be "
            f"speculative_num_steps + 1 = {steps + 1} (SGLang would change it without a word); "
            "set eagle3_server_speculative_num_draft_tokens"
        )
    if topk != 1 and parse_environment_boolean(environment.get("SGLANG_ENABLE_SPEC_V2", "0")):
        found.append(
            f"speculative_eagle_topk is {topk}, SGLANG_ENABLE_SPEC_V2 works only with 1; set "
            "eagle3_server_speculative_eagle_topk to 1, or eagle3_server_enable_spec_v2 to false"
        )
    return found


def render_config(arguments: Mapping[str, Any], keys: Mapping[str, str] | None = None) -> str:
    """SGLang's ``--config`` file: one ``flag: value`` a line, values in JSON, which YAML reads as they are.

    Arguments that are None are left out, mappings become a JSON string (that is how SGLang takes them), keys
    that
    are empty are left out. Argument names may be written with underscores or dashes.
    """
    lines = ["# Written by Ansible, read by: python -m sglang.launch_server --config"]
    seen: set[str] = set()
    for name, value in [*arguments.items(), *((name, key) for name, key in (keys or {}).items() if key)]:
        if value is None:
            continue
        entry = flag(name)[2:]
        if entry in seen:
            raise SettingsError(
                f"The argument {entry} is given twice",
                expected="one spelling, with underscores",
                remedy="remove one",
            )
        seen.add(entry)
        if isinstance(value, Mapping):
            value = json.dumps(value)
        elif isinstance(value, list):
            value = [json.dumps(item) if isinstance(item, Mapping) else item for item in value]
        lines.append(f"{entry}: {_YAML_UNSAFE.sub(_escape, json.dumps(value, ensure_ascii=False))}")
    return "\n".join(lines) + "\n"


def _escape(character: re.Match[str]) -> str:
    return f"\\u{ord(character.group()):04x}"


def read_config(text: str) -> dict[str, Any]:
    """The arguments in a file that :func:`render_config` wrote, by their names with underscores."""
    entries = (line.partition(": ") for line in text.split("\n") if line and not line.startswith("#"))
    return {name.replace("-", "_"): json.loads(value) for name, _, value in entries}


def render_environment(environment: Mapping[str, Any]) -> str:
    """A systemd ``EnvironmentFile``, every value in double quotes.

    Inside double quotes systemd takes a backslash before ``"``, ``\\``, a backtick or ``$`` as an escape and
    all
    else as it stands: blanks, ``#``, ``%`` and single quotes survive, and nothing is expanded
    (systemd.exec(5)).
    """
    lines = ["# Written by Ansible."]
    for name, value in environment.items():
        if value is None:
            continue
        text = str(value)
        if not _VARIABLE_NAME.fullmatch(name) or re.search(r"[\0\n\r]", text):
            raise SettingsError(
                f"The environment variable {name!r} cannot be written",
                expected="a name of letters, digits and underscores, and a value of one line",
                remedy="correct it in eagle3_server_extra_environment",
            )
        escaped = re.sub(r'(["\\`$])', r"\\\1", text)
        lines.append(f'{name}="{escaped}"')
    return "\n".join(lines) + "\n"


def unit_name(profile: str) -> str:
    """The systemd unit of a profile."""
    return f"sglang@{profile}.service"


@dataclass(frozen=True)
class Deployment:
    """One start's worth of settings, as files.

    Attributes:
        name: ``<release id>-<8 hex digits of the content>``, the folder's name.
        contents: text by file name, as it stands on the host.
        readable: names of the files that the service itself reads and that are closed to others.
        private: names of the files that only root reads.
    """

    name: str
    contents: Mapping[str, str]
    readable: frozenset[str]
    private: frozenset[str]

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of every file, by name: what a start records of itself is compared with this."""
        return {name: sha256(text) for name, text in sorted(self.contents.items())}

    def mode(self, name: str) -> int:
        """The permission bits of a file; the group is that of the service."""
        return 0o600 if name in self.private else 0o640 if name in self.readable else 0o644


def make_deployment(
    *,
    folder: str,
    release_id: str,
    profile: str,
    arguments: Mapping[str, Any],
    environment: Mapping[str, Any],
    keys: Mapping[str, str],
    unit: str,
    programs: Mapping[str, str],
) -> Deployment:
    """Render a deployment.

    Args:
        folder: where deployments live, for example ``/etc/sglang``.
        release_id: the release that the deployment starts.
        profile: ``eagle3`` or ``baseline``.
        arguments: SGLang's arguments without keys.
        environment: the environment of the server.
        keys: the API keys by argument name; empty ones are left out.
        unit: text of the unit, with ``@deployment@`` for the deployment's folder.
        programs: text by file name of what the unit runs besides SGLang.
    """
    config, variables = f"{profile}.yaml", f"{profile}.env"
    contents = {
        config: render_config(arguments, keys),
        variables: render_environment(environment),
        unit_name(profile): unit,
        **programs,
    }
    # The first 32 bits of a digest over a file with keys of at least 64 bits tell nothing useful about them.
    name = f"{release_id}-{sha256(json.dumps(contents, sort_keys=True))[:8]}"
    contents[unit_name(profile)] = unit.replace(FOLDER_MARK, f"{folder}/{name}")
    return Deployment(name, contents, readable=frozenset([config]), private=frozenset([variables]))


def sha256(text: str) -> str:
    """The SHA-256 of a text in UTF-8, as hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()
