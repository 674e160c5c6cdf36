# Sourced by the other scripts: makes .venv with what they need, and installs what is missing for that.
#
# Needs Python 3.11 or newer. Everything else comes from the distribution's packages (with root) and from the
# configured Python package index.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
root=$PWD
venv=$root/.venv

die() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 1
}

# Prints the first interpreter that is new enough.
find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# need PACKAGE... - installs Debian packages, or says what to install.
need() {
    if [ "$(id -u)" != 0 ]; then
        die "missing system packages: $*. As root: apt-get install $*"
    fi
    command -v apt-get >/dev/null || die "missing packages, by their Debian names: $*"
    printf 'Installing system packages: %s\n' "$*" >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@"; } \
        >/dev/null || die "apt-get could not install $*"
}

# Whether C can be compiled, as the tests do with the stub of the GPU driver's library.
has_compiler() {
    printf '#include <stdio.h>\n' | gcc -fsyntax-only -x c - 2>/dev/null
}

# setup run|dev - brings .venv to what pyproject.toml and the pinned versions say.
setup() {
    local what=$1 python stamp wanted
    python=$(find_python) || { need python3; python=$(find_python); } ||
        die "Python 3.11 or newer is needed; set PYTHON to its path"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || need python3-venv
    "$python" -c 'import ctypes.util, sys; sys.exit(not ctypes.util.find_library("udev"))' || need libudev1
    [ "$what" != dev ] || has_compiler || need gcc libc6-dev
    # Tests with network namespaces, which only root can make.
    [ "$what" != dev ] || [ "$(id -u)" != 0 ] || command -v ip >/dev/null || need iproute2
    mkdir -p "$venv"
    exec 9>"$venv/.setup-lock"
    flock 9
    stamp=$venv/.installed-$what
    wanted=$(cat pyproject.toml hack/constraints.txt | sha256sum)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || ! "$venv/bin/python" -c 'import dradriver' 2>/dev/null; then
        printf 'Setting up %s\n' "$venv" >&2
        [ -x "$venv/bin/python" ] && "$venv/bin/python" -c '' 2>/dev/null || "$python" -m venv "$venv"
        local extra=
        [ "$what" = dev ] && extra='[dev]'
        # Most modules are never imported, and the others are compiled then.
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-compile \
            --constraint hack/constraints.txt --editable ".$extra" || die "pip could not install what is needed"
        printf '%s\n' "$wanted" >"$stamp"
    fi
    exec 9>&-
}
