"""Playing: samplers, live episodes, groups, workers and their dispatch."""
