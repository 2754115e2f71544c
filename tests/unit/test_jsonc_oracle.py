"""Our JSONC scanner and edits against npm's jsonc-parser, the parser that VS Code itself uses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytrain_debug.editor import edits, jsonc
from raytrain_debug.errors import LaunchJsonError
from tests.unit.jsonc_documents import VALUES, documents, unhurried

VERSION = "3.3.1"
READER = """
const { parse } = require("jsonc-parser");
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const errors = [];
  const value = parse(JSON.parse(line), errors, { allowTrailingComma: true });
  process.stdout.write(JSON.stringify({ value, errors: errors.length }) + "\\n");
});
"""


class Oracle:
    """A node process that parses one text after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def parse(self, text: str) -> tuple[Any, int]:
        """The value that jsonc-parser reads from `text`, and how many errors it saw."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # VS Code takes the byte order mark off before it parses.
        self.process.stdin.write(json.dumps(text.removeprefix("\ufeff")) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer.get("value"), answer["errors"]


def installed_parser() -> Path:
    """A folder with jsonc-parser in its node_modules, installed once into the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raytrain_debug-tests"
    folder = cache / f"jsonc-parser-{VERSION}"
    if not (folder / "node_modules" / "jsonc-parser" / "package.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"jsonc-parser@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            pytest.fail(f"{' '.join(command)} failed; set RAYTRAIN_DEBUG_NO_NODE=1 to go without\n{done.stderr}")
    return folder


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    if os.environ.get("RAYTRAIN_DEBUG_NO_NODE") == "1":
        pytest.skip("RAYTRAIN_DEBUG_NO_NODE=1")
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.fail("node and npm are needed for this test; install them, or set RAYTRAIN_DEBUG_NO_NODE=1")
    with subprocess.Popen(
        ["node", "-e", READER], cwd=installed_parser(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield Oracle(process)
        assert process.stdin is not None
        process.stdin.close()


def exact(value: Any) -> str:
    """A text in which true and 1 differ, but 1 and 1.0 do not: JavaScript has one kind of number."""

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: plain(item) for key, item in part.items()}
        if isinstance(part, list):
            return [plain(item) for item in part]
        return float(part) if type(part) is int else part

    return json.dumps(plain(value), sort_keys=True)


@unhurried
@given(documents())
def test_both_read_the_same_value(oracle: Oracle, case: tuple[str, Any]) -> None:
    text, value = case
    read, errors = oracle.parse(text)
    assert errors == 0
    assert exact(read) == exact(value) == exact(jsonc.parse(text).value)


@unhurried
@given(documents(), VALUES)
def test_vs_code_reads_the_wanted_value_from_an_edited_text(oracle: Oracle, case: tuple[str, Any], wanted: Any) -> None:
    read, errors = oracle.parse(edits.update(jsonc.parse(case[0]), wanted))
    assert errors == 0
    assert exact(read) == exact(wanted)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text, _ = draw(documents())
    position = draw(st.integers(0, len(text)))
    end = min(len(text), position + draw(st.integers(0, 2)))
    return text[:position] + draw(st.text('{}[]:,"\\/* 0-.e\nt\ufeff\u00a0', max_size=2)) + text[end:]


@unhurried
@given(damaged())
def test_both_find_fault_with_the_same_texts(oracle: Oracle, text: str) -> None:
    read, errors = oracle.parse(text)
    try:
        document = jsonc.parse(text)
    except LaunchJsonError:
        assert errors > 0
        return
    if document.root is None:
        assert read is None
    else:
        assert errors == 0
        assert exact(read) == exact(document.value)
