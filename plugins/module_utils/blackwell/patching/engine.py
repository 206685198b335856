"""The state of every patch on an installation, and the way from there to the state that is wanted.

All is planned in memory first: when the first byte is written, it is known that every patch can be made
and that its postconditions hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..booleans import is_true
from ..errors import OperatorError
from . import checks, edits, hunks, transaction
from .definition import Check, Foreign, Patch, Variant, ordered, parse
from .installation import Package, locate
from .sources import Conflict, Sources
from .syntax import NotFound
from .versions import in_range

NEEDED = "needed"
APPLIED = "applied"
FOREIGN = "foreign"
UPSTREAM = "upstream"
NOT_APPLICABLE = "not_applicable"
DISABLED = "disabled"
STALE = "stale"
CONFLICT = "conflict"

IN_PLACE = (APPLIED, FOREIGN, UPSTREAM)
"""States in which the release does what the patch is for."""

AT_REST = (*IN_PLACE, NOT_APPLICABLE, DISABLED)
"""States that ask for nothing to be done."""


@dataclass
class Status:
    """One patch on one installation.

    Attributes:
        plan: the new text of each file, where the state asks for a change and the change is possible.
        leaves: whether that change takes our text out for good.
        file: the file that ``reason`` speaks of, else the first to patch; relative to the package's folder.
        edited: whether a file of the patch differs, our patches apart, from the published one; None if that
            is unknown.
    """

    patch: Patch
    wanted: bool
    state: str
    reason: str
    package: Package | None = None
    file: str | None = None
    edited: bool | None = None
    plan: dict[str, str] = field(default_factory=dict)
    leaves: bool = False

    @property
    def path(self) -> str | None:
        """``file`` as an absolute path."""
        return str(self.package.root / self.file) if self.package and self.file else None

    def describe(self) -> dict[str, Any]:
        """What a report shows, as plain data."""
        variant = self.patch.variant(self.package.version) if self.package else None
        return {
            "id": self.patch.id,
            "title": self.patch.title,
            "kind": self.patch.kind,
            "method": self.patch.method,
            "package": self.patch.package,
            "version": self.package.version if self.package else None,
            "enabled": self.wanted,
            "state": self.state,
            "reason": self.reason,
            "file": self.file,
            "path": self.path,
            "edited": self.edited,
            "written": self._written(),
            "text_file": variant.text_file if variant else None,
            "sha256": transaction.sha256(self.plan[self.file].encode()) if self.file in self.plan else None,
        }

    def _written(self) -> float | None:
        """When the patch's files were last written, in seconds since the epoch; None if none is there."""
        files = [self.package.root / file for file in self.patch.files] if self.package else []
        return max((file.stat().st_mtime for file in files if file.is_file()), default=None)


VARIABLES = {"model": "model_patches_enabled", "guard": "sm120_guards_enabled"}
"""The variable of an inventory that switches the patches of a kind."""


def switches(patches: Sequence[Patch], given: Mapping[str, Any], kind: str | None = None) -> dict[str, bool]:
    """Which patches are on: as given, else by their own default; one that is on turns on what it needs.

    Args:
        patches: the whole set.
        given: booleans, or texts that Ansible takes for one, by the patch's id.
        kind: the one kind that ``given`` may name; None for all.

    Raises:
        OperatorError: a switch for no patch or for one of another kind, one that is neither on nor off, or one that is
            off though a patch that is on needs it.
    """
    known = {patch.id: patch for patch in patches}
    given = {str(name): value for name, value in given.items()}
    _check_names(given.keys(), known, kind)
    on = _read_switches(given, known)
    enabled = {patch.id: on.get(patch.id, patch.default) for patch in patches}
    for patch in reversed(ordered(patches)):
        for need in patch.needs if enabled[patch.id] else ():
            if on.get(need) is False:
                raise OperatorError(
                    f"The patch {patch.id} is on, but {need}, which it needs, is switched off",
                    found=f"{need}: false",
                    remedy=f"switch {need} on, or {patch.id} off",
                )
            enabled[need] = True
    return enabled


