"""Every remedy is known to the table, names what exists, and where it can be tried here it mends its fault.

``remedies.yml`` says of each whether a test tries it, and if none does, why.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.parameters import DEFAULT_TYPE_VALIDATORS
from blackwell import gateway, grub, receipt, server, variables
from blackwell.contradictions import RULES
from blackwell.errors import OperatorError
from blackwell.gateway import SERVING, Host, Records
from blackwell.hub import Fetch
from blackwell.limits import LIMITS
from blackwell.patching import definition
from blackwell.patching.engine import switches
from blackwell.throughput import archive, canary
from blackwell.throughput.choice import stored_choice
from blackwell.variables import Known, Rule
from blackwell.weights import unreadable

from tests.unit.patching.conftest import patch
from tests.unit.remedies import Remedy, remedies
from tests.unit.test_draft import DRAFT, Pair

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "unit"
TABLE: dict[str, dict[str, list[str]]] = yaml.safe_load((TESTS / "remedies.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def printed() -> list[Remedy]:
    return remedies(ROOT)


@pytest.fixture(scope="module")
def known() -> Known:
    return variables.load_known(ROOT / "roles", ROOT / "playbooks")


# --- the table ---


def test_every_remedy_of_the_code_is_in_the_table_and_the_other_way_round(printed: list[Remedy]) -> None:
    listed = [key for part in TABLE.values() for keys in part.values() for key in keys]
    assert sorted(listed) == sorted(set(listed)), "a remedy is tried, or it is not"
    new = [f"{each.file}:{each.line}: {each.text}" for each in printed if each.key not in listed]
    assert new == [], "name the test that tries them, or the reason for none, in tests/unit/remedies.yml"
    assert set(listed) - {each.key for each in printed} == set(), "no code has these any more"


@pytest.mark.parametrize("test", TABLE["tried"])
def test_what_tries_a_remedy_exists(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


# --- what remedies name ---


def test_every_variable_that_a_remedy_names_is_declared(printed: list[Remedy], known: Known) -> None:
    prefixes = "|".join(path.name for path in (ROOT / "roles").iterdir())
    named = {
        (name, each.key)
        for each in printed
        for name in [
            *re.findall(rf"\b(?:{prefixes})_\w+", each.text),
            *re.findall(r"-e (\w+)=", each.text),
            *re.findall(r"-e '\{\"(\w+)\"", each.text),
        ]
    }
    assert len(named) > 60
    assert {each for each in named if each[0] not in known.names} == set()


def test_every_file_that_a_remedy_names_exists(printed: list[Remedy]) -> None:
    # What the operator makes beside the inventory, and files whose folder is known only then.
    theirs = {"vault.yml", "patch.yml"}
    named = {
        (name, each.key)
        for each in printed
        for name in re.findall(
            r"(?:\b(?:files|docs|playbooks)/[\w/-]+|\b[\w/-]+\.(?:yml|md))[.\w]*", each.text
        )
        if name not in theirs and not name.startswith("files/patches/")
    }
    assert len(named) > 20
    assert {each for each in named if not (ROOT / each[0].rstrip(".")).exists()} == set()


def test_every_playbook_that_a_remedy_names_parses_with_its_options(printed: list[Remedy]) -> None:
    named = {
        name
        for each in printed
        for name in re.findall(r"\b(?:playbooks/\w+|site)\.yml", each.text)
        if (ROOT / name).is_file()
    }
    assert named >= {"site.yml", "playbooks/bundle.yml", "playbooks/repatch.yml", "playbooks/rollback.yml"}
    done = subprocess.run(
        [
            *[Path(sys.executable).with_name("ansible-playbook"), "--syntax-check", *sorted(named)],
            *["-i", "inventory/blackwell", "--limit", "all,!gpu-1", "-e", "rollout_inflight_timeout=0"],
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


_COMMAND = re.compile(r"(?:^|[ (])(?:rm|mv|cp|chmod|ls|sh -n|df|ansible-vault|dpkg)\b[^;,.]* $")
# Words that begin like a command, or what can hold no blank.
_PLAIN = {"sh cannot read "}


def test_every_path_in_a_command_is_quoted() -> None:
    """A folder of the controller may hold blanks, and then rm and mv would take other files."""
    bare = []
    for folder in ("plugins", "roles", "blackwell_cli"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.JoinedStr):
                    continue
                before = ""
                for part in node.values:
                    if isinstance(part, ast.Constant):
                        before += str(part.value)
                        continue
                    if _COMMAND.search(before) and before not in _PLAIN:
                        call = ast.unparse(part)
                        if "quote(" not in call and "shlex.join(" not in call:
                            bare.append(f"{path.relative_to(ROOT)}:{node.lineno}: {before}{call}")
                    before += "x"
    assert bare == []


# --- settings ---


def judged(rule: Rule, **values: Any) -> str:
    return rule.broken(values)


# By remedy (its beginning): a value that is refused, and one as the remedy says.
LIMIT_CASES: Mapping[str, tuple[Any, list[Any]]] = {
    "It is a number from 1 to 255": (256, [1, 255]),
    "It is a share of the memory": (1, [0.01, 0.9]),
    "Write numbers of hosts": (0, [1, "25%", [1, "25%"]]),
    "docs/preflight.md lists": (["acss"], [["acs"], "acs"]),
    "It is the limit of one card in watts": (50, [100, 1000, 0]),
    "Choose one of: ": (
        "fast",
        ["", "conservative", "ondemand", "performance", "powersave", "schedutil", "userspace"],
    ),
    "5 % is 0.05": (5, [0.05]),
    "10 % is 0.1": (10, [0.1]),
    "8 % is 0.08": (8, [0.08]),
    "Write a number for each point": ({"a": 1}, [{"1": 1, "8": 2, "1/long": 0.5}]),
    "Write them by profile": ({"fast": {}}, [{"eagle3": {"1": {"decode_tok_s": 45}}}]),
    "A port is a number": (0, [1, 65535]),
    "It is a path on the host": ("/a b", ["/srv/models/a-b"]),
    "Put the value in quotes": ({"NCCL_P2P_DISABLE": 1}, [{"NCCL_P2P_DISABLE": "1"}]),
}


@pytest.mark.parametrize("rule", LIMITS, ids=lambda rule: rule.reads[0])
def test_a_value_as_the_message_says_is_accepted(rule: Rule, known: Known) -> None:
    least = re.fullmatch(r"It is at least (\d+)", rule.remedy)
    if least:
        bad, good = int(least[1]) - 1, [int(least[1])]
    else:
        (case,) = [case for start, case in LIMIT_CASES.items() if rule.remedy.startswith(start)]
        bad, good = case
    (name,) = rule.reads
    assert judged(rule, **{name: bad})
    for value in good:
        assert judged(rule, **{name: value}) == ""


CARDS = ["GPU-00000000-0000-0000-0000-00000000000" + digit for digit in "12"]
CUDA = {"sglang_stack_engine": "cuda"}
GUARDS = {"flashinfer-allreduce-guard": True, "flashinfer-trtllm-comm-sm120": True}
FUSION = {"eagle3_server_enable_flashinfer_allreduce_fusion": True}
NO_FUSION = {"eagle3_server_enable_flashinfer_allreduce_fusion": False}
BOTH = {"group_names": ["sglang_servers", "sglang_gateways"]}
TWO = {"groups": {"sglang_gateways": ["a", "b"]}}
SHARED = {"gateway_virtual_address": "192.0.2.20"}
COMMIT = "0" * 40
# By the variable that a rule reads first and the beginning of its remedy: values that are refused, and what the remedy
# makes of them, each way of it.
LEFT_ON: list[dict[str, Any]] = [{"sm120_guards_enabled": {}}, {"eagle3_server_enable_spec_v2": False}]
RULE_CASES: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    (
        "nvidia-smi -L shows the UUIDs",
        {"eagle3_server_gpus": CARDS[:1] * 2, "eagle3_server_tensor_parallel_size": 2},
        [{"eagle3_server_gpus": CARDS}, {"eagle3_server_gpus": []}],
    ),
    (
        "The fused allreduce exists",
        {**FUSION, "eagle3_server_tensor_parallel_size": 6},
        [NO_FUSION, *({"eagle3_server_tensor_parallel_size": size} for size in (2, 4, 8))],
    ),
    (
        "Turn them on together",
        {**FUSION, **CUDA, "sm120_guards_enabled": {}},
        [{"sm120_guards_enabled": GUARDS}, NO_FUSION],
    ),
    (
        "Leave eagle3-aux-after-allreduce on",
        {**FUSION, "sm120_guards_enabled": {"eagle3-aux-after-allreduce": False}},
        [{"sm120_guards_enabled": {}}, NO_FUSION],
    ),
    (
        "Set the variable in its place",
        {**CUDA, "eagle3_server_extra_arguments": {"context_length": 4096}},
        [{"eagle3_server_extra_arguments": {}}],
    ),
    (
        "Make another",
        {"eagle3_server_admin_api_key": "k", "eagle3_server_api_key": "k"},
        [{"eagle3_server_admin_api_key": "l"}],
    ),
    (
        "Raise throughput_check_runs_max",
        {"throughput_check_runs_min": 9, "throughput_check_runs_max": 5},
        [{"throughput_check_runs_max": 9}],
    ),
    (
        "Weigh points of",
        {
            "throughput_check_weights": {"16": 1},
            "throughput_check_concurrency": [1, 8],
            "throughput_check_long_concurrency": [1],
        },
        [{"throughput_check_weights": {"8": 1}}, {"throughput_check_weights": {"1/long": 1}}],
    ),
    (
        "Set cuda_toolkit_source to present",
        {"cuda_toolkit_path": "/opt/cuda", "cuda_toolkit_source": "wheels", "cuda_toolkit_version": "13.0"},
        [{"cuda_toolkit_source": "present"}, {"cuda_toolkit_path": "/usr/local/cuda-13.0"}],
    ),
    *(
        (
            "Give the gateway and the server",
            {**BOTH, port: 30000, "eagle3_server_port": 30000},
            [{port: 30001}, {"eagle3_server_port": 30001}],
        )
        for port in ("gateway_port", "gateway_metrics_port", "gateway_virtual_port")
    ),
    ("It is an address such as", {**TWO, "gateway_virtual_address": "gateway"}, [SHARED]),
    ("It is an address such as", {**SHARED, "groups": {"sglang_gateways": ["a"]}}, [TWO]),
    ("It is an address such as", {**SHARED, "ansible_host": "192.0.2.20"}, [{"ansible_host": "192.0.2.21"}]),
    (
        "HAProxy and smg run",
        {**SHARED, "gateway_virtual_port": 30000, "gateway_port": 30000},
        [{"gateway_virtual_port": 80}],
    ),
    *(
        (
            "Name the cards in eagle3_server_gpus",
            {name: {"CUDA_VISIBLE_DEVICES": "1"}},
            [{name: {}}],
        )
        for name in ("eagle3_server_extra_environment", "eagle3_server_nccl_environment")
    ),
    (
        "Name the cards in eagle3_server_gpus",
        {"eagle3_server_extra_arguments": {"base_gpu_id": 4}},
        [{"eagle3_server_extra_arguments": {}}],
    ),
    *(
        (
            "Set the repository and the 40",
            {f"model_weights_{model}_revision": revision, f"model_weights_{model}_repository": repository},
            [
                {f"model_weights_{model}_revision": COMMIT, f"model_weights_{model}_repository": "a/b"},
                {f"model_weights_{model}_revision": "", f"model_weights_{model}_repository": ""},
            ],
        )
        for model in ("target", "draft")
        for revision, repository in (("main", "a/b"), (COMMIT, ""))
    ),
    *(
        (
            f"Leave {patch} on",
            {"sm120_guards_enabled": {patch: False}},
            LEFT_ON,
        )
        for patch in ("eagle3-draft-extend-v2", "eagle3-draft-extend-prefix")
    ),
]


@pytest.mark.parametrize(("remedy", "fault", "ways"), RULE_CASES)
def test_what_the_message_says_makes_settings_fit(
    remedy: str, fault: dict[str, Any], ways: list[dict[str, Any]], known: Known
) -> None:
    def told(values: dict[str, Any]) -> list[str]:
        said = variables.judge_values({"one": values}, known, RULES, DEFAULT_TYPE_VALIDATORS)
        return [problem.remedy for problem in said if problem.remedy.startswith(remedy)]

    assert told(fault)
    for way in ways:
        assert told({**fault, **way}) == []


def test_every_rule_about_settings_is_tried() -> None:
    starts = {start for start, _, _ in RULE_CASES}
    left = {rule.remedy for rule in RULES if not any(rule.remedy.startswith(start) for start in starts)}
    assert all(re.fullmatch(r"Set \w+ alone; \w+ follows it", remedy) for remedy in left)


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.remedy.endswith(" follows it")], ids=lambda rule: rule.reads[0]
)
def test_a_variable_that_follows_another_is_a_template_of_that(rule: Rule) -> None:
    match = re.fullmatch(r"Set (\w+) alone; (\w+) follows it", rule.remedy)
    assert match
    role = match[2].partition("_")[0]
    defaults = yaml.safe_load((ROOT / "roles" / role / "defaults/main.yml").read_text(encoding="utf-8"))
    assert re.search(rf"\b{match[1]}\b", defaults[match[2]])


# --- names of the inventory ---


@pytest.mark.parametrize(
    "name", ["eagle3_server_prot", "eagle3_server_tp_size", "sglang_stack_engin", "tp_size"]
)
def test_a_name_that_the_message_writes_is_known(name: str, known: Known) -> None:
    (problem,) = variables.judge_names({"one": [name]}, known)
    meant = re.match(r"Write (\w+), or name it in preflight_foreign_variables", problem.remedy)
    assert meant
    assert variables.judge_names({"one": [meant[1]]}, known) == []
    assert variables.judge_names({"one": [name]}, known, foreign=[name]) == []


def test_a_new_name_of_a_variable_is_known(known: Known) -> None:
    renamed = (variables.Renamed("eagle3_server_tcp", "eagle3_server_port", "2.0"),)
    (problem,) = variables.judge_names({"one": ["eagle3_server_tcp"]}, known, renamed=renamed)
    assert problem.remedy == "Set eagle3_server_port instead"
    assert variables.judge_names({"one": ["eagle3_server_port"]}, known, renamed=renamed) == []


def test_a_host_is_named_as_the_message_says() -> None:
    assert variables.judge_hosts(["-a b"]) and variables.judge_hosts(["A", "a"])
    assert variables.judge_hosts(["gpu-1.example_2"]) == [] and variables.judge_hosts(["A", "b"]) == []


def test_a_choice_of_the_message_is_accepted(known: Known) -> None:
    def told(value: str) -> list[variables.Problem]:
        return variables.judge_values(
            {"one": {"sglang_stack_engine": value}}, known, (), DEFAULT_TYPE_VALIDATORS
        )

    (problem,) = told("gpu")
    for choice in problem.remedy.removeprefix("Choose one of: ").split(", "):
        assert told(choice) == []


def test_the_vault_of_the_message_is_one_file_whatever_its_folder_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "my inventory"
    folder.mkdir()
    example = folder / "vault.yml.example"
    example.touch()
    unread = {"one": {"eagle3_server_api_key": "'vault_key' is undefined"}}
    for start in ("Copy ", "Add it: "):
        (problem,) = variables.judge_secrets(unread, [folder / "all.yml"])
        assert problem.remedy.startswith(start)
        command = re.search(r"ansible-vault \w+ ('.*?'|\S+)", problem.remedy)
        assert command and shlex.split(command[0])[2:] == [str(folder / "vault.yml")]
        (folder / "vault.yml").write_bytes(example.read_bytes())


# --- commands that remove or move files ---


def command_in(remedy: str, name: str) -> str:
    """The command of that name in a remedy, up to the sign that ends it, as an operator copies it into a shell."""
    command = re.search(rf"""\b{name} (?:'[^']*'|"[^"]*"|(?![),;]+(?:\s|$))[^'"])*""", remedy)
    assert command
    return command[0]


