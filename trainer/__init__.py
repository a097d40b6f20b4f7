"""Learning: rollouts, advantages, loss, engines, samplers, checkpoints and the loop that ties them together."""
