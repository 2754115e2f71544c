"""A real VS Code for a test: code-server on a free port, and a window of it driven in headless Chromium.

The selectors are those of VS Code 1.100; what a test asks for is in words (`call_stack()`, `press("F5")`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Frame, Locator, Page, TimeoutError, sync_playwright

from tests.conftest import free_base_port, wait_for

_CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
_CHROMIUM_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
_SETTINGS = {
    "debug.openDebug": "openOnDebugBreak",
    "debug.toolBarLocation": "docked",
    "editor.minimap.enabled": False,
    "extensions.autoCheckUpdates": False,
    "extensions.autoUpdate": False,
    "git.enabled": False,
    "remote.autoForwardPorts": False,
    "security.workspace.trust.enabled": False,
    "telemetry.telemetryLevel": "off",
    "terminal.integrated.gpuAcceleration": "off",
    "update.mode": "none",
    "workbench.colorTheme": "Default Light Modern",
    "workbench.hover.delay": 1_000_000,  # ms; what it shows would lie over the rows that a test clicks
    "workbench.startupEditor": "none",
    "workbench.tips.enabled": False,
}


# Resolves once nothing has changed below an element for half a second, or after 15 seconds.
_STILL = """(selector) => new Promise((done) => {
  const finish = () => { observer.disconnect(); done(); };
  let timer = setTimeout(finish, 500);
  setTimeout(finish, 15000);
  const observer = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(finish, 500); });
  const what = { childList: true, subtree: true, attributes: true, characterData: true };
  observer.observe(document.querySelector(selector), what);
})"""


def chromium() -> str | None:
    """The system's Chromium, if there is one."""
    return next((path for path in _CHROMIUM if os.path.exists(path)), None)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=_CHROMIUM_ARGUMENTS)
        try:
            yield running
        finally:
            running.close()


