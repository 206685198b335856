#!/usr/bin/python
"""Reads a host, judges it and gives it a fingerprint."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_report
short_description: Judge whether a host can carry the server, and give it a fingerprint
description:
  - Reads distribution, Python, disk, memory, ports, GPUs, PCIe links, peer-to-peer, access control, IOMMU,
    driver, kernel and their logs, and says of each whether it is fit, with what to do where it is not.
  - It only reads, and every command it runs has a time limit.
  - It does not fail by itself when something is unfit, so that a play can show the whole report first.
options:
  engine:
    description: Whether GPUs are expected.
    type: str
    choices: [cuda, cpu]
    required: true
  distributions:
    description: Accepted distributions, as C(<ID>-<VERSION_ID>) of C(/etc/os-release).
    type: list
    elements: str
    required: true
  python:
    description: Command of the interpreter that releases are built with.
    type: str
    required: true
  python_version:
    description: Version that it has to be, such as V(3.12).
    type: str
    required: true
  pythons:
    description: Versions that there is a lock for, such as V(3.12); empty if that is not known.
    type: list
    elements: str
    default: []
  packages:
    description: Packages of the distribution that the deployment installs where they are missing.
    type: list
    elements: str
    default: []
  root:
    description: Folder that holds releases.
    type: path
    required: true
  release:
    description: Folder of the wanted release, if it is known already; a release that is there needs no space.
    type: str
    default: ''
  release_gib:
    description: Free space that a new release needs, in GiB.
    type: float
    required: true
  models:
    description: Folders that have to hold a model.
    type: list
    elements: path
    default: []
  models_root:
    description: Folder that models are fetched to; empty if none is fetched.
    type: str
    default: ''
  models_gib:
    description: Free space that fetched models need, in GiB.
    type: float
    default: 0
  ports:
    description: Ports that have to be free, each with the name of the variable that sets it.
    type: list
    elements: dict
    default: []
    suboptions:
      port:
        description: The TCP port.
        type: int
        required: true
      setting:
        description: The variable that sets it.
        type: str
        required: true
  units:
    description: Our own units, which may hold the ports and the GPUs.
    type: list
    elements: str
    default: []
  memory_gib:
    description: Main memory, in GiB.
    type: float
    default: 0
  glibc:
    description: Oldest C library that the wheels run on.
    type: str
    default: '2.28'
  gpu_count:
    description: How many GPUs the server spreads over (the tensor parallel size).
    type: int
    default: 0
  gpus:
    description:
      - UUIDs of the cards that the server uses. Only these are judged, counted and made a fingerprint of.
      - Empty chooses O(gpu_count) cards of one of O(gpu_models).
    type: list
    elements: str
    default: []
  gpu_models:
    description: Names that a GPU may have.
    type: list
    elements: str
    default: []
  compute_capability:
    description: What the kernels are built for.
    type: str
    default: '12.0'
  gpu_memory_gib:
    description: Memory of each GPU, in GiB.
    type: float
    default: 0
  driver:
    description: Oldest NVIDIA driver.
    type: str
    default: '580'
  environment:
    description: The server's environment; of it the NCCL variables are judged.
    type: dict
    default: {}
  waive:
    description: Ids of checks whose failure is accepted; they become warnings.
    type: list
    elements: str
    default: []
  everything:
    description: Whether the table also shows what is in order.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: It only reads.
  diff_mode:
    support: none
    description: It changes nothing.
author: Blackwell SGLang
"""

EXAMPLES = r"""
- name: Look at a host that serves on eight cards
  host_report:
    engine: cuda
    distributions: [ubuntu-24.04]
    python: python3.12
    python_version: '3.12'
    root: /opt/sglang
    release_gib: 30
    ports:
      - port: 30000
        setting: eagle3_server_port
    units: [sglang@eagle3.service, sglang@baseline.service]
    gpu_count: 8
    gpu_models: [NVIDIA RTX PRO 6000 Blackwell Server Edition]
    gpu_memory_gib: 90
  register: report

- name: Show it
  ansible.builtin.debug:
    msg: "{{ report.table }}"
"""

