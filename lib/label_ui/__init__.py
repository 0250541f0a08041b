"""The labelling page: two clips side by side, one key press a label."""
