#!/bin/sh
# Prints the newest Python, 3.11 or later, that runs: of those on the PATH, and of those that pyenv has installed.
# A python3.13 on the PATH may be a shim of pyenv for a version that is not chosen, and fail.
folders="$PATH:$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin 2>/dev/null | tr '\n' ':')"
for name in python3.14 python3.13 python3.12 python3.11 python3; do
    IFS=:
    for folder in $folders; do
        python="$folder/$name"
        if [ -x "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$python"
            exit
        fi
    done
done
