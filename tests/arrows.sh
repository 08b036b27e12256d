#!/bin/sh
# SPDX-License-Identifier: MIT
#
# What may know what: a program includes only its own folder, common/ and proto/; common/ includes
# neither program; proto/ only itself. And gateway/ knows no model: no template's text and no model's
# name, but for the names of pre-tokenisers that model files state.
set -u
cd "$(dirname "$0")/.." || exit 1
bad=0

# The includes of folder $1 that lead to none of the folders $2.
arrow() {
    found=$(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"[^"]*/' --include='*.[ch]' \
        --include='*.cu' --include='*.cuh' "$1" | grep -vE "\"($2)/")
    [ -z "$found" ] && return
    echo "$1/ includes more than it may ($2):"
    echo "$found"
    bad=1
}
arrow proto 'proto'
arrow common 'common|proto'
arrow poold 'poold|common|proto'
arrow workerd 'workerd|common|proto'
arrow gateway 'gateway|common|proto'

# The tokeniser's two tables hold what model files state: names of pre-tokenisers (split.c) and texts
# of tokens that end a generation (vocab.c).
template='im_start|im_end|\[/?INST\]|start_of_turn|start_header_id|eot_id|<\|(system|user|assistant)'
name='smollm|qwen|mistral|gemma|deepseek|llama-?[0-9]|phi-?[0-9]'
found=$(
    grep -rniE "$name" gateway | grep -v '^gateway/tokenizer/split\.c:'
    grep -rniE "$template" gateway | grep -v '^gateway/tokenizer/vocab\.c:'
)
if [ -n "$found" ]; then
    echo "gateway/ names a model or holds a template's text:"
    echo "$found"
    bad=1
fi
[ $bad -eq 0 ] && echo "the arrows hold"
exit $bad
