#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Prints how many lines of each parser its corpus reaches: builds the fuzz targets with clang's
# coverage in FOLDER (build-coverage), runs each over tests/fuzz/corpus/NAME, and asks llvm-cov.
# Fails when one has less than 80 %.
#   tests/fuzz/coverage.sh [FOLDER]
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build-coverage}
least=80

# What each target is there for; the rest of what it links is not its parser.
sources() {
    case $1 in
    body) echo gateway/api/fields.c gateway/api/anthropic_in.c gateway/api/responses_in.c \
        gateway/api/logit_bias.c gateway/api/raw.c gateway/chat.c gateway/chat_tools.c ;;
    generate) echo workerd/requests.c ;;
    gguf) echo common/gguf.c common/gguf_parse.c common/gguf_fingerprint.c ;;
    heard) echo gateway/request_messages.c gateway/news.c ;;
    saved) echo poold/poolctl_file.c ;;
    template) echo 'gateway/template/.*[.]c' ;;
    tokenizer) echo 'gateway/tokenizer/.*[.]c' ;;
    *) echo "coverage.sh: $1 is not known here" >&2 && return 1 ;;
    esac
}

tool() { command -v "$1-14" || command -v "$1"; }
cov=$(tool llvm-cov) merge=$(tool llvm-profdata)

mkdir -p "$build"
[ -f "$build/build.ninja" ] ||
    CC=clang-14 meson setup "$build" -Dtests=enabled -Dcuda=disabled -Dfuzz=true -Db_lundef=false \
        '-Dc_args=-fprofile-instr-generate -fcoverage-mapping' \
        '-Dc_link_args=-fprofile-instr-generate' >"$build/setup.log"
targets=
for corpus in tests/fuzz/corpus/*/; do
    targets="$targets tests/fuzz/fuzz_$(basename "$corpus")"
done
# shellcheck disable=SC2086 # one word a target
ninja -C "$build" $targets >"$build/build.log" || {
    tail -n 40 "$build/build.log"
    exit 1
}

status=0
for corpus in tests/fuzz/corpus/*/; do
    name=$(basename "$corpus")
    program=$build/tests/fuzz/fuzz_$name
    parser=$(sources "$name")
    LLVM_PROFILE_FILE=$program.profraw "$program" -runs=0 "$corpus" 2>"$program.log"
    "$merge" merge -o "$program.profdata" "$program.profraw"
    "$cov" report "$program" -instr-profile="$program.profdata" >"$program.coverage"
    # A file's row: name, then regions, functions and lines, each as number, missed, share.
    share=$(awk -v names="$parser" 'BEGIN {gsub(" ", "|", names); names = "^([.][.]/)*(" names ")$"}
        $1 ~ names {n += $8; missed += $9}
        END {if (n) printf "%.1f", 100 * (n - missed) / n; else print 0}' "$program.coverage")
    echo "$name: $share % of the lines"
    [ "${share%%.*}" -ge $least ] || status=1
done
exit $status
