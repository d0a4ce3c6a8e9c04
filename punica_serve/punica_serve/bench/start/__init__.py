"""How long an engine takes to start, on one device and on a group: `punica-serve bench start`."""
