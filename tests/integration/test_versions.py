"""Which versions the ranks run with, and that the README tells which are tested."""

from __future__ import annotations

import re

from tests import versions
from tests.conftest import REPOSITORY

SCRIPT = """
import os, time, ray.train
while not os.path.exists("go"):
    time.sleep(0.02)
"""


def test_a_rank_has_the_versions_that_are_under_test(launch, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    job = launch("--nproc-per-node", "1", "--wait", "all", "script.py")
    session = job.session()
    session.set_breakpoint(str(tmp_path / "script.py"), 4)
    assert session.wait_for_stop(60) is not None
    frame = session.stack()[0]
    has = {name: session.evaluate(f"__import__({name!r}).__version__", frame).value for name in versions.NAMES}
    assert has == versions.under_test()
    (tmp_path / "go").touch()
    session.disconnect()
    assert job.wait() == 0, job.output


def test_the_readme_tells_which_versions_are_tested():
    _, _, text = (REPOSITORY / "README.md").read_text().partition("## What is tested")
    newest = dict(re.findall(r"^(\w+)==(.+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE))
    assert f"torch {newest['torch']}, Ray {newest['ray']} and debugpy {newest['debugpy']}" in text
    oldest = versions.oldest()
    assert f"Ray {oldest['ray']} and debugpy {oldest['debugpy']}" in text
