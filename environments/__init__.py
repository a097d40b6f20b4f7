"""Where an agent acts: tasks, tool simulators, call parsing, execution and turn scoring."""
