echo "$GREETING" > /greeting
