"""How a training step is run: plain, compiled, captured. Needs torch; nothing here reads a clock."""
