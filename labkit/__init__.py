"""labkit: measure what hardware does when it trains and runs neural networks, and test published claims against it."""

__version__ = "0.1.0"
