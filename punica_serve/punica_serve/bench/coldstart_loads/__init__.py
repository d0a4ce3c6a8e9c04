"""`bench coldstart-loads`: an adapter's way to host memory from each place, beside what that place allows."""
