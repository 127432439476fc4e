"""Files that survive kills, full disks and several writers."""
