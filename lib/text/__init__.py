"""Language models: sampling answers, and reward models for text. Needs requirements-text.txt; no game imports it."""
