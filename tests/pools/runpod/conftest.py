"""Makes the fakes of this folder importable, for pytest and for the processes that the tests start."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def pods_folder() -> Iterator[Path]:
    """Yield a folder that other users can look into: jobs run as users of their own, and pytest's folder is private."""
    folder = Path(tempfile.mkdtemp(prefix="trainwright-pods-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def anyio_backend() -> str:
    """Run coroutine tests on asyncio."""
    return "asyncio"
