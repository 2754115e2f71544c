"""Imports of a script that waits for a debugger, done before tracing starts: tracing makes them several times slower.

Only what the script would import first anyway, in its own order: its leading import statements, up to the first that
is neither the standard library's nor of a package below. Anything else before them (a variable set in `os.environ`,
say) might change what an import does, and ends the list.
"""

from __future__ import annotations

import ast
import importlib
import sys

# Large packages whose import reads nothing of the script that imports them.
_PACKAGES = frozenset({"torch", "ray", "numpy", "pandas", "scipy", "sklearn", "pyarrow", "raytrain_debug"})


def leading_imports(source: str | bytes) -> list[str]:
    """Names of the modules that `source` imports before it does anything else; empty for what does not parse."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return []
    names: list[str] = []
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        if isinstance(statement, ast.Import):
            found = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            found = [statement.module]
        else:
            break
        if not all(name.partition(".")[0] in _PACKAGES | sys.stdlib_module_names for name in found):
            break
        names += found
    return names


def import_early(path: str) -> None:
    """Import what the script at `path` imports first. An import that fails is left to the script to fail at."""
    with open(path, "rb") as file:
        source = file.read()
    for name in leading_imports(source):
        try:
            importlib.import_module(name)
        except BaseException:
            # The script meets the same error at its own line and deals with it as it likes.
            return
