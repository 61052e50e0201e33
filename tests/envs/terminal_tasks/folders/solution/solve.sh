mkdir -p /rooms/left
touch /rooms/left/none
