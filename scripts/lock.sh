#!/bin/sh
# Write requirements.lock and requirements-dev.lock from pyproject.toml, in a scratch environment.
set -eu
python=${1:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/venv"
pip="$scratch/venv/bin/python -m pip --disable-pip-version-check"
wanted() { "$scratch/venv/bin/python" - "$1" <<'PY'
import sys, tomllib
table = tomllib.load(open("pyproject.toml", "rb"))
print(*(table["project"]["dependencies"] if sys.argv[1] == "base" else table["dependency-groups"]["dev"]), sep="\n")
PY
}
pins() { $pip freeze | grep '==' | grep -v '^trainwright' | sed 's/+cpu$//'; }  # +cpu names one wheel, not the release
wanted base > "$scratch/base.txt"
wanted dev > "$scratch/dev.txt"
$pip install --quiet -r "$scratch/base.txt" hatchling==1.27.0 editables  # the version of [build-system]
pins > "$scratch/base.lock"
$pip install --quiet -r "$scratch/dev.txt"
pins > "$scratch/dev.lock"
{
    echo "# Exact pins of everything that \`make\` installs, made on $("$python" -c 'import platform as p; print(f"Python {p.python_version()}, {p.system()} {p.machine()}")')."
    echo "# Change a version in pyproject.toml first, then: make lock"
    cat "$scratch/base.lock"
} > requirements.lock
{
    echo "# The tools of tests, lint and types, on top of requirements.lock."
    echo "-r requirements.lock"
    grep -vxFf "$scratch/base.lock" "$scratch/dev.lock"
} > requirements-dev.lock