def _receipt(file: Path) -> None:
    receipt.read(file)


def _pending(file: Path) -> None:
    receipt.pending(file.parent)


def _choice(file: Path) -> None:
    stored_choice(file, "f")


def _check(file: Path) -> None:
    archive.read(file)


def _transcript(file: Path) -> None:
    canary.load_transcript(str(file))


def _hosts(file: Path) -> None:
    Records(file.parent).read()


@pytest.mark.parametrize(
    ("read", "name", "command"),
    [
        (_receipt, "20260101T000000Z-gpu-1.json", "mv"),
        (_pending, receipt.PENDING, "rm"),
        (_choice, "choice.json", "rm"),
        (_check, "2026-01-01T000000Z-eagle3.json", "mv"),
        (_transcript, "transcript.json", "rm"),
        (_hosts, Records(Path()).hosts_file.name, "rm"),
        (_hosts, Records(Path()).manifest_file.name, "rm"),
    ],
)
@pytest.mark.parametrize("folder", ["plain", "with a blank", "it's", "$HOME", "a;b"])
def test_a_damaged_file_goes_away_by_the_command_and_no_other_does(
    tmp_path: Path, read: Callable[[Path], None], name: str, command: str, folder: str
) -> None:
    file = tmp_path / folder / name
    file.parent.mkdir()
    file.write_text("{", encoding="utf-8")
    beside = [tmp_path / word for word in ("with", "a", "blank", "plain.json")]
    for other in beside:
        other.touch()
    with pytest.raises(OperatorError) as refused:
        read(file)
    given = command_in(refused.value.remedy, command)
    subprocess.run(["/bin/sh", "-c", given], check=True, cwd=tmp_path)
    assert not file.exists() and all(other.exists() for other in beside)
    assert list(file.parent.iterdir()) == ([Path(f"{file}.damaged")] if command == "mv" else [])


