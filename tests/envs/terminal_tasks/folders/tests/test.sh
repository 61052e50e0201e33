left=0; [ -d /rooms/left ] && left=1
none=0; [ -f /rooms/left/none ] && none=1
echo "{\"folder\": $left, \"file\": $none}" > /logs/verifier/reward.json
