"""Reward models: their networks, how they are fitted to preferences, and the wrappers that pay them."""
