"""A checkpoint to look around in: its files as mappings from names to tensors, each loaded when it is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain_debug.errors import CheckpointError
from raytrain_debug.postmortem import checkpoints, snapshots
from raytrain_debug.run.words import counted

if TYPE_CHECKING:
    from raytrain_debug.postmortem.contents import Contents


class OpenFiles:
    """Checkpoint files, opened safely when first asked for and held open until `close`."""

    def __init__(self, unsafe: bool = False) -> None:
        """`unsafe` runs code from pickles that safe loading refuses."""
        self._unsafe = unsafe
        self._stack = ExitStack()
        self._opened: dict[Path, Contents | None] = {}

    def contents(self, path: Path, folders: Sequence[Path] = ()) -> Contents | None:
        """The contents of a file, None when no reader knows its format; raises CheckpointError.

        `folders` may have the parts of a checkpoint that the file describes.
        """
        if path not in self._opened:
            self._opened[path] = self._stack.enter_context(checkpoints.open_file(path, self._unsafe, folders))
        return self._opened[path]

    def close(self) -> None:
        """Let go of all files."""
        self._stack.close()
        self._opened.clear()


class OpenCheckpoint(Mapping[str, Any]):
    """The files of a checkpoint directory by path; each a `Part`, or a Path where no reader knows the format.

    Files that other ranks hold of a checkpoint in parts are among them.
    """

    def __init__(self, directory: Path, files: OpenFiles) -> None:
        self.directory = directory
        self._files = files
        self._snapshot = snapshots.whole(directory)
        self._found = dict(sorted(self._snapshot.files().items()))

    def __getitem__(self, path: str) -> Any:
        if path not in self._found:
            raise KeyError(_missing(path, self._found))
        place, _ = self._found[path]
        contents = self._files.contents(place, self._snapshot.folders(path))
        return place if contents is None else Part(contents, path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"checkpoint of {counted(len(self), 'file')}: {', '.join(self)}"

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return self._found[path][1]


class NoCheckpoint(Mapping[str, Any]):
    """Stands where there is no checkpoint, and says why."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getitem__(self, path: str) -> Any:
        raise KeyError(self.why)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return self.why


class Part(Mapping[str, Any]):
    """Tensors of a file by name, and the plain values beside them ("epoch").

    A name may be written whole ("model.0.weight") or level by level (["model"]["0.weight"]).
    """

    def __init__(self, contents: Contents, title: str, prefix: str = "") -> None:
        self.contents = contents
        self.title = title
        self.prefix = prefix
        self._names = {name.removeprefix(prefix): name for name in contents.names if name.startswith(prefix)}
        self._plain = {name.removeprefix(prefix): name for name in contents.leaves if name.startswith(prefix)}

    def __getitem__(self, key: Any) -> Any:
        name = key if isinstance(key, str) else repr(key)
        if name in self._names:
            return self.contents.load(self._names[name])
        if name in self._plain:
            return self.contents.leaves[self._plain[name]]
        if any(each.startswith(name + ".") for each in self):
            return Part(self.contents, f"{self.title}[{key!r}]", f"{self.prefix}{name}.")
        raise KeyError(_missing(name, self))

    def __iter__(self) -> Iterator[str]:
        yield from self._names
        yield from self._plain

    def __len__(self) -> int:
        return len(self._names) + len(self._plain)

    def __repr__(self) -> str:
        shown = ", ".join([*self._names][:4]) + (", …" if len(self._names) > 4 else "")
        return f"{self.title} ({self.contents.format}): {counted(len(self._names), 'tensor')}: {shown}"


class Kept:
    """The tensors that a core kept, by their names there."""

    def __init__(self, path: Path | None, files: OpenFiles) -> None:
        self._path = path
        self._files = files

    def __call__(self, name: str) -> Any:
        """The tensor of that name; raises CheckpointError when it cannot be had."""
        contents = self._files.contents(self._path) if self._path is not None else None
        if contents is None:
            raise CheckpointError(f"the core has no file with its tensor {name}")
        return contents.load(name)


def _missing(name: str, names: Any) -> str:
    near = difflib.get_close_matches(str(name), list(names), 3) or list(names)[:5]
    return f"{name!r} is not there" + (f"; there is {', '.join(map(repr, near))}" if near else "")
