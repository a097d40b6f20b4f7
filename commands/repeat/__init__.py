"""The parts of ``rods replay``: what a recorded run is read from, what is done again, what is said about it."""