# --- gateways, hubs, patches ---


def test_too_few_hosts_are_enough_when_others_are_back_or_fewer_are_asked_for() -> None:
    hosts = {f"http://192.0.2.{n}:1": Host(SERVING, "rollout", 1.0) for n in (1, 2)}
    first, second = hosts

    def take_out(ready: list[str], least: int) -> gateway.Step:
        return gateway.drain(hosts, first, by="rollout", now=2.0, ready=frozenset(ready), min_available=least)

    with pytest.raises(OperatorError, match="Too few hosts"):
        take_out([first], 1)
    assert take_out([first, second], 1).changed and take_out([first], 0).changed


@pytest.mark.parametrize(("repository", "revision"), [("a/b", "main"), ("a/b", ""), ("a b", COMMIT)])
def test_a_repository_and_a_commit_as_the_message_says_are_accepted(repository: str, revision: str) -> None:
    def check(repository: str, revision: str) -> None:
        Fetch(repository, revision, Path("/model"), "python", "fetch.py", "root", {}).check()

    with pytest.raises(OperatorError):
        check(repository, revision)
    check("a/b", COMMIT)


# --- drafters ---

STATES = "eagle_aux_hidden_state_layer_ids"


def _window(pair: Pair) -> None:
    pair.draft["max_position_embeddings"] = 131072