class Server:
    """A running code-server, with the unpacked extensions that lie in `extensions`. `trace` is where debugpy-stub
    writes every DAP message."""

    def __init__(self, installation: Path, directory: Path, extensions: Path, settings: dict[str, Any]) -> None:
        self.directory = directory
        self.trace = directory / "dap.jsonl"
        self.log = directory / "server.log"
        (directory / "home").mkdir(parents=True)
        for scope in ("User", "Machine"):  # a setting of the remote machine is not taken from the user's file
            (directory / "data" / scope).mkdir(parents=True)
            (directory / "data" / scope / "settings.json").write_text(json.dumps({**_SETTINGS, **settings}))
        port = free_base_port(1)
        self.url = f"http://127.0.0.1:{port}"
        environment = {name: value for name, value in os.environ.items() if name != "VSCODE_IPC_HOOK_CLI"}
        environment |= {"HOME": str(directory / "home"), "DAP_TRACE": str(self.trace), "SHELL": "/bin/sh"}
        command = ["node", str(installation / "package/out/node/entry.js"), "--auth", "none"]
        command += ["--bind-addr", f"127.0.0.1:{port}", "--config", str(directory / "config.yaml")]
        command += ["--user-data-dir", str(directory / "data"), "--extensions-dir", str(extensions)]
        command += ["--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"]
        command += ["--disable-getting-started-override", "--disable-proxy"]
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_up(self) -> None:
        def up() -> bool:
            if self._process.poll() is not None:
                pytest.fail(f"code-server did not start:\n{self.log.read_text()}")
            try:
                with urllib.request.urlopen(f"{self.url}/healthz", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_for(up, 60, "code-server")

    def activations(self, extension: str) -> int:
        """How often `extension` was activated, in all windows so far."""
        logs = (self.directory / "data" / "logs").rglob("remoteexthost.log")
        return sum(log.read_text(errors="replace").count(f"_doActivateExtension {extension},") for log in logs)

    def stop(self) -> None:
        """End the server and what it has started: extension hosts, terminals, tasks."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextlib.contextmanager
def code_server(
    installation: Path, directory: Path, extensions: Path, settings: dict[str, Any] | None = None
) -> Iterator[Server]:
    """Run code-server while the block runs; `settings` are added to the user's settings.json."""
    server = Server(installation, directory, extensions, settings or {})
    try:
        server.wait_up()
        yield server
    finally:
        server.stop()


class Workbench:
    """One VS Code window on the folder `workspace`."""

    def __init__(self, browser: Browser, url: str, workspace: Path, query: str = "folder") -> None:
        self.context = browser.new_context(viewport={"width": 1400, "height": 900})
        self.page: Page = self.context.new_page()
        self.page.goto(f"{url}/?{query}={workspace}")
        self._wait_folders()

    def _wait_folders(self) -> None:
        """Wait until the explorer shows the folders. Now and then VS Code finds none in a workspace's file at first."""
        rows = self.page.locator(".explorer-folders-view .monaco-list-row").first
        none = self.page.get_by_text("You have not yet added a folder to the workspace").first
        for _ in range(5):
            wait_for(lambda: rows.is_visible() or none.is_visible(), 90, "the explorer")
            self.page.wait_for_timeout(0 if rows.is_visible() else 1000)  # they may come a little later
            if rows.is_visible():
                return
            self.page.reload()
        pytest.fail("VS Code finds no folders in the workspace")

    def close(self) -> None:
        self.context.close()

    # Doing

    def press(self, keys: str) -> None:
        self.page.keyboard.press(keys)

    def run_command(self, title: str) -> None:
        """Choose the command `title` in the command palette."""
        self.page.keyboard.press("F1")
        self.pick(title, prefix=">")

    def pick(self, text: str, prefix: str = "") -> None:
        """Choose the first entry that matches `text` in the open quick pick."""
        box = self.page.locator(".quick-input-widget:visible input.input")
        box.wait_for()
        box.fill(prefix + text)
        row = self.page.locator(".quick-input-list .monaco-list-row").filter(has_text=text).first
        row.wait_for()
        row.click()

    def start_debugging(self, configuration: str) -> None:
        """Start a configuration or compound by its name."""
        self.run_command("Debug: Select and Start Debugging")
        self.pick(configuration, prefix="debug ")

    def start_offered(self, debugger: str, configuration: str) -> None:
        """Start a configuration that an extension offers beside those of launch.json."""
        self.run_command("Debug: Select and Start Debugging")
        self.pick(f"{debugger}...", prefix="debug ")
        self.pick(configuration)

    def type_answer(self, text: str) -> None:
        """Type `text` into the open input box and accept it."""
        box = self.page.locator(".quick-input-widget:visible input.input")
        box.wait_for()
        box.fill(text)
        self.page.keyboard.press("Enter")

    def widen_side_bar(self, pixels: int) -> None:
        """Drag the side bar's edge to the right."""
        bar = self.page.locator(".part.sidebar").bounding_box()
        assert bar is not None
        x, y = bar["x"] + bar["width"], bar["y"] + bar["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + pixels, y, steps=4)
        self.page.mouse.up()

    def open_file(self, name: str) -> None:
        """Open a file at the top of the workspace."""
        self.page.keyboard.press("Control+p")
        self.pick(name)
        self.page.wait_for_selector(f'.tab.active[data-resource-name="{name}"]')
        self.page.wait_for_selector(".monaco-editor .view-line")

    def go_to_line(self, line: int, column: int = 1) -> None:
        """Put the cursor there and show the line in the middle of the editor."""
        self.page.keyboard.press("Control+g")
        self.type_answer(f":{line}:{column}")
        self._line_number(line).wait_for()

    def set_breakpoint(self, line: int) -> None:
        """Click into the gutter beside `line`. A click has no effect until extensions are known, hence the retries."""
        self.go_to_line(line)
        before = self.breakpoints().count()
        for _ in range(30):
            row = self._line_number(line).bounding_box()
            margin = self.page.locator(f"{self._EDITOR} .margin").first.bounding_box()
            assert row is not None
            assert margin is not None
            self.page.mouse.click(margin["x"] + 10, row["y"] + row["height"] / 2)
            try:
                self.breakpoints().nth(before).wait_for(timeout=1500)
                return
            except TimeoutError:
                continue
        pytest.fail(f"no breakpoint appeared on line {line}")

    # Looking

    _EDITOR = ".editor-group-container.active .monaco-editor"

    def _line_number(self, line: int) -> Locator:
        return self.page.locator(f'{self._EDITOR} .margin-view-overlays .line-numbers:text-is("{line}")')

    def breakpoints(self) -> Locator:
        """The breakpoint marks in the editor's gutter, conditional ones too."""
        return self.page.locator(
            f'{self._EDITOR} .glyph-margin-widgets [class*="codicon-debug-breakpoint"]:not([class*="hint"])'
        )

    def rows(self, selector: str) -> list[str]:
        """The rows of a list or tree, each as its accessible name or else its text."""
        script = "es => es.map(e => (e.getAttribute('aria-label') || e.innerText).replace(/\\s+/g, ' '))"
        found: list[str] = self.page.eval_on_selector_all(f"{selector} .monaco-list-row", script)
        return found

    def call_stack(self) -> list[str]:
        """Its rows. They exist only as far as they have room, so the sections around it are folded."""
        for title in ("Watch", "Breakpoints"):
            header = self.page.locator(f'.pane-header[aria-label="{title} Section"][aria-expanded="true"]')
            with contextlib.suppress(Error):
                if header.is_visible():
                    header.click(timeout=500)
        return self.rows(".debug-call-stack")

    def variables(self) -> list[str]:
        return self.rows(".debug-variables")

    def pane(self, title: str) -> Locator:
        """A section of the side bar, open or not."""
        return self.page.locator(f'.pane:has(> .pane-header[aria-label="{title} Section"])')

    def open_pane(self, title: str) -> None:
        """Unfold a section of the side bar."""
        header = self.pane(title).locator("> .pane-header")

        def is_open() -> bool:
            if header.get_attribute("aria-expanded") != "true":
                header.click()
                self.page.wait_for_timeout(300)
            return header.get_attribute("aria-expanded") == "true"

        wait_for(is_open, 30, f"{title} unfolded")

    def side_bar(self) -> str:
        """All that stands in the side bar."""
        return self.page.locator(".part.sidebar").inner_text()

    def pane_rows(self, title: str) -> list[str]:
        return self.rows(f'.pane:has(> .pane-header[aria-label="{title} Section"])')

    def click_row(self, title: str, row: str) -> None:
        """Click the row whose name begins with `row` in a section of the side bar."""
        self._row(title, row).click()

    def unfold_row(self, title: str, row: str) -> None:
        """Show what is below the row whose name begins with `row` in a section of the side bar."""

        def is_open() -> bool:
            found = self._row(title, row)
            if found.get_attribute("aria-expanded") != "true":
                found.click()
                self.page.wait_for_timeout(300)
            return found.get_attribute("aria-expanded") == "true"

        wait_for(is_open, 30, f"{row} unfolded")

    def click_action(self, title: str, row: str, action: str) -> None:
        """Click the inline action of the row whose name begins with `row` in a section of the side bar."""
        found = self._row(title, row)
        found.hover()
        found.locator(f'.action-label[aria-label="{action}"]').click()

    def _row(self, title: str, row: str) -> Locator:
        """A row, once its section is still: while a tree is drawn anew, a row's actions may yet be those of another."""
        self.page.evaluate(_STILL, f'.pane:has(> .pane-header[aria-label="{title} Section"])')
        return self.pane(title).locator(f'.monaco-list-row[aria-label^="{row}"]').first

    def choose_in_menu(self, title: str, row: str, entry: str) -> None:
        """Choose an entry of the context menu of a row in a section of the side bar."""
        self._row(title, row).click(button="right")
        self._choose(entry)

    def choose_at_line(self, line: int, entry: str) -> None:
        """Choose an entry of the context menu of a line number."""
        number = self._line_number(line).bounding_box()
        assert number is not None
        self.page.mouse.click(number["x"] + number["width"] / 2, number["y"] + number["height"] / 2, button="right")
        self._choose(entry)

    def _choose(self, entry: str) -> None:
        found = self.page.locator(".monaco-menu .action-item").filter(has_text=entry).first
        found.wait_for()
        while found.is_visible():  # a menu takes no click in its first moments
            with contextlib.suppress(Error):
                found.click(timeout=500)
            self.page.wait_for_timeout(100)

    def focus_session(self, name: str) -> None:
        """Make the session whose name begins so the one that the debugger's commands go to."""
        self._row("Call Stack", f"Session {name}").click()

    def label_after_line(self, line: int) -> str:
        """The text that an extension shows behind a line of the active editor."""
        script = """(e) => [...e.querySelectorAll("span")].map(s => getComputedStyle(s, "::after").content).join(" ")"""
        top = self._line_number(line).evaluate("e => e.parentElement.style.top")
        found: list[str] = self.page.eval_on_selector_all(
            f'{self._EDITOR} .view-line[style*="top:{top};"], {self._EDITOR} .view-line[style*="top: {top};"]',
            f"es => es.map({script})",
        )
        return " ".join(found)

    def webview(self, text: str, timeout: float = 30) -> Frame:
        """The frame of the webview that shows `text`."""

        def showing() -> Frame | None:
            for frame in self.page.frames[1:]:
                with contextlib.suppress(Error):  # a frame that is just being loaded or replaced
                    # The text of a body that is not shown, as that of VS Code's own frames, is that of its scripts.
                    body = frame.locator("body")
                    if body.is_visible() and text in body.inner_text(timeout=1000):
                        return frame
            return None

        return wait_for(showing, timeout, lambda: f"a webview with {text!r}\n{self.complaints()}\n{self.page.frames}")  # type: ignore[return-value]

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.page.eval_on_selector_all(selector, "es => es.map(e => e.innerText)")
        return found

    def complaints(self) -> list[str]:
        """What VS Code says in dialogs and notifications."""
        return self.texts(".monaco-dialog-box") + self.texts(".notification-toast .notification-list-item-message")

    def is_debugging(self) -> bool:
        return self.page.locator(".debug-toolbar, .monaco-workbench .statusbar.debugging").count() > 0

    def position(self) -> str:
        """The cursor's line and column as the status bar shows them: `Ln 9, Col 1`."""
        return next((text for text in self.texts(".statusbar-item") if text.startswith("Ln ")), "")

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path)
