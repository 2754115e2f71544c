"""Our process on each node: it starts the ranks, watches how they end, and is the only way in for a debugger."""
