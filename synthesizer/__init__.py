"""New tasks from boundary tasks: plan, execute, rewrite, critique, augment. Speaks to the rest only through events."""
