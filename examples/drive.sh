#!/bin/sh
# DRIVE (2025) from beginning to end: supervised learning on what is hard, entropy expansion, hard focus. Each stage begins with
# the policy that the one before it has made. What follows the folder goes to both runs of reinforcement learning.
#   sh examples/drive.sh runs/drive
#   sh examples/drive.sh runs/small --optimizer.steps 4 --train.limit 40 --test.limit 20
set -eu
folder=${1:?name the folder of the three stages, such as runs/drive}
shift
agentenv warmstart --imitate examples/drive-expand.toml --arena 5 --context-tokens 512 --out "$folder/supervised"
agentenv train examples/drive-expand.toml --policy "hf:$folder/supervised" --out "$folder/expand" "$@"
agentenv train examples/drive.toml --policy "hf:$folder/expand/policy" --out "$folder/focus" "$@"
