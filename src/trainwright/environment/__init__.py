"""Where a job's own code runs: a sandboxed server that answers two questions, "give me rows" and "score these"."""
