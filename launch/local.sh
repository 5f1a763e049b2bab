#!/usr/bin/env bash
# `psruntime run` from a clone, without an installation: launch/local.sh [--alone] --ps P --workers W [job and worker flags]
# launch/local.sh --help lists them.  PYTHON names the interpreter; default: the repository's .venv, else python3.
#
# --alone gives the job a network of its own, a user namespace with a loopback alone: other users of the machine do not
# reach its ports, and the job reaches no other machine.  The script prints how to look at it from outside.
set -eu
fail() {
    echo "launch/local.sh: $1" >&2
    exit 2
}
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-}
if [ -z "$python" ]; then
    python=python3
    [ -x "$root/.venv/bin/python" ] && python=$root/.venv/bin/python
fi
alone=(env)
if [ "${1:-}" = --alone ]; then
    shift
    alone=(unshare --user --map-root-user --net sh -c 'ip link set lo up && exec "$@"' sh)
    reason=$("${alone[@]}" true 2>&1) || fail "--alone needs user namespaces (unshare, ip), and here it fails: ${reason##*$'\n'}"
    echo "launch/local.sh: to look at the job: nsenter --user --net --preserve-credentials --target $$ psruntime status HOST:PORT" >&2
fi
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "${alone[@]}" "$python" -m psruntime.run "$@"
