"""Learners for environments, and their mathematics."""
