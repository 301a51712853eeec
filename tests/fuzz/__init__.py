"""Fuzzing of every parser of input that a user can be sent: each gives a value or one sentence, within limits.

`python -m tests.fuzz [PARSER...] --executions N` (`make test-fuzz`) runs parsers, and `corpus/<parser>/` holds small
seeds and the inputs of past findings. A module of `parsers/` is a parser; its docstring says what input it gets.
"""
