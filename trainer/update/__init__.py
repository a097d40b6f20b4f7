"""Learning: advantages, loss, log-probabilities, minibatches and the engines."""