def _no_mapping(pair: Pair) -> None:
    pair.draft["eagle_config"] = "none"


def _outside(pair: Pair) -> None:
    del pair.draft["eagle_config"]
    pair.draft[STATES] = [1, 30, 57]


def _shifted(pair: Pair) -> None:
    pair.draft["eagle_config"] = {STATES: [2, 30, 58]}


def _from_zero(pair: Pair) -> None:
    pair.draft["eagle_config"] = {STATES: [0, 30, 58]}


def _back_end(pair: Pair) -> None:
    pair.arguments["speculative_draft_attention_backend"] = "trtllm_mla"


def _quantized(pair: Pair) -> None:
    del pair.arguments["speculative_draft_model_quantization"]


def _vocabulary(pair: Pair) -> None:
    del pair.draft["draft_vocab_size"]


# A fault, a part of what is said to do, and what an operator does then.
DRAFTERS: list[tuple[Callable[[Pair], None], str, Callable[[Pair], object]]] = [
    (
        _window,
        "set eagle3_server_allow_overwrite_longer_context_len: true",
        lambda pair: pair.environment.update(SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN="1"),
    ),
    (
        _window,
        "eagle3_server_context_length: 131072",
        lambda pair: pair.arguments.update(context_length=131072),
    ),
    (_no_mapping, "remove eagle_config from", lambda pair: pair.draft.pop("eagle_config")),
    (
        _outside,
        "move it into eagle_config",
        lambda pair: pair.draft.update(eagle_config={STATES: pair.draft.pop(STATES)}),
    ),
    (_shifted, "subtract one from each", lambda pair: pair.draft.update(eagle_config={STATES: [1, 29, 57]})),
    (_from_zero, "use a later SGLang than 0.5.12", lambda pair: setattr(pair, "version", "0.5.14")),
    (
        _back_end,
        "set eagle3_server_draft_attention_backend: triton",
        lambda pair: pair.arguments.update(speculative_draft_attention_backend="triton"),
    ),
    (
        _quantized,
        "set eagle3_server_draft_quantization: unquant",
        lambda pair: pair.arguments.update(speculative_draft_model_quantization="unquant"),
    ),
    (
        _vocabulary,
        'add "draft_vocab_size": null, or the number of rows of lm_head.weight',
        lambda pair: pair.draft.update(draft_vocab_size=DRAFT["draft_vocab_size"]),
    ),
]


