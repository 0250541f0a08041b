"""Records: segments, the recorder, labels, which pair to ask next, simulated teachers."""
