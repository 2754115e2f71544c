"""Which entries of launch.json and tasks.json are ours, and how they take a new shape without losing the user's say.

An entry is ours by its name: "Rank 1: train.py" is rank 1 of train.py whatever else is in it; an entry that
the user renames is theirs. What makes the job (connection, task, ranks, command) is ours and follows each `configure`;
what is taste (`TASTE`) is set once and then left as the user has it; properties that the user adds stay. Entries that
are not wanted any more go only if they still look generated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from raytrain_debug.editor import configurations as wanted
from raytrain_debug.editor.configurations import ATTACH_NAME, GROUP, POSTMORTEM_NAME, PREFIX, JobSpec

TASTE = frozenset(
    {"justMyCode", "presentation", "stopAll", "pathMappings", wanted.TOKEN, "options", "internalConsoleOptions"}
)

Entry = dict[str, Any]
_ANY_RANK = re.compile(r"Rank \d+: .+")


def updated_launch(value: Any, spec: JobSpec) -> Entry:
    """The value of launch.json with the entries of `spec`; `value` is what it holds, None for a new file."""
    old: Entry = {"version": "0.2.0"} if value is None else value
    return {
        **old,
        "configurations": _merged(
            old.get("configurations", []), wanted.configurations(spec), lambda entry: _role(entry, spec), _generated
        ),
        "compounds": _merged(
            old.get("compounds", []), wanted.compounds(spec), lambda entry: _role(entry, spec), _generated
        ),
    }


def updated_tasks(value: Any, spec: JobSpec) -> Entry:
    """The value of tasks.json with the tasks of `spec`; `value` is what it holds, None for a new file."""
    old: Entry = {"version": "2.0.0"} if value is None else value
    return {
        **old,
        "tasks": _merged(
            old.get("tasks", []), wanted.tasks(spec), lambda task: _role_of_task(task, spec), _generated_task
        ),
    }


def label(value: Any, spec: JobSpec) -> str:
    """What entries call the script of `spec`, given the value of tasks.json: its file name, or its path where another
    script of that name has entries already."""
    short = os.path.basename(spec.target) if spec.program else spec.target
    long = spec.target if spec.target != short else f"./{short}"
    tasks = [task for task in (value or {}).get("tasks", []) if isinstance(task, dict)]
    for candidate in (long, short):
        if any(_task_role(task, candidate) and spec.target in _arguments(task) for task in tasks):
            return candidate
    return long if any(_task_role(task, short) and _generated_task(task) for task in tasks) else short


def _merged(
    entries: list[Any],
    new: list[Entry],
    role: Callable[[Any], str | None],
    generated: Callable[[Entry], bool],
) -> list[Any]:
    """`entries` with those of ours updated in place, the unwanted dropped, and the missing behind their predecessor."""
    missing = {role(entry): entry for entry in new}
    roles = list(missing)
    result: list[Any] = []
    places: dict[str | None, int] = {}
    for entry in entries:
        what = role(entry)
        if what in missing:
            places[what] = len(result)
            result.append(_reshaped(entry, missing.pop(what)))
        elif what is None or not generated(entry):
            result.append(entry)
    for what, entry in missing.items():
        before = [places[other] for other in roles[: roles.index(what)] if other in places]
        place = max(before) + 1 if before else len(result)
        places = {other: at + (at >= place) for other, at in places.items()}
        places[what] = place
        result.insert(place, entry)
    return result


def _reshaped(entry: Entry, new: Entry) -> Entry:
    result = dict(entry)
    for key, value in new.items():
        if key == "configurations" and isinstance(entry.get(key), list):
            theirs = [name for name in entry[key] if not (isinstance(name, str) and _ANY_RANK.fullmatch(name))]
            result[key] = [*value, *theirs]
        elif key not in TASTE or key not in entry:
            result[key] = value
    if "preLaunchTask" not in new and str(entry.get("preLaunchTask")).startswith(f"{PREFIX}launch "):
        del result["preLaunchTask"]
    return result


def _role(entry: Any, spec: JobSpec) -> str | None:
    """What an entry of launch.json is to the job: "Rank 3", "job", "single", "attach", "post-mortem"; None if not ours.

    The post-mortem belongs to all scripts: for a job on other machines it is not ours to change.
    """
    name = entry.get("name") if isinstance(entry, dict) else None
    if name == ATTACH_NAME:
        return "attach"
    if name == POSTMORTEM_NAME:
        return "post-mortem" if spec.local else None
    if isinstance(name, str) and _ANY_RANK.fullmatch(name):
        rank, _, called = name.partition(": ")
        return rank if called == spec.called else None
    return _role_by_name(name, PREFIX + spec.called)


def _role_of_task(task: Any, spec: JobSpec) -> str | None:
    """What a task is to the job: "job", "single", "post-mortem"; None when it is not of ours."""
    if isinstance(task, dict) and task.get("label") == POSTMORTEM_NAME:
        return "post-mortem" if spec.local else None
    return _task_role(task, spec.called)


def _task_role(task: Any, called: str) -> str | None:
    name = task.get("label") if isinstance(task, dict) else None
    return _role_by_name(name, f"{PREFIX}launch {called}")


def _role_by_name(name: Any, start: str) -> str | None:
    if not isinstance(name, str) or not name.startswith(start + " "):
        return None
    rest = name[len(start) + 1 :]
    return "single" if rest == "(single process)" else "job" if re.fullmatch(r"\(\d+ ranks?\)", rest) else None


def _generated(entry: Entry) -> bool:
    presentation = entry.get("presentation")
    return isinstance(presentation, dict) and presentation.get("group") == GROUP


def _generated_task(task: Entry) -> bool:
    return "raytrain_debug" in _arguments(task)


def _arguments(task: Entry) -> list[Any]:
    args = task.get("args")
    return args if isinstance(args, list) else []
