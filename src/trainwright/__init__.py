"""trainwright: a language model learns, by reinforcement learning, to write RL training jobs for smaller models."""

__version__ = "0.1.0"
