"""A box's own `systemd --user` for its owner, as one has who may linger: without a first process
of systemd, in a control group that is given to the owner."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from tests.lab.api import RunningLab

_PREPARE = r"""
set -e
[ -x /usr/lib/systemd/systemd ] || { echo "systemd is not installed" >&2; exit 1; }
group=/sys/fs/cgroup/$1
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p "$group" /run/systemd/system "/run/user/$(id -u owner)" /var/lib/systemd/linger
: >/var/lib/systemd/linger/owner
chown owner "/run/user/$(id -u owner)" "$group" "$group/cgroup.procs" \
  "$group/cgroup.subtree_control" "$group/cgroup.threads"
chmod 700 "/run/user/$(id -u owner)"
echo $$ >"$group/cgroup.procs"
cd /
setsid setpriv --reuid owner --regid owner --clear-groups env -i \
  PATH=/usr/bin:/bin HOME=/home/owner USER=owner "XDG_RUNTIME_DIR=/run/user/$(id -u owner)" \
  /usr/lib/systemd/systemd --user </dev/null >/run/user-manager.log 2>&1 &
echo $! >/run/user-manager.pid
n=0
until [ -S "/run/user/$(id -u owner)/systemd/private" ]; do
  n=$((n + 1)); sleep 0.1
  [ $n -lt 300 ] || { cat /run/user-manager.log >&2; exit 1; }
done
"""

_END = r"""
group=/sys/fs/cgroup/$1
[ -f /run/user-manager.pid ] && kill -TERM "$(cat /run/user-manager.pid)"
n=0
while [ -n "$(find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null)" ]; do
  n=$((n + 1)); sleep 0.1
  [ $n -lt 100 ] || find "$group" -name cgroup.procs -exec cat {} + | xargs kill -KILL
  [ $n -lt 300 ] || break
done
find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
umount /sys/fs/cgroup
exit 0
"""


@contextlib.contextmanager
def user_manager(lab: RunningLab, box: str) -> Generator[str | None]:
    """Runs one for the length of the block; tells why none came up, in its own words."""
    group = f"lab-{lab.lab.name}-{box}"
    done = lab.box(box, ["sh", "-c", _PREPARE, "sh", group], root=True)
    try:
        yield done.stderr.strip()[-600:] or "it ended" if done.returncode else None
    finally:
        lab.box(box, ["sh", "-c", _END, "sh", group], root=True)
