"""The suite `qwen`: six families for Qwen3-0.6B and 1.7B. Five train the agent, `qwen-triage` is held out.

Each family is one file: brief, visible examples, scorer, partial-credit helper. What hidden items say differently
(templates, word lists, ranges) is in the top-level package `trainwright_hidden`, imported only when items are drawn.
"""
