"""python -m raytrain_debug.shim [-m] TARGET ARGS: how the launcher starts each rank."""

from raytrain_debug.shim.bootstrap import main

main()
