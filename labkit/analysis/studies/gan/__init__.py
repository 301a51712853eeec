"""The study of how well a WGAN uses the chip: its trials, their utilisations, and what its generator makes."""
