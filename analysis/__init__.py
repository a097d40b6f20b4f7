"""Looking at a run: everything here reads the log and decides nothing; a run works without it."""