RETURN = r"""
checks:
  description: Everything that was looked at.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: Short name, stable over releases.
      type: str
    status:
      description: V(ok), V(warn), V(fail) or V(skip).
      type: str
    subject:
      description: What was looked at.
      type: str
    found:
      description: What is there.
      type: str
    expected:
      description: What would be right.
      type: str
    remedy:
      description: What to do; empty where nothing has to be done.
      type: str
gpus:
  description: The cards that the server is to use, in their order; none where there are too few or no choice.
  returned: success
  type: list
  elements: dict
  contains:
    index:
      description: The number that nvidia-smi gives it, and CUDA with C(CUDA_DEVICE_ORDER=PCI_BUS_ID).
      type: int
    uuid:
      description: Its UUID.
      type: str
    name:
      description: Its model.
      type: str
fit:
  description: Whether nothing failed.
  returned: success
  type: bool
fingerprint:
  description: What figures taken on this host depend on.
  returned: success
  type: dict
  contains:
    digest:
      description: Twelve hex digits over the parts.
      type: str
    parts:
      description: Model, count, memory, power limit and link of the GPUs, driver, topology, kernel, CPU.
      type: dict
failure:
  description: All failures in one message, empty if there is none.
  returned: success
  type: str
table:
  description: The report for a terminal.
  returned: success
  type: str
summary:
  description: The report in one line.
  returned: success
  type: str
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.fabric import choice, collect, gpu_rules, host_rules, link_rules, report


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "engine": {"type": "str", "choices": ["cuda", "cpu"], "required": True},
            "distributions": {"type": "list", "elements": "str", "required": True},
            "python": {"type": "str", "required": True},
            "python_version": {"type": "str", "required": True},
            "pythons": {"type": "list", "elements": "str", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "required": True},
            "release": {"type": "str", "default": ""},
            "release_gib": {"type": "float", "required": True},
            "models": {"type": "list", "elements": "path", "default": []},
            "models_root": {"type": "str", "default": ""},
            "models_gib": {"type": "float", "default": 0},
            "ports": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "port": {"type": "int", "required": True},
                    "setting": {"type": "str", "required": True},
                },
            },
            "units": {"type": "list", "elements": "str", "default": []},
            "memory_gib": {"type": "float", "default": 0},
            "glibc": {"type": "str", "default": "2.28"},
            "gpu_count": {"type": "int", "default": 0},
            "gpus": {"type": "list", "elements": "str", "default": []},
            "gpu_models": {"type": "list", "elements": "str", "default": []},
            "compute_capability": {"type": "str", "default": "12.0"},
            "gpu_memory_gib": {"type": "float", "default": 0},
            "driver": {"type": "str", "default": "580"},
            "environment": {"type": "dict", "default": {}},
            "waive": {"type": "list", "elements": "str", "default": []},
            "everything": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    args = module.params
    cuda = args["engine"] == "cuda"
    wanted = host_rules.Wanted(
        engine=args["engine"],
        distributions=args["distributions"],
        python_version=args["python_version"],
        pythons=args["pythons"],
        packages=args["packages"],
        release=args["release"],
        release_space=(args["root"], args["release_gib"]),
        model_space=(args["models_root"], args["models_gib"]) if args["models_root"] else None,
        models=args["models"],
        ports={item["port"]: item["setting"] for item in args["ports"]},
        units=args["units"],
        memory_gib=args["memory_gib"],
        glibc=args["glibc"],
        gpu_count=args["gpu_count"],
        gpus=args["gpus"],
        gpu_models=args["gpu_models"],
        compute_capability=args["compute_capability"],
        gpu_memory_gib=args["gpu_memory_gib"],
        driver=args["driver"],
        nccl=args["environment"],
    )
    facts = collect.collect(
        collect.Host(),
        gpus=cuda,
        python=args["python"],
        root=args["root"],
        release=args["release"],
        space=[args["root"], *([args["models_root"]] if args["models_root"] else [])],
        folders=args["models"],
        ports=list(wanted.ports),
        pythons=list(dict.fromkeys([args["python_version"], *args["pythons"]])),
    )
    checks = host_rules.judge_host(facts, wanted)
    if cuda:
        checks += gpu_rules.judge_gpus(facts, wanted) + link_rules.judge_links(facts, wanted)
    checks = report.waive(checks, args["waive"])
    gpus = choice.chosen(facts, wanted)
    if facts.query is not None:
        facts = choice.narrow(facts, choice.choose(facts.query.gpus, wanted))
    fingerprint = report.fingerprint(facts, args["engine"])
    fit = all(check.status != report.FAIL for check in checks)
    module.exit_json(
        changed=False,
        checks=[asdict(check) for check in checks],
        gpus=[{"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name} for gpu in gpus],
        fit=fit,
        fingerprint=fingerprint,
        failure="" if fit else report.failure(checks),
        table=report.table(checks, fingerprint["digest"], everything=args["everything"]),
        summary=report.summary(checks, fingerprint["digest"]),
    )


if __name__ == "__main__":
    main()
