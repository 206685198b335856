"""What the rules of the draft contract look at, and what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .booleans import is_true
from .draft_class import LLAMA_DRAFTER
from .draft_model import LAYER_IDS, Model
from .draft_release import Release
from .errors import OperatorError
from .free_form import canonical
from .safetensors import Tensor

# The first release in which drafters may listen to another number of layers than three, or have latent attention.
MANY_STATES = (0, 5, 12)
OTHER_DRAFTER = "use a drafter that was trained for this target (eagle3_server_draft_model_path)"
DAMAGED_DRAFTER = "copy the drafter again; if its publisher has it like this, use another one"


@dataclass(frozen=True)
class Finding:
    """One thing that does not fit.

    Attributes:
        id: a short name of the rule.
        severity: ``error`` or ``warning``.
        problem: one sentence, without a full stop.
        found: what is there.
        expected: what would be right.
        remedy: what to do.
    """

    id: str
    severity: str
    problem: str
    found: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return str(OperatorError(self.problem, found=self.found, expected=self.expected, remedy=self.remedy))


def not_checked(subject: str, reason: str, remedy: str) -> Finding:
    """A finding that says that something was not looked at, and why."""
    return Finding(
        "not_checked", "warning", f"{subject} is not checked", reason, "something to check it with", remedy
    )


def find_argument(arguments: Mapping[str, Any], name: str) -> Any:
    """The value of a flag, in any of its spellings; None if it is not given."""
    given = (value for key, value in arguments.items() if canonical(str(key)) == name)
    return next((value for value in given if value is not None), None)


@dataclass(frozen=True)
class Case:
    """Everything that a rule may look at."""

    target: Model
    draft: Model
    arguments: Mapping[str, Any]
    environment: Mapping[str, Any]
    release: Release

    def __post_init__(self) -> None:
        # Both are read before the release is known, and it says where their sizes are.
        for role in ("target", "draft"):
            object.__setattr__(self, role, replace(getattr(self, role), places=self.release.places))

    @property
    def roles(self) -> tuple[tuple[str, Model], ...]:
        """Both models with their names in messages."""
        return ("target", self.target), ("drafter", self.draft)

    def argument(self, name: str) -> Any:
        """The value of a flag of the server; None if it is not given."""
        return find_argument(self.arguments, name)

    def _number(self, name: str) -> int:
        value = self.argument(name)
        try:
            return int(value or 0)
        except (TypeError, ValueError, OverflowError):
            raise OperatorError(
                f"The server's {name} is no whole number",
                found=repr(value),
                expected="a whole number",
                remedy="correct it in the inventory",
            ) from None

    @property
    def is_llama(self) -> bool:
        """Whether the drafter is of the class with multi-head attention."""
        return self.draft.architecture == LLAMA_DRAFTER

    @property
    def attention_ranks(self) -> int:
        """How many GPUs share the heads of a layer."""
        try:
            spreads = is_true(self.argument("enable_dp_attention"))
        except ValueError as error:
            raise OperatorError(
                "The server's enable_dp_attention is no truth value",
                found=str(error),
                expected="true or false",
                remedy="correct it in the inventory",
            ) from None
        size = self._number("tp_size") or 1
        return max(size // (self._number("dp_size") or 1 if spreads else 1), 1)

    @property
    def draft_vocabulary(self) -> int | None:
        """How many tokens the drafter chooses from."""
        return self.draft.size("draft_vocab_size") or self.draft.vocabulary

    @property
    def target_hidden(self) -> int | None:
        """The size of the target's hidden states, by the drafter's word."""
        return self.draft.size("target_hidden_size") or self.draft.hidden

    @property
    def uses_states(self) -> bool:
        """Whether the drafter takes hidden states of several layers, or only the last one, by its own word."""
        named = self.draft.config.get("eagle_config")
        return bool(named.get("use_aux_hidden_state", True)) if isinstance(named, dict) else True

    @property
    def layers(self) -> Sequence[int] | None:
        """The target's layers that the drafter listens to, where SGLang looks for them."""
        named = self.draft.config.get("eagle_config")
        return named.get(LAYER_IDS) if isinstance(named, dict) else None

    @property
    def states(self) -> int:
        """How many hidden states of the target the drafter takes, as SGLang builds it."""
        if self.release.before(MANY_STATES):
            return 3
        return self.draft.size("num_aux_hidden_states") or len(self.layers or (0, 0, 0))

    @property
    def context(self) -> int | None:
        """The window that the server will have."""
        return self._number("context_length") or self.target.window

    @cached_property
    def d2t(self) -> Tensor | None:
        """From draft id to what has to be added to get the target's id."""
        return self.draft.tensor("d2t")

    @cached_property
    def t2d(self) -> Tensor | None:
        """For each target id, whether the drafter knows it."""
        return self.draft.tensor("t2d")

    @cached_property
    def chosen(self) -> Sequence[int]:
        """The target's id for each draft id; empty without a usable map."""
        return (
            [at + shift for at, shift in enumerate(self.d2t.values())] if self.d2t and self.d2t.whole else []
        )


Rule = Callable[[Case], Iterator[Finding]]
