"""The processes of a run, each started as ``rods ROLE`` by `rods run`, by a stack, and by tests."""
