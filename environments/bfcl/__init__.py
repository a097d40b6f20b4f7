"""The BFCL V3 multi-turn tasks and their eight simulators, taken from the installed ``bfcl-eval`` package."""
