"""launch.json and tasks.json on disk: read, edited and replaced whole, or left untouched with the reason told."""

from __future__ import annotations

import dataclasses
import difflib
import errno
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain_debug.editor import edits, jsonc, ownership
from raytrain_debug.editor.configurations import JobSpec
from raytrain_debug.errors import LaunchJsonError, UsageError

FOLDER = "${workspaceFolder}"
_ATTEMPTS = 10

Transform = Callable[[Any], Any]


@dataclass(frozen=True)
class Change:
    """A file's bytes `before` and `after`; None where there is no file."""

    path: Path
    before: bytes | None
    after: bytes | None

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return self.before != self.after

    def diff(self) -> str:
        """The change as a unified diff; empty when there is none."""
        name = f"{self.path.parent.name}/{self.path.name}"
        old, new = ((data or b"").decode("utf-8").splitlines() for data in (self.before, self.after))
        start = "/dev/null" if self.before is None else f"a/{name}"
        return "\n".join(difflib.unified_diff(old, new, start, f"b/{name}", lineterm=""))


@dataclass(frozen=True)
class Written:
    """What `write_configurations` did: the job as it was written, and the change of each file, unchanged ones too."""

    spec: JobSpec
    changes: tuple[Change, ...]


def write_configurations(spec: JobSpec, workspace: str | os.PathLike[str], dry_run: bool = False) -> Written:
    """Bring `.vscode/tasks.json` and `.vscode/launch.json` of the folder `workspace` up to `spec`.

    Paths in `spec` are as seen from the working directory. Files that are right already are not written, none is with
    `dry_run`. Raises LaunchJsonError, and then both files are as they were unless only the second write failed.
    """
    folder = Path(workspace) / ".vscode"
    spec = located(spec, Path(workspace))
    tasks, launch = folder / "tasks.json", folder / "launch.json"
    spec = dataclasses.replace(spec, label=ownership.label(_parsed(tasks, _read(tasks), ("tasks",)).value, spec))
    plans = (
        (tasks, ("tasks",), lambda value: ownership.updated_tasks(value, spec)),
        (launch, ("configurations", "compounds"), lambda value: ownership.updated_launch(value, spec)),
    )
    # All are planned before the first is written: a fault in one leaves both alone.
    changes = [(_planned(path, lists, transform), lists, transform) for path, lists, transform in plans]
    if dry_run:
        return Written(spec, tuple(change for change, _, _ in changes))
    return Written(spec, tuple(_written(change, lists, transform) for change, lists, transform in changes))


def located(spec: JobSpec, workspace: Path) -> JobSpec:
    """`spec` with its script relative to `workspace` and its Python by `${workspaceFolder}` where they lie inside."""
    program, python = spec.program, spec.python
    if program:
        program = _inside(program, workspace) or os.path.abspath(program)
    if os.sep in python and "${" not in python:
        inside = _inside(python, workspace)
        python = f"{FOLDER}/{inside}" if inside else os.path.abspath(python)
    return dataclasses.replace(spec, program=program, python=python)


def _inside(path: str, workspace: Path) -> str | None:
    """`path` relative to `workspace`, or None when it lies elsewhere; a link at its end is not followed."""
    folder, name = os.path.split(os.path.abspath(path))
    for real in (os.path.abspath, os.path.realpath):
        relative = os.path.relpath(os.path.join(real(folder), name), real(workspace))
        if relative.split(os.sep)[0] != os.pardir:
            return relative
    return None


def _planned(path: Path, lists: tuple[str, ...], transform: Transform) -> Change:
    before = _read(path)
    document = _parsed(path, before, lists)
    value = transform(document.value)
    if before is None and not any(value[key] for key in lists):
        return Change(path, None, None)
    text = edits.update(document, value)
    if not edits.same(jsonc.parse(text, str(path)).value, value):
        raise LaunchJsonError(f"{path} was left untouched: the edited text would not read back as meant")
    try:
        return Change(path, before, text.encode("utf-8"))
    except UnicodeEncodeError:
        raise UsageError("VS Code cannot pass on a path or argument that is not valid UTF-8", "rename it") from None


def _written(change: Change, lists: tuple[str, ...], transform: Transform) -> Change:
    for _ in range(_ATTEMPTS):
        if not change.changed or _replaced(change):
            return change
        change = _planned(change.path, lists, transform)
    raise LaunchJsonError(f"{change.path} changes all the time", "close what writes it and run the command again")


def _read(path: Path) -> bytes | None:
    """The bytes of a regular file, None when there is none; raises LaunchJsonError."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise LaunchJsonError(f"{path} is not a regular file", "move it away and run the command again")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LaunchJsonError(
            f"cannot read {path}: {error.strerror}", "make it readable for you, or move it away"
        ) from None


def _parsed(path: Path, data: bytes | None, lists: tuple[str, ...]) -> jsonc.Document:
    """The document in `data`, an object whose `lists` are arrays where they exist; raises LaunchJsonError."""
    name = str(path)
    try:
        text = (data or b"").decode("utf-8")
    except UnicodeDecodeError as error:
        text = (data or b"").decode("utf-8", "replace")
        place = len((data or b"")[: error.start].decode("utf-8", "replace"))
        raise jsonc.fault(text, place, name, "this is not UTF-8 text") from None
    document = jsonc.parse(text, name)
    if document.root is not None:
        if not isinstance(document.value, dict):
            raise jsonc.fault(text, document.root.start, name, "the file must hold an object: { ... }")
        for item in document.root.items:
            if item.key in lists and not isinstance(item.node.value, list):
                raise jsonc.fault(text, item.node.start, name, f'"{item.key}" must be an array: [ ... ]')
    return document


def _replaced(change: Change) -> bool:
    """Put the new bytes in place of the old at once; False when the file is no longer what was read."""
    target = Path(os.path.realpath(change.path))
    temporary = ""
    try:
        change.path.parent.mkdir(exist_ok=True)  # not what a symbolic link names, which may lie anywhere
        effective = os.access in os.supports_effective_ids
        if change.before is not None and not os.access(target, os.W_OK, effective_ids=effective):
            raise PermissionError(errno.EACCES, "it is read-only")
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with open(descriptor, "wb") as file:
            file.write(change.after or b"")
        _take_after(target, temporary)
        if _read(change.path) != change.before:
            return False
        os.replace(temporary, target)
        return True
    except OSError as error:
        raise LaunchJsonError(
            f"cannot write {change.path}: {error.strerror}",
            f"make {target.parent} and the file writable for you (chmod u+w), or see what to add with --dry-run",
        ) from None
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def _take_after(target: Path, temporary: str) -> None:
    """Give the new file the mode and owner of the one it replaces, or the mode of any new file."""
    try:
        status = os.stat(target)
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        return
    if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.chown(temporary, status.st_uid, status.st_gid)
    os.chmod(temporary, stat.S_IMODE(status.st_mode))
