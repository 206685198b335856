"""Settings and hand-edited files of a server: sentences, never a traceback, and never a secret."""

from __future__ import annotations

from typing import Any

from blackwell import disclosure
from blackwell.argument_check import judge
from blackwell.errors import OperatorError
from blackwell.free_form import SM120_BACKENDS, VARIABLE_OF, canonical
from blackwell.server import doubts, problems
from hypothesis import given
from hypothesis import strategies as st

from .inputs import attack, hostile, value_or_operator_error

SECRET = "planted0secret0value"
NAMES = st.sampled_from(
    [*VARIABLE_OF, *SM120_BACKENDS, "ep", "--tp", "disable-cuda-graph", "dp_size"]
) | st.text(max_size=12)
VALUES: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.integers(), max_size=2)
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=6)
ENVIRONMENT = st.dictionaries(
    st.sampled_from(["SGLANG_ENABLE_SPEC_V2", "NCCL_PROTO", "CUDA_HOME", "NCCL_NVLS_ENABLE"])
    | st.text(max_size=10),
    VALUES,
    max_size=4,
)


@attack
@given(arguments=ARGUMENTS, environment=ENVIRONMENT, profile=st.sampled_from(["eagle3", "baseline"]))
def test_any_settings_are_judged(
    arguments: dict[str, Any], environment: dict[str, Any], profile: str
) -> None:
    for engine in ("cuda", "cpu"):
        found = problems(profile, arguments, environment, engine=engine)
        assert all(isinstance(sentence, str) and sentence for sentence in found)
        doubts(profile, arguments, environment, engine=engine)
    given_ = {canonical(name): value for name, value in arguments.items() if value is not None}
    if profile == "eagle3" and given_.get("speculative_algorithm") != "EAGLE3":
        assert any("EAGLE3 alone" in sentence for sentence in problems(profile, arguments, {}, engine="cuda"))


CONFIGS = (
    f'port: 1\napi-key: "{SECRET}"\nhost: "::"\n'.encode(),
    f"'admin-api-key': '{SECRET}'\n".encode(),
    f"api-key: >-\n  {SECRET}\n".encode(),
)
ENVIRONMENTS = (
    f'HF_TOKEN="{SECRET}"\nPATH="/bin"\n'.encode(),
    f"export HF_TOKEN={SECRET}\\\n{SECRET}\n".encode(),
)


def shown(name: str, content: bytes) -> str:
    text = content.decode("utf-8", "replace")
    secrets = disclosure.secrets_of({}, {}, {"x.yaml": text if name == "x.yaml" else ""}, "x.yaml")
    return disclosure.show(name, text, "port: 1\n", secrets)


@attack
@given(content=hostile(CONFIGS))
def test_a_damaged_configuration_shows_no_key(content: bytes) -> None:
    # Where the name of the key is damaged, too, nothing tells that it is one.
    if all(name in content for name in (b"api-key",)):
        assert SECRET not in shown("x.yaml", content)


@attack
@given(content=hostile(ENVIRONMENTS))
def test_a_damaged_environment_shows_no_token(content: bytes) -> None:
    if b"HF_TOKEN" in content:
        assert SECRET not in shown("x.env", content)


SAID = (
    b"sglang: error: unrecognized arguments: --x\n",
    b"Failed to connect to bus: No such file or directory\n",
)


@attack
@given(out=hostile(SAID), err=hostile(SAID), code=st.integers(-64, 255))
def test_any_end_of_the_trial_is_understood(out: bytes, err: bytes, code: int) -> None:
    texts = [text.decode("utf-8", "replace") for text in (out, err)]
    found = value_or_operator_error(lambda: judge(code, *texts))
    assert isinstance(found, OperatorError) is (code != 0)
    if found is not None and "does not accept" in found.problem:
        assert any("sglang: error: " in text for text in texts)
