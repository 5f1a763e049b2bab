#!/usr/bin/env bash
# `psruntime run` from a clone, without an installation: launch/local.sh --ps P --workers W [job and worker flags]
# launch/local.sh --help lists them.  PYTHON names the interpreter; default: the repository's .venv, else python3.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-}
if [ -z "$python" ]; then
    python=python3
    [ -x "$root/.venv/bin/python" ] && python=$root/.venv/bin/python
fi
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m psruntime.run "$@"
