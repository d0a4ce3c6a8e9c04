"""Links between processes: dial, shake hands, and carry typed messages over one websocket."""
