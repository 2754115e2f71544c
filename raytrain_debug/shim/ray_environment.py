"""Environment variables that tell a driver of Ray Train to debug its workers. Imported at Python's start: nothing else.

`RAYTRAIN_DEBUG=1 python train.py` works through raytrain_debug.pth, a line of code that Python runs when it starts
(docs of the module `site`): with any other value, or none, it does nothing.
"""

from __future__ import annotations

import os

LAUNCHER = "RAYTRAIN_DEBUG_LAUNCHER"
"""Where `launch --ray` names its control socket."""
CALLBACKS = "RAY_TRAIN_CALLBACKS"
CALLBACK = "raytrain_debug.shim.ray_worker.Callback"


def ask_for_callback() -> None:
    """Have every `fit()` of this process, or of one with its environment, use our callback beside the user's."""
    named = [each.strip() for each in os.environ.get(CALLBACKS, "").split(",") if each.strip()]
    if CALLBACK not in named:
        os.environ[CALLBACKS] = ",".join([*named, CALLBACK])
