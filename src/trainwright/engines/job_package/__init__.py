"""The verifiers package under which prime-rl trains on a job: rows from a file, rewards from the engine's socket.

The engine copies this folder as `trainwright_job` next to the rows and puts it on the path of prime-rl's processes,
whose interpreter lacks trainwright: nothing here may import from the rest of the package. The agent's code is not in
it and never runs in those processes; it stays in the sandbox, on the other side of the socket.

Uses what verifiers 0.3.1, 0.4.0 and commit a60a606 (the one that prime-rl 559b447 pins) have in common.
"""

from .harness import DirectHarness
from .taskset import JobTaskset

__all__ = ["DirectHarness", "JobTaskset"]
