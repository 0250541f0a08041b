"""Judgement: the reward model, how it is fitted to preferences, and the wrapper that pays it out."""
