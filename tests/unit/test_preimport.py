"""Which imports of a waiting script may be done before its first line."""

import pytest

from raytrain_debug.shim.preimport import import_early, leading_imports


def test_leading_imports_are_taken_in_their_order():
    source = '"""Doc."""\nfrom __future__ import annotations\nimport os, torch\nfrom ray.train import report\nx = 1\n'
    source += "import numpy\n"
    assert leading_imports(source) == ["__future__", "os", "torch", "ray.train"]


@pytest.mark.parametrize(
    "before",
    [
        "import os\nos.environ['OMP_NUM_THREADS'] = '4'\n",
        "import mylib\n",
        "from . import sibling\n",
        "if True:\n    import torch\n",
        "try:\n    import torch\nexcept ImportError:\n    pass\n",
    ],
)
def test_nothing_is_imported_past_what_might_change_an_import(before):
    assert "torch" not in leading_imports(before + "import torch\n")


def test_a_script_that_does_not_parse_imports_nothing():
    assert leading_imports("def f(:\n") == []


def test_a_failing_import_is_left_to_the_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import json.nothing_here\n")
    import_early(str(script))
