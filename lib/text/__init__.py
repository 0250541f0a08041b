"""Language models: sampling answers, and reward models of text. Needs requirements-text.txt; no game imports it."""
