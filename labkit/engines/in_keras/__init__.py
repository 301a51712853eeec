"""Training in Keras 3: what its back ends have alike, the loop of each, and how each is held against PyTorch."""
