"""What will break in a script on its way to real workers or from old API, told from its source and a run's records.

The script is parsed, never run. `examine(script, run)` is the whole of it; `rules.RULES` is the table of what it knows.
"""
