"""The policy: loading, templates, attention, adapters, its supervised start."""
