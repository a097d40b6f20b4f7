"""Weights: digests, checkpoints, and their way to where they are sampled from."""
