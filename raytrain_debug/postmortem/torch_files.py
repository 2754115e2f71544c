"""Reads files that `torch.save` wrote, by whatever library: mapped, and running no code from them unless told to."""

from __future__ import annotations

import re
import sys
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from raytrain_debug.errors import CheckpointError, UnsafeCheckpoint
from raytrain_debug.postmortem.contents import Contents, flattened, no_tensors, twins_among
from raytrain_debug.postmortem.mapped import MappedFile

_ZIP = b"PK\x03\x04"
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How files from before torch 1.6 begin: torch's magic number, pickled."""

_GLOBAL = re.compile(r"GLOBAL (\S+) (?:was not an allowed global|whose module \S+ is blocked)")

_OF_MAIN = re.compile(r"Can't get attribute '(\w+)' on <module '(?:[\w.]+\.)?__main__'")


def accepts(path: Path, head: bytes) -> bool:
    """Whether this is a torch.save file, by its first bytes, or by a name that promises one."""
    if path.suffix in (".pt", ".pth"):
        return True
    # The parts of a torch.distributed.checkpoint are several such files glued together: no reader of one file.
    if path.suffix == ".distcp":
        return False
    return head.startswith(_LEGACY) or (head.startswith(_ZIP) and b"/data.pkl" in head)


@contextmanager
def opened(path: Path, unsafe: bool = False) -> Iterator[Contents]:
    """The contents of `path`.

    Files of torch 1.6 and later are mapped; older ones have to be in memory whole. Raises UnsafeCheckpoint when the
    file holds objects that only running code from it can build and `unsafe` is False, CheckpointError when it is
    damaged.
    """
    with open(path, "rb") as file:
        head = file.read(len(_LEGACY))
    if head.startswith(_ZIP):
        value, form = _load(path, unsafe, mapped=_check_archive(path)), "torch"
    elif head.startswith(_LEGACY):
        value, form = _load(path, unsafe, mapped=False), "torch, before 1.6"
    else:
        raise CheckpointError("is empty" if not head else "is no torch.save file: it does not begin like one")
    if isinstance(value, dict) and "pytorch-lightning_version" in value:
        form = "Lightning"
    found = flattened(value, worth="hyper_parameters")

    def load(name: str) -> torch.Tensor:
        return found.tensors[name] if name in found.tensors else no_tensors(name)

    yield Contents(
        form,
        tuple(found.tensors),
        load,
        MappedFile(path).release,
        found.values,
        found.scalars,
        found.leaves,
        twins_among(found.tensors),
    )


def _check_archive(path: Path) -> bool:
    """Whether the file can be mapped; raises CheckpointError when its table of contents is damaged or absent."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2]: name for name in archive.namelist()}
            if "data.pkl" not in names:
                raise CheckpointError("is a zip file, but none that torch.save wrote")
            # Numbers of the other byte order are swapped in place when they are loaded, so their memory must be ours.
            order = archive.read(names["byteorder"]) if "byteorder" in names else b"little"
            return order.decode("ascii", "replace") == sys.byteorder
    except zipfile.BadZipFile:
        raise CheckpointError("is cut short or damaged: the table of contents at its end is missing") from None
    except (OSError, ValueError, EOFError, RuntimeError, zlib.error) as error:
        raise CheckpointError(f"is damaged: {_first_line(error)}") from None


def _load(path: Path, unsafe: bool, mapped: bool) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(str(path), map_location="cpu", weights_only=not unsafe, mmap=mapped)
    except MemoryError:
        raise CheckpointError("needs more memory than there is") from None
    except Exception as error:
        if unsafe:
            if isinstance(error, AttributeError) and (own := _of_the_script(path, str(error))):
                raise _needs_the_script(own) from None
            raise CheckpointError(f"cannot be loaded: {type(error).__name__}: {_first_line(error)}") from None
        wanted = _unsafe_globals(path, str(error))
        if wanted:
            raise UnsafeCheckpoint(
                f"safe loading refuses it: it holds objects of {', '.join(wanted)}, and to build those is to run code "
                "that the file names",
                "if you trust where the file comes from, add --unsafe-load",
                tuple(wanted),
            ) from None
        if "TorchScript" in str(error):
            raise UnsafeCheckpoint(
                "safe loading refuses it: it is a TorchScript program, not only numbers",
                "if you trust where the file comes from, add --unsafe-load",
            ) from None
        raise CheckpointError(f"is damaged, or no file that safe loading knows: {_first_line(error)}") from None


def _unsafe_globals(path: Path, message: str) -> list[str]:
    """The classes and functions that the file names and safe loading does not allow."""
    try:
        found = set(torch.serialization.get_unsafe_globals_in_checkpoint(str(path)))
    except Exception:  # files from before 1.6, damaged ones: what the refusal itself named
        found = set()
    return sorted(found | set(_GLOBAL.findall(message)))


def _of_the_script(path: Path, message: str) -> list[str]:
    """The classes and functions that the file looks for in the script that saved it, which another program is now."""
    main = sys.modules["__main__"]
    named = [name.partition(".")[2] for name in _unsafe_globals(path, message) if name.startswith("__main__.")]
    return sorted({*(name for name in named if not hasattr(main, name)), *_OF_MAIN.findall(message)})


def _needs_the_script(names: Sequence[str]) -> CheckpointError:
    listed = ", ".join(names)
    return CheckpointError(
        f"cannot be loaded: {listed}: defined in the training script itself, which is not run here",
        f"move {'it' if len(names) == 1 else 'them'} into a module beside the script, say parts.py, and import from "
        "there: what is saved then can be loaded. What is saved already, from that directory or with it in PYTHONPATH: "
        f'python -c "from parts import {listed}; from raytrain_debug.cli import main; '
        "main(['postmortem', '--unsafe-load'])\"",
    )


def _first_line(error: Exception) -> str:
    """The first line of an error that tells something: torch's own advice to load unsafely is left out."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if "weights_only" not in line and "Weights only load failed" not in line]
    return (own or [type(error).__name__])[0][:200]
