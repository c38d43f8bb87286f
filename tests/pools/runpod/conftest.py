"""Makes the fakes of this folder importable, for pytest and for the processes that the tests start."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def pods_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that other users can look into: jobs run as users of their own."""
    folder = tmp_path_factory.mktemp("pods")
    for part in (folder, folder.parent, folder.parent.parent):
        part.chmod(0o755)
    return folder


@pytest.fixture
def anyio_backend() -> str:
    """Run coroutine tests on asyncio."""
    return "asyncio"
