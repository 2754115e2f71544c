"""The first code of a rank: make it reachable, then run the user's script as if we were not there."""

from __future__ import annotations

import sys

from raytrain_debug.shim import breakpoints, faithful, ray_hooks
from raytrain_debug.shim.death import Death
from raytrain_debug.shim.preimport import import_early
from raytrain_debug.shim.rank import Rank
from raytrain_debug.shim.recorder import RecorderConfig
from raytrain_debug.shim.settings import Identity, take_settings
from raytrain_debug.shim.target import run_target, run_to_end


def main() -> None:
    """`python -m raytrain_debug.shim [-m] TARGET ARGS`, as the launcher calls it."""
    arguments = sys.argv[1:]
    module = bool(arguments) and arguments[0] == "-m"
    if module:
        del arguments[0]
    if not arguments:
        sys.stderr.write("raytrain_debug.shim is started by: python -m raytrain_debug launch SCRIPT\n")
        sys.exit(2)
    settings = take_settings()
    if settings is None or not breakpoints.enabled():
        if not breakpoints.enabled():
            breakpoints.install_breakpointhook()
        run_to_end(lambda: run_target(arguments[0], arguments[1:], module=module), lambda error: None)
        return
    rank = Rank(settings, Identity.from_environment(attempt=settings.attempt), arguments[0])
    if rank.identity.rank in settings.wait and not module:
        with rank.guard("early imports"):
            import_early(arguments[0])
    breakpoints.install_breakpointhook()  # before a client comes: importing its debugger puts back what it found
    rank.start()
    death = Death(rank)
    death.install()
    if settings.faithful:
        with rank.guard("faithful local mode"):
            faithful.install(rank)
    with rank.guard("report recorder"):
        ray_hooks.install(
            RecorderConfig(rank.run, rank.identity.rank, rank.identity.attempt, rank.guard, settings.keep_checkpoints)
        )

    def run() -> None:
        if rank.identity.rank in settings.wait:
            rank.wait_for_client(None, "start")
        if rank.debugger.client_is_ready() and rank.debugger.stop_on_entry:
            rank.debugger.suspend_at_first_line()
        run_target(arguments[0], arguments[1:], module=module)

    death.run_and_record(run)
