"""A process of the engine asks for as many open files as its user may have."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from homesplit_engine.open_files import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "after"), [(64, 512, 512), (512, 512, 512)], ids=["a few", "all it may"]
)
def test_the_limit_of_a_login_is_raised_to_what_is_allowed(
    soft: int, hard: int, after: int
) -> None:
    program = PROGRAM.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [str(after).encode(), str(hard).encode()]


def test_a_limit_that_is_higher_already_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = PROGRAM.format(soft=before[1], hard=before[1])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [str(before[1]).encode()] * 2
