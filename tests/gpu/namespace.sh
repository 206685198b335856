#!/bin/bash
# systemd as process 1 of namespaces of its own, for a machine whose init is something else.
#
#   namespace.sh start FOLDER [--throwaway] | enter FOLDER COMMAND... | stop FOLDER
#
# FOLDER keeps what is needed to find it again. Processes, mounts, cgroups and the name of the host are the namespace's
# own, and so are /run and /tmp, which systemd's start would empty. With --throwaway the root is an overlay, and nothing
# that is written stays. Units that would set or clean the machine itself are masked. Network and GPUs are the machine's.
set -euo pipefail

what=$1 folder=$2
shift 2

masked="systemd-tmpfiles-setup systemd-tmpfiles-setup-dev systemd-tmpfiles-setup-dev-early systemd-tmpfiles-clean
  systemd-sysctl systemd-sysusers systemd-binfmt systemd-modules-load systemd-random-seed systemd-update-utmp
  systemd-remount-fs systemd-udevd systemd-udev-trigger systemd-hwdb-update systemd-journal-flush systemd-logind
  systemd-networkd systemd-resolved systemd-timesyncd systemd-machine-id-commit ldconfig"

inside() {
  mount --make-rprivate /
  if [ "${1:-}" = --throwaway ]; then
    local over=/run/throwaway new=/run/throwaway/new
    mkdir -p $over && mount -t tmpfs tmpfs $over && mkdir $over/upper $over/work $new
    mount -t overlay overlay -o "lowerdir=/,upperdir=$over/upper,workdir=$over/work" $new
    mount -t proc proc $new/proc
    mount --rbind /sys $new/sys
    mount --rbind /dev $new/dev
    mkdir -p $new/.old && cd $new && pivot_root . .old
    cd / && umount --lazy /.old
  fi
  mount -t tmpfs -o mode=1777 tmpfs /tmp
  mount -t tmpfs -o mode=755,size=256m tmpfs /run
  # A service may not set what is the machine's.
  mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys
  umount --recursive /sys/fs/cgroup 2>/dev/null || umount --lazy /sys/fs/cgroup 2>/dev/null || true
  mount -t cgroup2 none /sys/fs/cgroup
  local place
  for place in /usr/lib/systemd/system-generators \
    /usr/lib/systemd/system/{sysinit,local-fs,timers,multi-user,sockets,basic,graphical,default}.target.wants \
    /etc/systemd/system/{sysinit,local-fs,timers,multi-user,sockets,basic,graphical,default}.target.wants; do
    if [ -d "$place" ]; then mount -t tmpfs tmpfs "$place"; fi
  done
  mkdir -p /run/lock /run/systemd/system /run/systemd/journald.conf.d
  local unit
  for unit in $masked; do ln -s /dev/null "/run/systemd/system/$unit.service"; done
  printf '[Journal]\nStorage=volatile\nRateLimitBurst=0\n' >/run/systemd/journald.conf.d/tests.conf
  printf '[Unit]\nDescription=Tests\nWants=systemd-journald.service dbus.socket dbus.service\n' \
    >/run/systemd/system/tests.target
  if [ ! -s /etc/machine-id ]; then
    head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >/run/machine-id
    touch /etc/machine-id && mount --bind /run/machine-id /etc/machine-id
  fi
  getent passwd messagebus >/dev/null || useradd --system --no-create-home --shell /usr/sbin/nologin messagebus
  exec env -i container=other PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=tests.target --log-target=console --show-status=0
}

first() { # The namespace's process 1, as this machine numbers it.
  local outer
  outer=$(cat "$folder/outer")
  # Not every kernel lists children.
  if [ -r "/proc/$outer/task/$outer/children" ]; then
    tr -d ' ' <"/proc/$outer/task/$outer/children"
  else
    pgrep --parent "$outer"
  fi
}

case $what in
  inside) inside "$@" ;;
  start)
    mkdir -p "$folder"
    cgroup=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)
    if [ -z "$cgroup" ]; then
      cgroup=$folder/cgroup && mkdir -p "$cgroup" && mount -t cgroup2 none "$cgroup"
    fi
    own=$cgroup/sglang-gpu-tests-$$
    mkdir -p "$own"
    echo "$own" >"$folder/own"
    setsid bash -c 'echo $$ >"$1/cgroup.procs"; echo $$ >"$2/outer"; shift 2
      exec unshare --pid --mount --cgroup --uts --fork --kill-child --mount-proc "$@"' \
      - "$own" "$folder" "$0" inside "$folder" "$@" >"$folder/log" 2>&1 </dev/null &
    for _ in $(seq 100); do
      sleep 0.2
      if pid=$(first 2>/dev/null) && [ -n "$pid" ] &&
        nsenter --target "$pid" --pid --mount --cgroup --uts systemctl show --property=Version 2>/dev/null; then
        echo "$pid" >"$folder/pid"
        exit 0
      fi
    done
    echo "systemd did not start in the namespace. Found:" >&2
    cat "$folder/log" >&2
    exit 1
    ;;
  enter) exec nsenter --target "$(cat "$folder/pid")" --pid --mount --cgroup --uts -- "$@" ;;
  stop)
    # The end of process 1 is the end of all processes of the namespace.
    if [ -s "$folder/pid" ]; then
      kill -9 "$(cat "$folder/pid")" && rm "$folder/pid"
      sleep 1
      find "$(cat "$folder/own")" -depth -type d -exec rmdir {} + 2>/dev/null || true
    fi
    ;;
  *)
    echo "usage: $0 start FOLDER [--throwaway] | enter FOLDER COMMAND... | stop FOLDER" >&2
    exit 2
    ;;
esac