@pytest.mark.parametrize(("spoil", "remedy", "mend"), DRAFTERS)
def test_a_drafter_fits_after_what_the_message_says(
    tmp_path: Path,
    run_module: Callable[..., dict[str, Any]],
    spoil: Callable[[Pair], None],
    remedy: str,
    mend: Callable[[Pair], object],
) -> None:
    def told(name: str, *changes: Callable[[Pair], object]) -> list[str]:
        pair = Pair(tmp_path / name, run_module)
        for change in changes:
            change(pair)
        result = pair.check()
        return [finding["text"] for finding in result.get("findings", [])] + [result.get("msg", "")]

    before, after = told("before", spoil), told("after", spoil, mend)
    said = [text for text in before if remedy in text]
    assert said
    assert not any("To mend it" in text and remedy in text for text in after)
    assert after[-1] == ""


# --- what the server is given ---


def test_an_argument_that_is_given_twice_is_given_once() -> None:
    with pytest.raises(OperatorError, match="given twice"):
        server.render_config({"a_b": 1, "a-b": 1})
    assert "a-b" in server.render_config({"a_b": 1})


@pytest.mark.parametrize("fault", [{"A B": "1"}, {"A": "1\n2"}])
def test_a_variable_of_the_environment_is_corrected(fault: dict[str, str]) -> None:
    with pytest.raises(OperatorError, match="cannot be written"):
        server.render_environment(fault)
    assert server.render_environment({"A_B": "1 2"})


