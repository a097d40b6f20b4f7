"""The replay buffer: everything that decides, and the Faust worker that moves it."""
