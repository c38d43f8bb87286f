"""Hidden halves of the suite `qwen`: templates, word lists and ranges of the benchmark items.

Controller only. Nothing that runs a job's code may contain this package: no sandbox mounts it and no pod receives it.
"""