# --- patches, groups, files of others ---


def test_a_group_is_renamed_as_the_message_says() -> None:
    name = "inventory_problem"
    spec = importlib.util.spec_from_file_location(name, ROOT / "plugins" / "filter" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for groups in ({"sglang_server": ["a"]}, {"sglang_servers": ["a"], "sglang_gateway": ["b"]}):
        told = module.inventory_problem({"all": ["a"], **groups}, ["hosts.yml"])
        rename = re.search(r"rename the group (\w+) to (\w+)", told)
        assert rename
        right = {rename[2] if group == rename[1] else group: hosts for group, hosts in groups.items()}
        assert module.inventory_problem({"all": ["a"], **right}, ["hosts.yml"]) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
def test_files_that_the_server_may_not_read_are_opened_by_the_command() -> None:
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above) / "a model"
        (folder / "sub").mkdir(parents=True)
        for name in ("a.safetensors", "sub/b.json"):
            (folder / name).touch(mode=0o600)
        files = ["a.safetensors", "sub/b.json"]
        (folder / "sub").chmod(0o700)
        assert unreadable(folder, files, "nobody") == files
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        subprocess.run(["chmod", "a+x", above], check=True)
        assert unreadable(folder, files, "nobody") == []


def test_a_file_of_grub_that_cannot_be_read_is_shown_by_sh_and_may_be_removed(tmp_path: Path) -> None:
    ours, broken = tmp_path / "grub.d" / "90-ours.cfg", tmp_path / "grub.d" / "40 broken.cfg"
    ours.parent.mkdir()
    (tmp_path / "grub").write_text('GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n', encoding="utf-8")
    broken.write_text("if true; then\n", encoding="utf-8")
    with pytest.raises(OperatorError) as refused:
        grub.evaluate(grub.read_files(ours))
    shown = re.search(r"\((sh -n .*) shows the place\)", refused.value.remedy)
    assert shown
    done = subprocess.run(shlex.split(shown[1]), capture_output=True, text=True, check=False)
    assert done.returncode != 0 and str(broken) in done.stderr
    broken.unlink()
    assert list(grub.evaluate(grub.read_files(ours)).words) == ["quiet"]


def patches_of(needs: Mapping[str, list[str]]) -> list[definition.Patch]:
    return [definition.parse(patch(id=name, needs=needs[name])) for name in needs]


@pytest.mark.parametrize(
    ("needs", "mended"),
    [({"a": ["b"], "b": ["a"]}, {"a": [], "b": ["a"]}), ({"a": ["z"], "b": []}, {"a": ["b"], "b": []})],
)
def test_needs_of_patches_are_corrected_in_the_file_that_is_named(
    needs: dict[str, list[str]], mended: dict[str, list[str]]
) -> None:
    with pytest.raises(OperatorError) as refused:
        definition.ordered(patches_of(needs))
    assert refused.value.remedy.endswith("files/patches/a/patch.yml")
    assert definition.ordered(patches_of(mended))


@pytest.mark.parametrize(
    ("given", "ways"),
    [
        ({"b": False}, [{"b": True}, {"a": False, "b": False}]),
        ({"c": True}, [{"a": True}]),
        ({"a": "maybe"}, [{"a": True}, {"a": False}]),
    ],
)
def test_switches_of_patches_are_corrected(given: dict[str, Any], ways: list[dict[str, Any]]) -> None:
    patches = patches_of({"a": ["b"], "b": []})
    with pytest.raises(OperatorError):
        switches(patches, given)
    for way in ways:
        assert switches(patches, way)
