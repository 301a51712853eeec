"""Training in Keras 3: what all back ends share, the loop of each, and the comparison of each with PyTorch."""
