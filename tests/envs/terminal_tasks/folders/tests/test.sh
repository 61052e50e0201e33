left=0; [ -d /work/left ] && left=1
none=0; [ -f /work/left/none ] && none=1
echo "{\"folder\": $left, \"file\": $none}" > /logs/verifier/reward.json
