"""The correctness canary: is what the server says right, before anybody asks how fast it says it.

On SM120 a server can be healthy, quick and wrong (FP4 matrix products of zeros, mixed-up expert kernels), and
then says "!!!!" or "++++" at full speed. So known questions must get known answers, text must not be empty,
noise or a loop, a tool call must be one, and a prompt that is already in the cache must not end the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from ..errors import OperatorError
from ..json_reader import read_object
from .prompts import Prompt, load
from .server import Server

_LOOP_PERIOD = 64
_LOOP_REPEATS = 8
_LOOP_LENGTH = 48
_NOISE_LENGTH = 8
_LETTERS_SHARE = 0.3

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
# With any other the answer was broken off.
_ENDINGS = ("stop", "length", "tool_calls", "function_call", None)
_TOOL_QUESTION = "What is the weather in Riga now? Use the tool."


@dataclass(frozen=True)
class Question:
    """A question whose answer is known: ``expect`` is a regular expression that the answer must contain."""

    prompt: str
    expect: str


@dataclass(frozen=True)
class Check:
    """One check and what it found."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Transcript:
    """Greedy output of fixed prompts, as token ids by prompt id."""

    prompts_sha256: str
    output_tokens: int
    tokens: dict[str, list[int]]


@dataclass(frozen=True)
class Agreement:
    """How far greedy output agrees with an earlier transcript.

    ``first_divergence`` is the smallest number of tokens after which a prompt went another way, None where
    none did. On GPUs it may, without a fault: batch shapes change the order of sums.
    """

    prompts: int
    equal: int
    first_divergence: int | None
    differing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Canary:
    """All checks of one server, its transcript and how that agrees with the reference, if there is one."""

    checks: list[Check]
    transcript: Transcript
    agreement: Agreement | None

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def faults(self) -> list[str]:
        """What failed, a line each."""
        return [f"{check.name}: {check.detail}" for check in self.checks if not check.passed]

    def to_json(self) -> dict[str, Any]:
        """What a throughput result keeps of it; the transcript is stored apart."""
        return {
            "passed": self.passed,
            "checks": [asdict(check) for check in self.checks],
            "agreement": None if self.agreement is None else asdict(self.agreement),
        }


def ask(server: Server, settings: Mapping[str, Any]) -> Canary:
    """Run every check as the options of the module ``correctness_canary`` say.

    Raises:
        OperatorError: the server does not say what it is, there are too few prompts, a question has no regular
            expression, or the reference is not a transcript.
    """
    chosen = load(Path(settings["prompts"]))
    return run(
        server,
        [_question(question) for question in settings["questions"]],
        chosen.pick(settings["transcript_prompts"]),
        chosen.sha256,
        answer_tokens=settings["answer_tokens"],
        output_tokens=settings["transcript_tokens"],
        tool_call=bool(server.info().tool_call_parser),
        reference=load_transcript(settings["reference"]),
        exact=settings["exact"],
    )


def _question(given: Mapping[str, str]) -> Question:
    try:
        re.compile(given["expect"])
    except re.error as error:
        raise OperatorError(
            "A question of the canary has no answer that can be looked for",
            found=f"{given['expect']!r}: {error}",
            expected="a regular expression of Python",
            remedy="correct it in throughput_check_questions",
        ) from error
    return Question(given["prompt"], given["expect"])


def load_transcript(path: str | None) -> Transcript | None:
    """A stored transcript; None when there is no such file.

    Raises:
        OperatorError: the file is not a transcript, as when it was cut off.
    """
    if not path or not Path(path).exists():
        return None
    remedy = f"remove the file (rm {quote(path)}); the next server that is good enough writes another"
    kept = read_object(Path(path), remedy=remedy)
    tokens = kept.get("tokens")
    whole = (
        set(kept) == {"prompts_sha256", "output_tokens", "tokens"}
        and isinstance(tokens, dict)
        and all(_are_ids(ids) for ids in tokens.values())
    )
    if not whole:
        raise OperatorError(
            "The earlier transcript cannot be read",
            found=f"{path} has {', '.join(sorted(kept)) or 'nothing'}",
            expected="a transcript that an earlier check wrote: prompts_sha256, output_tokens, and lists of token ids",
            remedy=remedy,
        )
    return Transcript(**kept)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)


