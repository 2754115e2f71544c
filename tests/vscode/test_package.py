"""The extension's package, without a VS Code: what is in it, what wakes it, what it may reach, and its words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raytrain_debug.dap.launching import FOR_RANKS
from tests.vscode.conftest import EXTENSION

REQUESTS = ("launch", "attach", "postmortem")
MANIFEST = json.loads((EXTENSION / "package.json").read_text())
WORDS = json.loads((EXTENSION / "package.nls.json").read_text())
(DEBUGGER,) = MANIFEST["contributes"]["debuggers"]


def attributes(request: str) -> dict[str, Any]:
    found: dict[str, Any] = DEBUGGER["configurationAttributes"][request]["properties"]
    return found


def with_nested(properties: dict[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every attribute, also those inside of others, by its dotted name."""
    for name, schema in properties.items():
        yield above + name, schema
        for inner in (schema, schema.get("items", {})):
            yield from with_nested(inner.get("properties", {}), f"{above}{name}.")


def test_the_package_is_small_and_holds_nothing_but_the_extension(package: Path, extension: Path) -> None:
    assert package.stat().st_size < 200_000
    files = {str(path.relative_to(extension)) for path in extension.rglob("*") if path.is_file()}
    assert files == {"package.json", "package.nls.json", "readme.md", "dist/extension.js", "media/icon.svg"}


def test_the_extension_reaches_no_network_and_reports_to_nobody(extension: Path) -> None:
    bundle = (extension / "dist" / "extension.js").read_text()
    assert set(re.findall(r"""require\(["']([^"']+)["']\)""", bundle)) == {
        "vscode",
        "child_process",
        "crypto",
        "fs",
        "fs/promises",
        "os",
        "path",
    }
    assert re.findall(r"\bfetch\(|XMLHttpRequest|WebSocket|https?://|sendTelemetry|createTelemetryLogger", bundle) == []
    assert "dependencies" not in MANIFEST
    assert "extensionDependencies" not in MANIFEST


def test_nothing_but_its_use_activates_the_extension() -> None:
    assert MANIFEST["activationEvents"] == ["onDebugResolve:raytrain", "onDebugDynamicConfigurations:raytrain"]


def test_it_runs_where_the_workspace_is() -> None:
    assert MANIFEST["extensionKind"] == ["workspace"]
    assert "browser" not in MANIFEST


@pytest.mark.parametrize("request_kind", REQUESTS)
def test_every_attribute_is_described_and_checked(request_kind: str) -> None:
    for name, schema in with_nested(attributes(request_kind)):
        described = schema.get("markdownDescription") or schema.get("description")
        assert described, f"{name} is not described"
        assert {"type", "anyOf", "enum"} & set(schema), f"nothing is said of the values of {name}"


def test_the_attributes_are_those_that_the_adapter_takes() -> None:
    table = (EXTENSION.parent / "docs" / "editors.md").read_text()
    for request in ("launch", "attach"):
        assert set(FOR_RANKS) <= set(attributes(request))
        ours = set(attributes(request)) - set(FOR_RANKS)
        assert {name for name in ours if f"`{name}`" not in table and f"`{name}:" not in table} == set()


def test_every_command_is_named_and_those_of_menus_are_there() -> None:
    commands = [each["command"] for each in MANIFEST["contributes"]["commands"]]
    assert len(commands) == len(set(commands))
    entries = [entry["command"] for menu in MANIFEST["contributes"]["menus"].values() for entry in menu]
    assert set(entries) <= set(commands)
    registered = "".join(path.read_text() for path in (EXTENSION / "src").glob("*.ts"))
    assert [command for command in commands if f'"{command}"' not in registered] == []


def test_the_words_of_the_manifest_are_in_one_file_and_all_of_them_used() -> None:
    text = (EXTENSION / "package.json").read_text()
    assert set(re.findall(r'"%([\w.]+)%"', text)) == set(WORDS)
    shown = (
        r'"(?:title|label|description|markdownDescription|patternErrorMessage|category|contextualTitle|displayName)"'
    )
    assert re.findall(shown + r': "(?!%)[^"]*"', text) == []


def test_the_words_of_the_code_are_in_one_file() -> None:
    """No English outside of text.ts: two words in a row, where no page's markup, style or script is."""
    found = []
    for path in sorted((EXTENSION / "src").glob("*.ts")):
        if path.name == "text.ts":
            continue
        code = re.sub(r"/\*.*?\*/|^\s*//.*$|\s// .*$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        code = re.sub(r"const (?:SCRIPT|STYLE) = `.*?`;|default-src[^`]*", "", code, flags=re.DOTALL)
        for literal in re.findall(r'"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`', code):
            words = re.sub(r"<[^>]*>|\$\{[^}]*\}", "", literal)
            if re.search(r"[A-Za-z]{2,},? [a-z]{2,}", words):
                found.append(f"{path.name}: {literal}")
    assert found == []
