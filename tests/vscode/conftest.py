"""code-server and Chromium, once for all tests here; skipped where the machine lacks what they need, unless
RAYTRAIN_DEBUG_REQUIRE_VSCODE=1 makes that a failure. RAYTRAIN_DEBUG_IMAGES names where screenshots for the docs go."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import alone
from tests.vscode import workbench
from tests.vscode.workbench import Server, Workbench

HERE = Path(__file__).resolve().parent
EXTENSION = HERE.parent.parent / "vscode"

_FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def code_server_installation() -> Path:
    """Where code-server is installed, by install-code-server.sh if it was not there."""
    missing = [name for name in ("node", "npm", "rg") if shutil.which(name) is None]
    if workbench.chromium() is None:
        missing.append("chromium")
    if missing:
        give_up(f"a VS Code test needs {', '.join(missing)}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = Path(os.environ.get("RAYTRAIN_DEBUG_CODE_SERVER") or cache / "raytrain_debug" / "code-server")
    with alone("code-server"):
        if not (place / "package/out/node/entry.js").exists():
            done = subprocess.run(
                ["bash", str(HERE / "install-code-server.sh"), str(place)], capture_output=True, text=True
            )
            if done.returncode:
                give_up(f"code-server could not be installed:\n{done.stdout}{done.stderr}")
    return place


def give_up(why: str) -> None:
    """Skip the test, or fail it where these tests must run."""
    if os.environ.get("RAYTRAIN_DEBUG_REQUIRE_VSCODE") == "1":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def package() -> Path:
    """Our extension's .vsix, made by the command that its README names."""
    if shutil.which("npm") is None:
        give_up("the extension is built with npm")
    with alone("extension"):
        if not (EXTENSION / "node_modules").is_dir():
            _npm("ci", "--no-audit", "--no-fund")
        _npm("run", "package")
    return EXTENSION / "dist" / "raytrain-debug.vsix"


@pytest.fixture(scope="session")
def extension(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our extension as it is shipped, unpacked into a directory that is returned."""
    directory = tmp_path_factory.mktemp("extension")
    with alone("extension"), zipfile.ZipFile(package) as archive:
        archive.extractall(directory)
    return directory / "extension"


def _npm(*arguments: str) -> None:
    done = subprocess.run(["npm", *arguments], cwd=EXTENSION, capture_output=True, text=True)
    assert done.returncode == 0, f"npm {' '.join(arguments)}:\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="session")
def chrome(code_server_installation: Path) -> Iterator[object]:
    with workbench.browser() as running:
        yield running


@pytest.fixture
def image() -> Callable[[Workbench, str], None]:
    """`image(window, "name.png")` keeps a screenshot for the docs, when RAYTRAIN_DEBUG_IMAGES says where."""

    def keep(window: Workbench, name: str) -> None:
        directory = os.environ.get("RAYTRAIN_DEBUG_IMAGES")
        if directory:
            window.screenshot(Path(directory) / name)

    return keep


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Let `open_window` know whether the test has failed."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call":
        item.stash[_FAILED] = report.failed


@pytest.fixture
def open_window(chrome: object, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Workbench]]:
    """`open_window(server, workspace)` opens a VS Code window, closed after the test; a failed one leaves pictures."""
    opened: list[Workbench] = []

    def start(server: Server, workspace: Path, query: str = "folder") -> Workbench:
        window = Workbench(chrome, server.url, workspace, query)  # type: ignore[arg-type]
        opened.append(window)
        return window

    yield start
    for number, window in enumerate(opened):
        if request.node.stash.get(_FAILED, False):
            picture = tmp_path / f"window-{number}.png"
            window.screenshot(picture)
            print(f"the window as it was: {picture}")
        window.close()
