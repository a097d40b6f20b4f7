#!/bin/sh
# Installs the packages of one image into the active environment: `install.sh streams` or `install.sh train`.
# Versions come from requirements.lock, names from pyproject.toml; our own code is installed in a later layer.
set -eu
case "$1" in
    streams) extras="" ;;
    train) extras="train" ;;
    *) echo "install.sh streams|train" >&2; exit 2 ;;
esac
python - "$extras" > wanted.txt <<'PYTHON'
import sys
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
wanted = project["dependencies"] + [r for extra in sys.argv[1].split() for r in project["optional-dependencies"][extra]]
print("\n".join(wanted))
PYTHON
pip install --constraint requirements.lock --requirement wanted.txt
# The data and simulators of bfcl-eval, without the packages it pins.
pip install --no-deps bfcl-eval==2026.3.23
