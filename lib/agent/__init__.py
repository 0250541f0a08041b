"""Behaviour: the policy network, rollouts, returns, the A2C update, training, evaluation and play."""