def fault_of(text: str) -> str:
    """What is wrong with a text on the face of it: empty, noise or a loop. Empty string: nothing."""
    visible = "".join(text.split())
    if not visible:
        return "it is empty"
    if len(visible) >= _NOISE_LENGTH:
        letters = sum(character.isalnum() for character in visible) / len(visible)
        if letters < _LETTERS_SHARE:
            return f"only {letters:.0%} of it are letters or digits"
    period = _loop(text.strip())
    if period:
        return f"it repeats {text.strip()[-period:]!r} without end"
    return ""


def compare(now: Transcript, reference: Transcript) -> Agreement | None:
    """How ``now`` agrees with ``reference``; None when they are of different prompts or lengths."""
    if (now.prompts_sha256, now.output_tokens) != (reference.prompts_sha256, reference.output_tokens):
        return None
    diverged = {}
    for prompt, tokens in now.tokens.items():
        before = reference.tokens.get(prompt, [])
        if tokens != before:
            pairs = enumerate(zip(tokens, before))
            diverged[prompt] = next((at for at, (a, b) in pairs if a != b), min(len(tokens), len(before)))
    return Agreement(
        prompts=len(now.tokens),
        equal=len(now.tokens) - len(diverged),
        first_divergence=min(diverged.values()) if diverged else None,
        differing=sorted(diverged),
    )


def run(
    server: Server,
    questions: Sequence[Question],
    prompts: Sequence[Prompt],
    prompts_sha256: str,
    *,
    answer_tokens: int,
    output_tokens: int,
    tool_call: bool,
    reference: Transcript | None,
    exact: bool,
) -> Canary:
    """Run every check; one that fails does not keep the others from running.

    Args:
        server: the server.
        questions: questions with known answers.
        prompts: prompts of the transcript, also used for the other checks.
        prompts_sha256: hash of the file they are from.
        answer_tokens: how long an answer may be; a model that reasons needs room for that.
        output_tokens: length of each text of the transcript.
        tool_call: whether the server has a parser for tool calls.
        reference: the earlier transcript.
        exact: whether a difference from it is a fault.
    """
    checks = [
        _check(f"answer to {question.prompt!r}", partial(_answer, server, question, answer_tokens))
        for question in questions
    ]
    tokens: dict[str, list[int]] = {}
    checks.append(_check("text", partial(_texts, server, prompts, output_tokens, tokens)))
    checks.append(_check("repeated prefix", partial(_repeated_prefix, server, prompts)))
    if tool_call:
        checks.append(_check("tool call", partial(_tool_call, server, answer_tokens)))
    transcript = Transcript(prompts_sha256=prompts_sha256, output_tokens=output_tokens, tokens=tokens)
    agreement = compare(transcript, reference) if reference else None
    if exact:
        checks.append(_same_text(agreement, reference))
    return Canary(checks=checks, transcript=transcript, agreement=agreement)


def _check(name: str, look: Callable[[], str]) -> Check:
    """Run ``look``, which returns what it saw or raises _Wrong."""
    try:
        return Check(name, True, look())
    except _Wrong as wrong:
        return Check(name, False, str(wrong))
    except OperatorError as error:
        return Check(name, False, str(error))


def _same_text(agreement: Agreement | None, reference: Transcript | None) -> Check:
    """Whether the text is that of the transcript: of whatever was measured and good enough here last."""
    name = "same greedy text"
    if reference is None:
        return Check(name, True, "no earlier transcript; this one is kept if the server is good enough")
    if agreement is None:
        return Check(name, True, "the earlier transcript is of other prompts, so it says nothing")
    detail = f"{agreement.equal} of {agreement.prompts} texts are those of the earlier transcript"
    if agreement.differing:
        detail += f"; they part after {agreement.first_divergence} tokens"
    return Check(name, not agreement.differing, detail)


class _Wrong(Exception):
    """An answer that is not right."""


def _answer(server: Server, question: Question, tokens: int) -> str:
    message = _message(server.chat([{"role": "user", "content": question.prompt}], tokens))
    said = " ".join(filter(None, (_text(message, "reasoning_content"), _text(message, "content"))))
    fault = fault_of(said)
    if fault:
        raise _Wrong(f"{fault}: {_short(said)}")
    if not re.search(question.expect, said, re.IGNORECASE | re.DOTALL):
        raise _Wrong(f"expected {question.expect!r}, got {_short(said)}")
    return _short(said)


