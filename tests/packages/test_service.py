"""The service under a real systemd, in a container of systemd-nspawn without a network."""

import resource
import shutil
import subprocess

import pytest

from conftest import run
from test_deb import older

# What a start, an installation and a restart may take together on a busy machine.
BOOT_SECS = 240

CHECK = """\
#!/bin/bash
# Runs as a service, and writes a line for each step.
cd /root
say() { echo "$1: $2"; }
state() { systemctl show quelea --property="$1" --value; }
# Waits until a property has a value: the manager or the broker changes it.
until_state() { until [[ $(state "$1") == $2 ]]; do sleep 0.1; done; say "$3" "$(state "$1")"; }
main_pid() { state MainPID; }

DEBIAN_FRONTEND=noninteractive dpkg --install quelea-older.deb >&2
say installed "$(systemctl is-active quelea) $(systemctl is-enabled quelea)"
quelea pub -h 127.0.0.1 -t kept -m value -q 1 -r && say published yes
say user "$(ps -o user= -p "$(main_pid)" 2>/dev/null || stat -c %U "/proc/$(main_pid)")"
say files "$(awk '/Max open files/ {print $5}' "/proc/$(main_pid)/limits")"
say syscalls "$(awk '/^Seccomp:/ {print $2}' "/proc/$(main_pid)/status")"

[[ -n $(state StatusText) ]] && say status shown
say health "$(quelea health --config /etc/quelea/quelea.toml --ready >&2; echo $?)"

systemctl reload quelea && say reloaded "$(systemctl is-active quelea)"

before=$(state InvocationID)
DEBIAN_FRONTEND=noninteractive dpkg --install quelea.deb >&2
[[ $(state InvocationID) != "$before" ]] && say upgraded "$(systemctl is-active quelea)"
say kept "$(quelea sub -h 127.0.0.1 -t kept -C 1 -W 20)"

systemctl kill --signal=KILL --kill-whom=main quelea
until_state NRestarts 1 killed
until_state ActiveState active restarted
say kept_again "$(quelea sub -h 127.0.0.1 -t kept -C 1 -W 20)"

cp /etc/quelea/quelea.toml good.toml
echo 'nonsense = 1' > /etc/quelea/quelea.toml
systemctl restart quelea 2>/dev/null
until_state ActiveState failed wrong_configuration
say exit_code "$(state ExecMainStatus)"
say restarts "$(state NRestarts)"
cp good.toml /etc/quelea/quelea.toml
systemctl reset-failed quelea
systemctl start quelea && say mended "$(systemctl is-active quelea)"

log=/var/log/quelea/quelea.log
printf '[log]\\ntarget = "%s"\\n' "$log" >> /etc/quelea/quelea.toml
systemctl restart quelea
[[ $(logrotate --debug /etc/logrotate.d/quelea 2>&1 | tee /dev/stderr) != *error* ]] && say rotation valid
logrotate --force /etc/logrotate.d/quelea 2>&1 | tee /dev/stderr | grep -q . || say rotation_prints nothing
# The broker makes the file when it gets the signal.
until [[ -s $log ]]; do sleep 0.1; done
quelea pub -h 127.0.0.1 -i after-rotation -t a -m x
until grep -q after-rotation "$log"; do sleep 0.1; done
say rotated "$(stat -c '%U %a' "$log") $(grep -c ' INFO ready' "$log.1")"

mkdir -p /etc/systemd/system/quelea.service.d
printf '[Service]\\nWatchdogSec=5\\nTimeoutAbortSec=1\\n' > /etc/systemd/system/quelea.service.d/short.conf
systemctl daemon-reload
systemctl restart quelea
kill -STOP "$(main_pid)"
until_state NRestarts 1 stuck
until_state ActiveState active recovered

dpkg --remove quelea >&2
say removed "$(systemctl is-active quelea)"
"""
UNIT = """\
[Unit]
After=multi-user.target

[Service]
Type=oneshot
ExecStart=/root/check
StandardOutput=file:/root/report
StandardError=file:/root/errors
ExecStopPost=/bin/sh -c 'journalctl --no-pager --unit=quelea > /root/journal'
ExecStopPost=/bin/systemctl poweroff --no-block
"""
TIMER = "[Timer]\nOnBootSec=0\n"


@pytest.fixture
def report(debs, bare_root, tmp_path):
    """Boots the machine with the script; what it wrote, as a dictionary."""
    nspawn = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network"]
    probe = subprocess.run(
        [*nspawn, f"--directory={bare_root}", "/bin/true"], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip(f"systemd-nspawn does not work here: {probe.stderr}")
    shutil.copy(older(debs["quelea"], tmp_path), bare_root / "root/quelea-older.deb")
    shutil.copy(debs["quelea"], bare_root / "root/quelea.deb")
    (bare_root / "root/check").write_text(CHECK)
    (bare_root / "root/check").chmod(0o755)
    units = bare_root / "etc/systemd/system"
    (units / "check.service").write_text(UNIT)
    (units / "check.timer").write_text(TIMER)
    run("systemctl", f"--root={bare_root}", "add-wants", "multi-user.target", "check.timer")
    done = subprocess.run(
        [*nspawn, "--boot", f"--directory={bare_root}", "--kill-signal=SIGRTMIN+3", "--console=pipe"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=BOOT_SECS, check=False,
    )
    texts = [bare_root / "root" / name for name in ("report", "errors", "journal")]
    texts = [text.read_text() if text.exists() else "" for text in texts]
    print(done.stdout.decode(errors="replace"), *texts, sep="\n---\n")
    return dict(line.split(": ", 1) for line in texts[0].splitlines())


def test_the_service_lives_as_systemd_expects(report):
    assert report == {
        "installed": "active enabled",
        "published": "yes",
        "user": "quelea",
        # Of the unit, where this machine lets a container have as many.
        "files": str(min(1_048_576, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        "syscalls": "2",
        "status": "shown",
        "health": "0",
        "reloaded": "active",
        "upgraded": "active",
        "kept": "value",
        "killed": "1",
        "restarted": "active",
        "kept_again": "value",
        "wrong_configuration": "failed",
        "exit_code": "2",
        "restarts": "0",
        "mended": "active",
        "rotation": "valid",
        "rotation_prints": "nothing",
        # Of the broker again, and the lines of its start are in the older file.
        "rotated": "quelea 600 1",
        "stuck": "1",
        "recovered": "active",
        "removed": "inactive",
    }
