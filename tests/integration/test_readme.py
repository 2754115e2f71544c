"""The README's commands, pasted as they stand into a copy of what a reader has."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raytrain_debug.cli.reference import format_reference
from tests.conftest import REPOSITORY, wait_for

README = (REPOSITORY / "README.md").read_text()
# The reader's shell has the virtual environment on its PATH; ours has this Python.
SHELL = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)


def block(containing):
    (found,) = [each for each in BLOCKS if containing in each]
    return found


# A reader's port 5678 is free; here a test that runs at the same time may have it, so where we may we have our own.
OWN_NETWORK = ["unshare", "--net", "bash", "-ec", 'ip link set lo up && eval "$0"']


def run(command, cwd, shell=("bash", "-ec"), **more):
    return subprocess.run([*shell, command], cwd=cwd, env=SHELL, capture_output=True, text=True, check=False, **more)


def at_the_default_ports(command, cwd, **more):
    may = run("true", cwd, OWN_NETWORK).returncode == 0
    return run(command, cwd, OWN_NETWORK, **more) if may else run(command, cwd, **more)


@pytest.fixture
def clone(tmp_path):
    for name in ("examples", ".vscode"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    return tmp_path


def test_the_set_up_command_runs_the_main_job_and_shows_it(clone):
    command = block("pip install -c constraints.txt")
    install, activate, launch = "pip install -c constraints.txt -e '.[examples]'", ". .venv/bin/activate", "launch"
    assert all(part in command for part in (install, activate, launch))
    done = at_the_default_ports(command.partition(activate + " && ")[2], clone, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "All 2 ranks finished." in done.stdout


def test_f5_is_configured(clone):
    done = run(block("configure examples/digits_ddp.py"), clone)
    assert done.returncode == 0, done.stderr
    assert "Ray Train: digits_ddp.py (2 ranks)" in done.stdout


def test_a_running_job_is_attached_to_and_looked_at(clone):
    launch = "exec " + block("--epochs 200").replace(" launch ", " launch --base-port auto ", 1)
    job = subprocess.Popen(
        ["bash", "-c", launch], cwd=clone, env=SHELL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: "epoch=3" in run("python -m raytrain_debug status", clone).stdout, 60, "four reports")
        done = run(block("attach --rank 1").strip() + " -c w -c q", clone, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "digits_ddp.py" in done.stdout
        for command in block("raytrain_debug stacks").strip().splitlines():
            done = run(command, clone, timeout=60)
            assert done.returncode == 0, f"{command}: {done.stderr}"
            assert done.stdout.strip(), command
    finally:
        job.terminate()
        job.wait(60)
    assert "python -m raytrain_debug postmortem\n" in BLOCKS
    done = run("python -m raytrain_debug postmortem", clone)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_the_command_reference_is_that_of_the_commands():
    assert (REPOSITORY / "docs" / "commands.md").read_text() == "\n".join(format_reference()) + "\n", (
        "python -m raytrain_debug.cli.reference > docs/commands.md"
    )


def test_every_link_of_the_documentation_leads_somewhere():
    for page in [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
