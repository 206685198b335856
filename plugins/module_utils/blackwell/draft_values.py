"""Values of both configurations that transformers and SGLang take for more than a size: types, ropes, overrides."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from .draft_case import Case, Finding, not_checked
from .draft_model import Model

# The first release that reads rope_parameters, with transformers 5.
ROPE_PARAMETERS = (0, 5, 10)
# transformers looks the name up in torch.
_TYPES = re.compile(r"bfloat16|float16|half|float32|float|float64|double|float8_\w+|u?int\d+")
# The base that the class of Llama's configuration has as a rule.
_BASE = 10000


def check_overrides(case: Case) -> Iterator[Finding]:
    """Whether the files are all that the configurations are made of."""
    if case.argument("json_model_override_args") not in (None, "", "{}", {}):
        yield not_checked(
            "What json_model_override_args changes",
            "SGLang lays it over the configurations of both models, and the other findings are about the files",
            "write it into the config.json that is meant, and take it out of eagle3_server_extra_arguments",
        )


def check_types(case: Case) -> Iterator[Finding]:
    """Whether both are loaded in one type, which PyTorch knows."""
    wrong = [(role, model) for role, model in case.roles if model.dtype and not _TYPES.fullmatch(model.dtype)]
    for role, model in wrong:
        yield Finding(
            "dtype_name",
            "error",
            f"The type of the {role} is none that transformers knows",
            f"{model.dtype} in {model.path}/config.json",
            "a name such as bfloat16",
            f"write the published type into {model.path}/config.json, as a rule bfloat16",
        )
    if wrong:
        return
    if case.argument("dtype") not in (None, "auto"):
        return
    target, draft = (_loaded_as(model) for model in (case.target, case.draft))
    if target == draft or any(model.dtype_elsewhere for _, model in case.roles):
        return
    reason = ", which SGLang loads as float16" if draft == "float16" and case.draft.dtype != "float16" else ""
    yield Finding(
        "dtype",
        "error",
        "Drafter and target would be loaded in different types, and they share an embedding",
        f"{case.draft.dtype or 'no dtype'} in the drafter's config.json{reason}; {target} for the target",
        "the same type",
        f"set dtype: {target} in eagle3_server_extra_arguments",
    )


def _loaded_as(model: Model) -> str:
    """The type that SGLang makes of a configuration's, with ``--dtype auto``."""
    short = {"half": "float16", "float": "float32"}
    named = short.get(model.dtype or "float32", model.dtype or "float32")
    if named != "float32":
        return named
    return "bfloat16" if str(model.text.get("model_type")).startswith("gemma") else "float16"


def check_rope(case: Case) -> Iterator[Finding]:
    """Whether positions are where the release reads them: transformers 5 writes them to another place."""
    if not case.release.before(ROPE_PARAMETERS):
        return
    for role, model in case.roles:
        named = model.text.get("rope_parameters")
        if not isinstance(named, dict) or "rope_theta" in model.text:
            continue
        kind = named.get("rope_type", "default")
        if named.get("rope_theta", _BASE) == _BASE and kind == "default":
            continue
        where = f"{model.path}/config.json" + (f", in {model.place}" if model.place else "")
        wanted = {"rope_theta": named.get("rope_theta", _BASE)}
        if kind != "default":
            wanted["rope_scaling"] = {key: value for key, value in named.items() if key != "rope_theta"}
        certain = role == "drafter" and case.is_llama and model.text.get("model_type") == "llama"
        yield Finding(
            "rope_parameters",
            "error" if certain else "warning",
            f"The positions of the {role} are where {case.release.name} does not look: it takes those that a class of "
            "transformers has as a rule, and then tokens are wrong without an error",
            f"rope_parameters and no rope_theta in {where}",
            "rope_theta, as transformers 4 writes it",
            f"add {json.dumps(wanted)[1:-1]} to {where}",
        )
