"""The table of rules: everything that `check` knows, in the order in which docs/check.md has it."""

from __future__ import annotations

from raytrain_debug.check import configs, loading, old_api, pickling, recorded, reporting
from raytrain_debug.check.finding import Rule

RULES: tuple[Rule, ...] = (
    *old_api.RULES,
    *configs.RULES,
    *reporting.RULES,
    *recorded.RULES,
    *pickling.RULES,
    *loading.RULES,
)