def _texts(server: Server, prompts: Sequence[Prompt], tokens: int, into: dict[str, list[int]]) -> str:
    for prompt in prompts:
        said = server.generate(prompt.text, tokens)
        text, count = _text(said, "text"), _meta(said).get("completion_tokens")
        ids: Any = said.get("output_ids")
        fault = fault_of(text)
        if fault:
            raise _Wrong(f"to {prompt.id}: {fault}: {_short(text)}")
        if type(count) is not int or not _are_ids(ids):
            raise _Wrong(f"to {prompt.id}: it does not tell its tokens: {_short(said)}")
        if count < tokens:
            raise _Wrong(f"to {prompt.id}: {count} of {tokens} tokens")
        into[prompt.id] = ids
    return f"{len(prompts)} texts of {tokens} tokens, none empty, noise or a loop"


def _repeated_prefix(server: Server, prompts: Sequence[Prompt]) -> str:
    if not prompts:
        raise _Wrong("there is no prompt to repeat; throughput_check_transcript_prompts has to be 1 or more")
    text = max((prompt.text for prompt in prompts), key=len)
    answers = [server.generate(text, 16) for _ in range(2)]
    for said in answers:
        fault = fault_of(_text(said, "text"))
        if fault:
            raise _Wrong(f"{fault}: {_short(said.get('text'))}")
    meta = _meta(answers[1])
    cached, asked = meta.get("cached_tokens", "unknown"), meta.get("prompt_tokens", "unknown")
    return f"answered twice; of {_short(asked)} prompt tokens from the cache: {_short(cached)}"


def _tool_call(server: Server, tokens: int) -> str:
    asked = [{"role": "user", "content": _TOOL_QUESTION}]
    message = _message(server.chat(asked, tokens, tools=[_TOOL]))
    calls = message.get("tool_calls")
    if calls is None or calls == []:
        raise _Wrong(f"no tool was called, it said {_short(message.get('content'))}")
    if not isinstance(calls, list) or len(calls) > 1:
        raise _Wrong(f"it made other calls than the one that was wanted: {_short(calls)}")
    function = _object(_object(calls[0], "the call").get("function"), "the function of the call")
    name, text = function.get("name"), function.get("arguments")
    if not isinstance(text, str):
        raise _Wrong(f"the arguments are no text: {_short(text)}")
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"the arguments are not JSON: {_short(text)}") from error
    city = arguments.get("city") if isinstance(arguments, dict) else None
    if name != "get_weather" or not isinstance(city, str) or not city.strip():
        raise _Wrong(f"it called {_short(name)}({_short(text)}), and not get_weather with a city")
    return f"{name}({_short(text)})"


def _message(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The message of a chat answer that ended as it should."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _Wrong(f"the answer has no choices: {_short(answer)}")
    choice = _object(choices[0], "the choice")
    if choice.get("finish_reason") not in _ENDINGS:
        raise _Wrong(f"the answer was broken off: finish_reason {_short(choice['finish_reason'])}")
    return _object(choice.get("message"), "the message")


def _meta(said: Mapping[str, Any]) -> dict[str, Any]:
    return _object(said.get("meta_info"), "meta_info")


def _text(holder: Mapping[str, Any], name: str) -> str:
    """A text of an answer; empty where it is null or left out."""
    text = holder.get(name)
    if text is not None and not isinstance(text, str):
        raise _Wrong(f"{name} is no text: {_short(text)}")
    return text or ""


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(f"{what} is no object: {_short(value)}")
    return value


def _loop(text: str) -> int:
    """The shortest period with which the end of a text repeats itself often enough to be a loop, else 0."""
    for period in range(1, _LOOP_PERIOD + 1):
        length = period
        while length < len(text) and text[-length - 1] == text[-length - 1 + period]:
            length += 1
        if length >= max(_LOOP_LENGTH, _LOOP_REPEATS * period):
            return period
    return 0


def _short(value: Any) -> str:
    """A value of an answer on one line that can be printed anywhere."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} of too many levels"
    text = " ".join(text.encode("utf-8", "replace").decode("utf-8").split())
    return text if len(text) <= 160 else f"{text[:160]}..."