def switches_by_kind(patches: Sequence[Patch], given: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """Which patches are on, of all kinds at once: a patch of one kind may need one of another.

    Args:
        patches: the whole set.
        given: for each kind the switches of its variable, as for :func:`switches`.

    Raises:
        OperatorError: as for :func:`switches`; a switch in the variable of another kind is one of the errors.
    """
    for kind, own in given.items():
        _check_names({str(name) for name in own}, {patch.id: patch for patch in patches}, kind)
    return switches(patches, {name: value for own in given.values() for name, value in own.items()})


def _check_names(given: Set[str], known: Mapping[str, Patch], kind: str | None) -> None:
    """Refuse names of no patch, and names of another kind."""
    if unknown := sorted(given - known.keys()):
        raise OperatorError(
            f"There is no patch {', '.join(unknown)} to switch",
            found=f"{', '.join(unknown)} in {VARIABLES.get(kind or '', 'the variable that enables patches')}",
            expected=f"one of {', '.join(sorted(one.id for one in known.values() if kind in (None, one.kind)))}",
            remedy="correct the name in the variable that enables patches",
        )
    if kind in VARIABLES and (others := sorted(name for name in given if known[name].kind != kind)):
        right = VARIABLES[known[others[0]].kind]
        raise OperatorError(
            f"{VARIABLES[kind]} cannot switch {', '.join(others)}",
            found=f"{', '.join(others)} in {VARIABLES[kind]}",
            expected=f"patches of the kind {kind}: {', '.join(sorted(o.id for o in known.values() if o.kind == kind))}",
            remedy=f"move {', '.join(others)} to {right}",
        )


def _read_switches(given: Mapping[str, Any], known: Mapping[str, Patch]) -> dict[str, bool]:
    on: dict[str, bool] = {}
    for name, value in given.items():
        try:
            # Nothing would count as off.
            on[name] = is_true("nothing" if value in (None, "") else value)
        except ValueError as error:
            raise OperatorError(
                "A patch is switched on or off with true or false",
                found=f"{name}: {value!r}",
                expected=f"{name}: true, or {name}: false",
                remedy=f"correct {name} in {VARIABLES[known[name].kind]}",
            ) from error
    return on


class Installation:
    """The patches of a set on the packages that one interpreter runs."""

    def __init__(
        self,
        python: str,
        definitions: Iterable[Mapping[str, Any]],
        enabled: Mapping[str, Any] | None = None,
        *,
        adopt: bool = False,
        kind: str | None = None,
        enabled_by_kind: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Find the packages; nothing is read or changed yet.

        Args:
            python: path of the interpreter that runs SGLang.
            definitions: contents of the ``patch.yml`` files.
            enabled: switches that differ from the patches' own defaults.
            adopt: replace equivalent edits made by hand with ours.
            kind: the one kind of patches that ``enabled`` may name; None for all.
            enabled_by_kind: instead of ``enabled``, the switches of each kind's variable.

        Raises:
            OperatorError: the interpreter has none of the packages, or definitions or switches are wrong.
        """
        self.patches = ordered(parse(raw) for raw in definitions)
        if enabled_by_kind is None:
            self.enabled = switches(self.patches, enabled or {}, kind)
        else:
            self.enabled = switches_by_kind(self.patches, enabled_by_kind)
        self.adopt = adopt
        self.python = python
        names = sorted({(patch.package, patch.distribution) for patch in self.patches})
        self.packages = locate(python, names)
        if not self.packages:
            raise OperatorError(
                f"The interpreter {python} has nothing to patch",
                found="none of " + ", ".join(name for name, _ in names),
                remedy="name the python of the environment that SGLang is installed in",
            )
        self.sources = {name: Sources(package) for name, package in self.packages.items()}

    def select(self, ids: Iterable[str] = (), kind: str | None = None) -> list[Patch]:
        """The patches with these ids (all if none is named) and of this kind, in the order to apply them.

        Raises:
            OperatorError: an id is not in the set.
        """
        asked = set(ids)
        if unknown := sorted(asked - {patch.id for patch in self.patches}):
            raise OperatorError(
                f"There is no patch {', '.join(unknown)}",
                expected="one of " + ", ".join(patch.id for patch in self.patches),
                remedy="correct the id",
            )
        return [
            patch for patch in self.patches if (not asked or patch.id in asked) and kind in (None, patch.kind)
        ]

    def status(self, selected: Sequence[Patch]) -> list[Status]:
        """The state of each selected patch, in the order in which they would be applied."""
        by_id = {patch.id: self._assess(patch) for patch in self.patches}
        for status in by_id.values():
            self._weigh_needs(status, by_id)
        return [by_id[patch.id] for patch in selected]

    def bare(self, patch: Patch) -> dict[str, str]:
        """The files of ``patch`` that hold our text, without it.

        Raises:
            Conflict: markers are damaged, or a file cannot be read.
        """
        if patch.package not in self.sources:
            return {}
        source = self.sources[patch.package]
        files = [file for file in patch.files if (source.package.root / file).is_file()]
        return {
            file: text for file in files if (text := source.without(file, [patch.id])) != source.text(file)
        }

    @property
    def roots(self) -> list[Path]:
        """The folders of the packages, in the order in which they are locked. The first holds the journal."""
        return sorted(package.root for package in self.packages.values())

    def paths(self, patch: Patch) -> set[Path]:
        """The files that some variant of ``patch`` changes, whether they are there or not."""
        package = self.packages.get(patch.package)
        return {package.root / file for file in patch.files} if package else set()

    def recover(self) -> list[str]:
        """Complete what a run that was cut off had begun: its files. The caller holds the locks."""
        files = [path for patch in self.patches for path in self.paths(patch) if path.is_file()]
        return [path for root in self.roots for path in transaction.recover(root, files)]

    def changes(self) -> list[tuple[str, str, str]]:
        """(path, old text, new text) of each file whose text was changed in memory."""
        return [
            (str(source.package.root / file), old, source.text(file))
            for source in self.sources.values()
            for file, old in source.original.items()
            if source.text(file) != old
        ]

    def _weigh_needs(self, status: Status, by_id: Mapping[str, Status]) -> None:
        """A patch without what it needs is worse than none."""
        if not status.wanted or status.leaves or status.state not in (NEEDED, APPLIED, STALE):
            return
        for need in status.patch.needs:
            other = by_id[need]
            will_be = other.state in (NEEDED, STALE) and other.wanted and not other.leaves
            if other.state not in IN_PLACE and not will_be:
                status.state, status.plan = CONFLICT, {}
                status.reason = f"it needs {need}, which is {other.state}: {other.reason}"
                return

    def _assess(self, patch: Patch) -> Status:
        wanted = self.enabled[patch.id]
        package = self.packages.get(patch.package)
        if package is None:
            return Status(patch, wanted, NOT_APPLICABLE, f"{patch.package} is not installed")
        source = self.sources[patch.package]
        variant = patch.variant(package.version)
        files = [
            file for file in (variant.files if variant else patch.files) if (package.root / file).is_file()
        ]
        status = Status(patch, wanted, CONFLICT, "", package, next(iter(files or patch.files), None))
        try:
            self._judge(status, source, variant, files)
            for file in status.plan:
                source.refuse_read_only(file)
        except Conflict as conflict:
            status.state, status.reason, status.plan = CONFLICT, conflict.reason, {}
            status.file = conflict.file or status.file
        status.edited = self._edited(source, files)
        if status.state == CONFLICT and not wanted:
            status.state, status.reason = DISABLED, f"switched off (and it would not fit: {status.reason})"
        return status

    @staticmethod
    def _edited(source: Sources, files: Iterable[str]) -> bool | None:
        known = [edited for file in files if (edited := source.edited(file)) is not None]
        return any(known) if known else None

    def _judge(self, status: Status, source: Sources, variant: Variant | None, files: Sequence[str]) -> None:
        patch, version = status.patch, source.package.version
        bare = {file: source.without(file, [patch.id]) for file in files}
        ours = any(bare[file] != source.text(file) for file in files)
        back = {file: text for file, text in bare.items() if text != source.text(file)}

        superseded = self._superseded(patch, source)
        if superseded is None and (exclusion := patch.exclusion(version)) is not None:
            superseded = (NOT_APPLICABLE, exclusion)
        if superseded is not None:
            status.state, status.reason = superseded
            if ours:
                status.state, status.plan, status.leaves = STALE, back, True
                status.reason = f"our text is there, but no longer wanted: {superseded[1]}"
            return
        if ours and not status.wanted:
            status.state, status.plan, status.leaves = STALE, back, True
            status.reason = "our text is there, but switched off"
            return
        if variant is None:
            raise Conflict(f"nobody has written this patch for {patch.distribution} {version}")
        if missing := [file for file in variant.files if file not in files]:
            raise Conflict("is not there", missing[0])
        if ours:
            self._judge_ours(status, source, variant, bare)
        else:
            self._judge_published(status, source, variant, bare)

    def _judge_ours(self, status: Status, source: Sources, variant: Variant, bare: Mapping[str, str]) -> None:
        """The state of a patch of which some text is there."""
        clean = {file: source.without(file) for file in variant.files}
        expected = self._patched(status.patch, variant, source, clean)
        if all(_without_others(source, file, status.patch.id) == text for file, text in expected.items()):
            status.state, status.reason = APPLIED, "our text is there"
        else:
            status.plan = self._patched(status.patch, variant, source, bare)
            status.state, status.reason = STALE, "our text is there, but in another version or place"

    def _judge_published(
        self, status: Status, source: Sources, variant: Variant, bare: Mapping[str, str]
    ) -> None:
        """The state of a patch of which nothing is there: the file is as published, or somebody else edited it."""
        patch, adopt = status.patch, self.adopt and status.wanted
        foreign = self._foreign(patch, source)
        try:
            plan = {} if foreign else self._patched(patch, variant, source, bare)
        except Conflict:
            if not adopt:
                raise
            plan = {}
        if plan and status.wanted:
            status.state, status.reason, status.plan = NEEDED, patch.reason, plan
        elif plan:
            status.state, status.reason = DISABLED, "switched off"
        else:
            status.state = FOREIGN
            status.reason = foreign.because if foreign else "an incomplete edit made by hand"
            if adopt:
                status.plan = self._patched(
                    patch, variant, source, self._without_foreign(source, bare, patch)
                )

    @staticmethod
    def _superseded(patch: Patch, source: Sources) -> tuple[str, str] | None:
        version = source.package.version
        for upstream in patch.upstream:
            if checks.failures(upstream.when, source.without_ours):
                continue
            if in_range(version, upstream.releases) or _all_published(source, upstream.when):
                return UPSTREAM, upstream.because
        for upstream in patch.upstream:
            if in_range(version, upstream.releases):
                problem = checks.failures(upstream.when, source.without_ours)[0]
                raise Conflict(f"upstream should have it since {upstream.releases}, but {problem}")
        return None

    @staticmethod
    def _foreign(patch: Patch, source: Sources) -> Foreign | None:
        found = (one for one in patch.foreign if not checks.failures(one.when, source.without_ours))
        return next(found, None)

    @staticmethod
    def _without_foreign(source: Sources, bare: Mapping[str, str], patch: Patch) -> dict[str, str]:
        """The published text of each file, from one that was edited by hand.

        Raises:
            Conflict: no known way back leads to the published bytes.
        """
        result = {}
        for file, text in bare.items():
            restore = [edit for one in patch.foreign for edit in one.restore if edit.file == file]
            candidates = edits.restored(text, source.tree(file, text), restore)
            published = source.package.published_sha256(file)
            if published is not None:
                digests = {one: transaction.sha256(hunks.without(one).encode()) for one in candidates}
                candidates = [one for one in candidates if digests[one] == published]
                if not candidates:
                    raise Conflict(
                        "was edited by hand in a way that cannot be taken back to the published bytes: "
                        f"reinstall {patch.distribution} {source.package.version} without its dependencies",
                        file,
                    )
            result[file] = candidates[0]
        return result

    @staticmethod
    def _patched(patch: Patch, variant: Variant, source: Sources, bare: Mapping[str, str]) -> dict[str, str]:
        """The text of each file with the patch in it; it is proved to work, and to come out again."""
        if problems := checks.failures(variant.preconditions, _trees(source, bare)):
            raise Conflict(problems[0], _file_of(variant.preconditions, source, bare))
        result = {}
        for file in variant.files:
            text = bare[file]
            source.refuse_shared(file)
            if not text.endswith("\n"):
                raise Conflict("does not end with a line break" if text else "is empty", file)
            own = [edit for edit in variant.edits if edit.file == file]
            try:
                new = hunks.with_changes(text, edits.changes(text, source.tree(file, text), own), patch.id)
            except (NotFound, ValueError) as problem:
                raise Conflict(str(problem), file) from problem
            source.refuse_broken(file, new)
            if hunks.without(new, [patch.id]) != text:
                raise Conflict("the patch could not be taken out again", file)
            result[file] = new
        if problems := checks.failures(variant.postconditions, _trees(source, result)):
            raise Conflict(f"the patch would not do what it is for: {problems[0]}", variant.files[0])
        return result


def _without_others(source: Sources, file: str, patch: str) -> str:
    """The text of ``file`` with one patch and no other: which of two neighbours is first does not matter."""
    return source.without(file, hunks.ids_in(source.text(file)) - {patch})


def _trees(source: Sources, texts: Mapping[str, str]) -> checks.Trees:
    return lambda file: source.tree(file, texts.get(file))


def _file_of(conditions: Iterable[Check], source: Sources, texts: Mapping[str, str]) -> str | None:
    trees = _trees(source, texts)
    return next((check.file for check in conditions if checks.failure(check, trees)), None)


def _all_published(source: Sources, conditions: Iterable[Check]) -> bool:
    return all(source.edited(check.file) is False for check in conditions)


@dataclass
class Outcome:
    """What a run found and did.

    Attributes:
        before, after: the state of each selected patch, before and after.
        changes: (path, old text, new text) of each file that changed, or would have in check mode.
        recovered: files that a run which was cut off had left half done, and this one completed or took back.
    """

    before: list[Status]
    after: list[Status]
    changes: list[tuple[str, str, str]]
    recovered: list[str]


def status(installation: Installation, selected: Sequence[Patch]) -> list[Status]:
    """The state of each selected patch. Reads only.

    Raises:
        OperatorError: another run is changing the installation.
    """
    with locks(installation, shared=True):
        return installation.status(selected)


def verify(installation: Installation, selected: Sequence[Patch]) -> list[Status]:
    """The state of each selected patch, once it is certain that none of them asks for anything.

    Raises:
        OperatorError: a patch is not as it should be; the message names all of them.
    """
    found = status(installation, selected)
    _refuse([one for one in found if one.state not in AT_REST], "are not as they should be")
    return found


def apply(installation: Installation, selected: Sequence[Patch], *, write: bool = True) -> Outcome:
    """Bring the selected patches, and those they need, to rest: make what is needed, renew or remove what
    is stale.

    Raises:
        OperatorError: a patch is in conflict (nothing was changed then), or a file cannot be written.
    """
    involved = _closure(installation, selected, lambda one, other: other.id in one.needs)

    return _run(installation, involved, lambda status: status.plan, AT_REST, write=write)


def revert(installation: Installation, selected: Sequence[Patch], *, write: bool = True) -> Outcome:
    """Take the selected patches, and those that need them, out of the files, whatever their switches say.

    Raises:
        OperatorError: the markers in a file are damaged (nothing was changed then), or it cannot be written.
    """
    involved = _closure(installation, selected, lambda one, other: one.id in other.needs)
    return _run(installation, involved[::-1], lambda status: installation.bare(status.patch), (), write=write)


def _closure(
    installation: Installation, selected: Sequence[Patch], related: Callable[[Patch, Patch], bool]
) -> list[Patch]:
    ids = {patch.id for patch in selected}
    for _ in installation.patches:
        inside = [patch for patch in installation.patches if patch.id in ids]
        ids |= {other.id for other in installation.patches for one in inside if related(one, other)}
    return [patch for patch in installation.patches if patch.id in ids]


def _run(
    installation: Installation,
    patches: Sequence[Patch],
    plan: Callable[[Status], dict[str, str]],
    goal: Sequence[str],
    *,
    write: bool,
) -> Outcome:
    with locks(installation, shared=not write):
        recovered = installation.recover() if write else []
        before = installation.status(patches)
        planned: dict[Path, bytes] = {}
        for found in before:
            if planned.keys() & installation.paths(found.patch):
                (found,) = installation.status([found.patch])
            try:
                texts = plan(found)
            except Conflict as conflict:
                raise OperatorError(
                    f"The patch {found.patch.id} cannot be taken out; nothing was changed",
                    found=f"{conflict.file} {conflict.reason}",
                    expected="a file as it was patched",
                    remedy=f"reinstall {found.patch.distribution} without its dependencies, which takes it out as well",
                ) from conflict
            for file, text in texts.items():
                source = installation.sources[found.patch.package]
                source.change(file, text)
                planned[source.package.root / file] = text.encode()
        after = installation.status(patches) if planned else before
        if goal:
            _refuse([one for one in after if one.state not in goal], "cannot be made; nothing was changed")
        if write and planned:
            transaction.write(installation.roots[0], planned)
    return Outcome(before, after, installation.changes(), recovered)


@contextlib.contextmanager
def locks(installation: Installation, *, shared: bool) -> Iterator[None]:
    """Hold the locks on all packages of an installation; only shared ones if nothing will be written."""
    with contextlib.ExitStack() as stack:
        for root in installation.roots:
            stack.enter_context(transaction.locked(root, shared=shared))
        yield


def _refuse(open_ones: Sequence[Status], what: str) -> None:
    if not open_ones:
        return
    sentences = [f"{one.patch.id}: {one.state}; {one.path} {one.reason}" for one in open_ones]
    raise OperatorError(
        f"Patches {what}", found=" | ".join(sentences), remedy="docs/patches.md says what each state asks for"
    )
