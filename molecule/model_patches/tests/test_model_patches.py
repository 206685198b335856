"""The methods are in the class, once each, and nothing else of the installation changed."""

from __future__ import annotations

import json

from testinfra.host import Host

PACKAGES = "/opt/other/lib/python3.11/site-packages"
MODEL = f"{PACKAGES}/sglang/srt/models/kimi_k25.py"

METHODS = """
import ast, json, sys
tree = ast.parse(open(sys.argv[1]).read())
(model,) = [node for node in tree.body if getattr(node, "name", "") == "KimiK25ForConditionalGeneration"]
print(json.dumps([node.name for node in model.body if isinstance(node, ast.FunctionDef)]))
"""

DIFFERING = """
import base64, csv, glob, hashlib, json, os, sys
found = []
for record in glob.glob(sys.argv[1] + "/*.dist-info/RECORD"):
    for name, digest, _ in csv.reader(open(record)):
        file = os.path.join(sys.argv[1], name)
        if digest and os.path.exists(file):
            actual = base64.urlsafe_b64encode(hashlib.sha256(open(file, "rb").read()).digest()).decode().rstrip("=")
            if digest != "sha256=" + actual:
                found.append(name)
print(json.dumps(sorted(found)))
"""


def ask(host: Host, program: str, argument: str) -> list[str]:
    answer: list[str] = json.loads(host.check_output("python3 -c %s %s", program, argument))
    return answer


def test_the_class_has_each_method_once(host: Host) -> None:
    methods = ask(host, METHODS, MODEL)
    for method in ("set_eagle3_layers_to_capture", "get_embed_and_head", "set_embed_and_head"):
        assert methods.count(method) == 1


def test_the_list_of_models_is_still_the_last_line(host: Host) -> None:
    assert host.check_output("tail -n 1 %s", MODEL) == "EntryClass = [KimiK25ForConditionalGeneration]"


def test_only_the_model_file_differs_from_the_published_wheel(host: Host) -> None:
    assert ask(host, DIFFERING, PACKAGES) == ["sglang/srt/models/kimi_k25.py"]


def test_owner_and_mode_are_as_the_wheel_left_them(host: Host) -> None:
    neighbour = host.file(f"{PACKAGES}/sglang/srt/models/kimi_vl.py")
    model = host.file(MODEL)
    assert (model.user, model.group, model.mode) == (neighbour.user, neighbour.group, neighbour.mode)


def test_byte_code_of_the_published_file_is_gone(host: Host) -> None:
    assert not host.file(f"{PACKAGES}/sglang/srt/models/__pycache__/kimi_k25.cpython-311.pyc").exists


def test_nothing_is_left_behind(host: Host) -> None:
    models = f"{PACKAGES}/sglang/srt/models"
    assert host.check_output("find %s -name '*kimi_k25*'", models).split() == [MODEL]
    assert host.check_output("find %s -name '*.blackwell-patch*'", PACKAGES) == ""
