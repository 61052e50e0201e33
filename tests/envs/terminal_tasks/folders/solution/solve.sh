mkdir -p /work/left
touch /work/left/none
